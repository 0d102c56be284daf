#include "space.h"

#include <algorithm>
#include <array>

#include "buffers.h"
#include "results.h"
#include "submitted.h"
#include "views.h"

namespace kvist::python {

bool SpaceCall::read_part(PyObject* value, uint16_t* out) const {
  if (!given(value)) return true;
  if (PyUnicode_Check(value)) {
    std::string_view name;
    if (!read_text(value, "part", &name)) return false;
    for (size_t i = 0; i < parts().size(); ++i) {
      if (parts()[i].name != name) continue;
      *out = static_cast<uint16_t>(i);
      return true;
    }
    PyErr_Format(PyExc_ValueError, "the namespace has no part %R", value);
    return false;
  }
  uint64_t index = 0;
  if (!read_uint(value, "part", parts().size() - 1, &index)) return false;
  *out = static_cast<uint16_t>(index);
  return true;
}

bool SpaceCall::check(std::span<const StatusCode> codes) const {
  if (codes.empty()) return true;
  const StatusCode code = codes[0];
  if (code != StatusCode::kFailedPrecondition && code != StatusCode::kUnavailable) return true;
  if (!std::all_of(codes.begin(), codes.end(), [&](StatusCode other) { return other == code; })) return true;
  // An empty look-up tells what is wrong with the namespace itself; under `strict` each block may fail by itself.
  const Prefix probe = space_->longest_prefix({}, {.promise = false});
  if (probe.status().code() == code) {
    raise(state_, probe.status());
    return false;
  }
  if (code == StatusCode::kFailedPrecondition) return true;
  raise(state_, unavailable("the node is gone or restarting; the client reconnects by itself: try again later"));
  return false;
}

namespace {

// ---- names --------------------------------------------------------------------------------------------------------

// The keys of a call as views, held.
class Keys {
 public:
  bool read(PyObject* object, PyObject* width) {
    uint64_t bytes = 0;
    if (!read_uint(width, "width", 4096, &bytes)) return false;
    if (bytes > 0) return read_packed(object, bytes);
    if (PyUnicode_Check(object) || PyObject_CheckBuffer(object)) {
      PyErr_SetString(PyExc_TypeError,
                      "keys are a sequence of bytes or str; for keys of equal length one behind the other in "
                      "one buffer, say width=");
      return false;
    }
    return read_items(object);
  }
  std::span<const std::string_view> views() const { return views_; }

 private:
  bool read_packed(PyObject* object, size_t width) {
    Memory& memory = buffers_.emplace_back();
    if (!memory.hold(object, false)) return false;
    if (!memory.contiguous() || memory.size() % width != 0) {
      PyErr_Format(PyExc_ValueError, "a buffer of %zu bytes is no whole number of keys of %zu", memory.size(), width);
      return false;
    }
    const char* data = reinterpret_cast<const char*>(memory.data());
    for (size_t at = 0; at < memory.size(); at += width) views_.emplace_back(data + at, width);
    return true;
  }
  bool read_items(PyObject* object) {
    items_.reset(PySequence_Tuple(object));  // holds the keys, whatever becomes of a list meanwhile
    if (!items_) return false;
    const Py_ssize_t count = PyTuple_Size(items_.get());
    views_.resize(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (read_item(PyTuple_GetItem(items_.get(), i), &views_[static_cast<size_t>(i)])) continue;
      prefix_error("key", static_cast<size_t>(i));
      return false;
    }
    return true;
  }
  bool read_item(PyObject* item, std::string_view* out) {
    if (PyBytes_Check(item) || PyUnicode_Check(item)) return read_text(item, "a key", out);
    Memory& memory = buffers_.emplace_back();
    if (!memory.hold(item, false)) return false;
    if (!memory.contiguous()) {
      PyErr_SetString(PyExc_BufferError, "a key must be contiguous");
      return false;
    }
    *out = {reinterpret_cast<const char*>(memory.data()), memory.size()};
    return true;
  }

  Ref items_;
  std::deque<Memory> buffers_;
  std::vector<std::string_view> views_;
};

PyObject* digests(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"keys", "width"};
  std::array<PyObject*, 2> values;
  if (!sort_arguments({"digests", kNames, 1, 1}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    Keys keys;
    if (!call.begin(self) || !keys.read(values[0], values[1])) return nullptr;
    std::vector<Digest> out(keys.views().size());
    {
      const Unlocked unlocked;
      call.space().digests(keys.views(), out);
    }
    return make_digests(call.state(), std::move(out));
  });
}

// ---- reading ------------------------------------------------------------------------------------------------------

bool read_parts(const SpaceCall& call, PyObject* value, uint64_t* mask) {
  if (!given(value)) return true;
  Ref list(PySequence_List(value));
  if (!list) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(list.get()); ++i) {
    uint16_t part = 0;
    if (!call.read_part(PyList_GetItem(list.get(), i), &part)) return false;
    *mask |= uint64_t{1} << part;
  }
  return true;
}

bool read_on_disk(PyObject* value, OnDisk* out) {
  std::string_view text;
  if (!given(value)) return true;
  if (!read_text(value, "on_disk", &text)) return false;
  if (text != "bring" && text != "leave") {
    PyErr_Format(PyExc_ValueError, "on_disk must be 'bring' or 'leave', not %R", value);
    return false;
  }
  *out = text == "leave" ? OnDisk::kLeave : OnDisk::kBring;
  return true;
}

PyObject* prefix(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"chain", "start", "hint", "parts", "timeout", "on_disk"};
  std::array<PyObject*, 6> values;
  if (!sort_arguments({"prefix", kNames, 1, 1}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    PrefixOptions options;
    uint64_t start = 0;
    bool hint = false;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) || !read_uint(values[1], "start", UINT32_MAX, &start) ||
        !read_bool(values[2], &hint) || !read_parts(call, values[3], &options.parts) ||
        !read_timeout(values[4], &options.deadline) || !read_on_disk(values[5], &options.on_disk)) {
      return nullptr;
    }
    options.from = static_cast<uint32_t>(start);
    options.promise = !hint;
    Prefix found;
    {
      const Unlocked unlocked;
      found = call.space().longest_prefix(chain.chain(), options);
    }
    const StatusCode code = found.status().code();
    if (code == StatusCode::kFailedPrecondition || code == StatusCode::kUnavailable ||
        code == StatusCode::kInvalidArgument) {
      return raise(call.state(), found.status());
    }
    return make_prefix(call.state(), *value_of_space(self).shared, std::move(found));
  });
}

PyObject* pin(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"digests", "part", "timeout", "on_disk"};
  std::array<PyObject*, 4> values;
  std::optional<Deadline> deadline;
  OnDisk on_disk = OnDisk::kBring;
  if (!sort_arguments({"pin", kNames, 1, 1}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    uint16_t part = 0;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) || !call.read_part(values[1], &part) ||
        !read_timeout(values[2], &deadline) || !read_on_disk(values[3], &on_disk)) {
      return nullptr;
    }
    Pinned pinned;
    {
      const Unlocked unlocked;
      pinned = call.space().pin(chain.positions(), part, deadline, on_disk);
    }
    Ref made(make_pinned(call.state(), *value_of_space(self).shared, std::move(pinned)));
    Ref results(made ? PyObject_GetAttrString(made.get(), "results") : nullptr);
    return results && call.check(codes_of(results.get())) ? made.release() : nullptr;
  });
}

PyObject* contains(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"digests", "part"};
  std::array<PyObject*, 2> values;
  if (!sort_arguments({"contains", kNames, 1, 1}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    uint16_t part = 0;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) || !call.read_part(values[1], &part)) return nullptr;
    Ref results(make_results(call.state(), chain.size()));
    if (!results) return nullptr;
    {
      const Unlocked unlocked;
      call.space().contains(chain.positions(), codes_of(results.get()), part);
    }
    return call.check(codes_of(results.get())) ? results.release() : nullptr;
  });
}

PyObject* get(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"digests", "out", "part", "timeout", "sizes"};
  std::array<PyObject*, 5> values;
  if (!sort_arguments({"get", kNames, 2, 2}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    Pieces<Range> out;
    Deadline deadline;
    uint16_t part = 0;
    bool with_sizes = false;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) || !call.read_part(values[2], &part) ||
        !read_timeout(values[3], &deadline) || !read_bool(values[4], &with_sizes) ||
        !out.read(call.state(), values[1], chain.size(), call.parts()[part].block_bytes)) {
      return nullptr;
    }
    Ref results(make_results(call.state(), chain.size(), with_sizes));
    if (!results) return nullptr;
    {
      const Unlocked unlocked;
      call.space().get(chain.positions(), out.blocks(), codes_of(results.get()), part, deadline, sizes_of(results.get()));
    }
    return call.check(codes_of(results.get())) ? results.release() : nullptr;
  });
}

PyObject* submit_get(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"digests", "out", "part", "timeout"};
  std::array<PyObject*, 4> values;
  if (!sort_arguments({"submit_get", kNames, 2, 2}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    Deadline deadline;
    uint16_t part = 0;
    if (!call.begin(self) || !call.read_part(values[2], &part) || !read_timeout(values[3], &deadline)) return nullptr;
    Ref made(make_submitted(call.state()));
    if (!made) return nullptr;
    SubmittedValue& value = submitted_in(made.get());
    if (!value.chain.read(call.state(), values[0]) ||
        !value.destinations.read(call.state(), values[1], value.chain.size(), call.parts()[part].block_bytes)) {
      return nullptr;
    }
    value.results.reset(make_results(call.state(), value.chain.size()));
    if (!value.results) return nullptr;
    call.live().submitted.reserve(call.live().submitted.size() + 1);
    StatusOr<uint64_t> ticket = unavailable("not tried");
    {
      const Unlocked unlocked;
      ticket = call.space().submit_get(value.chain.positions(), value.destinations.blocks(), codes_of(value.results.get()),
                                       part, deadline);
    }
    if (!ticket.ok()) return raise(call.state(), ticket.status());
    note_submitted(call.live(), made.get(), *ticket);
    return made.release();
  });
}

// ---- the rest -----------------------------------------------------------------------------------------------------

PyObject* touch(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"digests", "part", "session", "stop", "timeout"};
  std::array<PyObject*, 5> values;
  if (!sort_arguments({"touch", kNames, 1, 1}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    Deadline deadline;
    uint16_t part = 0;
    std::string_view session, stop;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) || !call.read_part(values[1], &part) ||
        !read_text(values[2], "session", &session) || !read_text(values[3], "stop", &stop) ||
        !read_timeout(values[4], &deadline)) {
      return nullptr;
    }
    Status status;
    {
      const Unlocked unlocked;
      status = call.space().touch(chain.positions(), part, session, stop, deadline);
    }
    return status.ok() ? Py_NewRef(Py_None) : raise(call.state(), status);
  });
}

PyObject* remove(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"digests", "part", "timeout"};
  std::array<PyObject*, 3> values;
  if (!sort_arguments({"remove", kNames, 1, 1}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    ChainArgument chain;
    Deadline deadline;
    uint16_t part = 0;
    if (!call.begin(self) || !chain.read(call.state(), values[0]) || !call.read_part(values[1], &part) ||
        !read_timeout(values[2], &deadline)) {
      return nullptr;
    }
    Ref results(make_results(call.state(), chain.size()));
    if (!results) return nullptr;
    {
      const Unlocked unlocked;
      call.space().remove(chain.positions(), codes_of(results.get()), part, deadline);
    }
    return call.check(codes_of(results.get())) ? results.release() : nullptr;
  });
}

PyObject* flush(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"timeout"};
  std::array<PyObject*, 1> values;
  Deadline deadline;
  if (!sort_arguments({"flush", kNames, 0, 0}, given_values, count, keywords, values) ||
      !read_timeout(values[0], &deadline)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    if (!call.begin(self)) return nullptr;
    StatusOr<uint64_t> gone = unavailable("not tried");
    {
      const Unlocked unlocked;
      gone = call.space().flush(deadline);
    }
    return gone.ok() ? PyLong_FromUnsignedLongLong(*gone) : raise(call.state(), gone.status());
  });
}

PyObject* digest_bytes(const Digest& digest) {
  std::byte bytes[16];
  store_digest(digest, bytes);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}

PyObject* listing_object(State* state, const Client::Listing& block) {
  Ref position(digest_bytes(block.position));
  Ref parent(block.parent.is_zero() ? Py_NewRef(Py_None) : digest_bytes(block.parent));
  Ref resident(PyBool_FromLong(block.resident));
  Ref on_disk(PyBool_FromLong(block.on_disk));
  if (!position || !parent || !resident || !on_disk) return nullptr;
  return PyObject_CallFunction(state->listing, "OOIIIIOO", position.get(), parent.get(), static_cast<unsigned>(block.part),
                               block.size, block.depth, block.children, resident.get(), on_disk.get());
}

PyObject* list_blocks(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"cursor", "limit", "timeout"};
  std::array<PyObject*, 3> values;
  uint64_t cursor = 0, limit = 1000;
  Deadline deadline;
  if (!sort_arguments({"list", kNames, 1, 0}, given_values, count, keywords, values) ||
      !read_uint(values[0], "cursor", INT64_MAX, &cursor) || !read_uint(values[1], "limit", UINT32_MAX, &limit) ||
      !read_timeout(values[2], &deadline)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    SpaceCall call;
    if (!call.begin(self)) return nullptr;
    StatusOr<std::vector<Client::Listing>> page = unavailable("not tried");
    {
      const Unlocked unlocked;
      page = call.live().client.list(call.space(), &cursor, static_cast<uint32_t>(limit), deadline);
    }
    if (!page.ok()) return raise(call.state(), page.status());
    Ref list(PyList_New(0));
    for (const Client::Listing& block : *page) {
      Ref one(listing_object(call.state(), block));
      if (!list || !one || PyList_Append(list.get(), one.get()) != 0) return nullptr;
    }
    return list ? Py_BuildValue("(OK)", list.get(), static_cast<unsigned long long>(cursor)) : nullptr;
  });
}

// For kvist.aio: what check() does, for results that came later.
PyObject* check_results(PyObject* self, PyObject* results) {
  SpaceCall call;
  if (!call.begin(self)) return nullptr;
  if (!PyObject_TypeCheck(results, call.state()->results)) return PyErr_Format(PyExc_TypeError, "Results are wanted");
  return call.check(codes_of(results)) ? Py_NewRef(results) : nullptr;
}

PyObject* identity_of(PyObject* self, void*) { return Py_NewRef(value_of_space(self).identity.get()); }
PyObject* id_of(PyObject* self, void*) {
  SpaceCall call;
  if (!call.begin(self)) return nullptr;
  const NamespaceId& id = call.space().id();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(id.data()), static_cast<Py_ssize_t>(id.size()));
}

PyObject* repr(PyObject* self) {
  Ref alias(PyObject_GetAttrString(value_of_space(self).identity.get(), "alias"));
  return alias ? PyUnicode_FromFormat("<kvist.Space %R>", alias.get()) : nullptr;
}

// ---- words --------------------------------------------------------------------------------------------------------

constexpr const char* kSpaceDocs =
    "The blocks of one Identity, from Client.open(): reading and writing them.\n\n"
    "A chain is a Digests, or bytes of 16 for each position. Blocks are bytes of whatever dtype; results are per block, "
    "and\n"
    "an exception means that the whole call failed: a wrong argument (TypeError, ValueError, BufferError), no node\n"
    "(Unavailable), a flushed namespace or closed client (FailedPrecondition), a forked process (Forked).\n"
    "May be used by any thread.";
constexpr const char* kDigestsDocs =
    "digests($self, keys, *, width=None)\n--\n\n"
    "The names of consecutive positions, by their keys: a sequence of bytes or str (1 to 4096 bytes each), or, with "
    "`width`,\n"
    "one buffer of keys of `width` bytes each. A key that cannot be a name gives 16 zero bytes, which every call answers\n"
    "with INVALID_ARGUMENT for that block alone.";
constexpr const char* kPrefixDocs =
    "prefix($self, chain, *, start=0, hint=False, parts=None, timeout=2.0, on_disk='bring')\n--\n\n"
    "The longest run of positions from `start` on that can be read now, pinned: a Prefix. A position counts only with all\n"
    "the parts that the identity declares (or those of `parts`: names or indices), each where its need wants it. hint=True\n"
    "pins nothing, promises nothing, and also tells what lies behind holes (`runs`). No message to the node where all is "
    "in\n"
    "DRAM. What was not looked at, verified, or read from disk within `timeout` seconds does not count; Prefix.code then "
    "is\n"
    "DEADLINE_EXCEEDED.\n\n"
    "on_disk: what becomes of blocks that are on disk only. A pinned prefix waits for them ('bring'), or ends before the "
    "first\n"
    "('leave'). A hint counts them and never waits; with 'bring' it has the node begin to read the first of them, up to 64 "
    "MiB\n"
    "or 256 blocks.";
constexpr const char* kPinDocs =
    "pin($self, digests, *, part=0, timeout=2.0, on_disk='bring')\n--\n\n"
    "Pins blocks independently of each other, for reading in place: a Pinned. Waits for those that are on disk, or leaves "
    "them\n"
    "there (on_disk='leave': NOT_FOUND); where all are in DRAM there is no message to the node.";
constexpr const char* kContainsDocs =
    "contains($self, digests, *, part=0)\n--\n\n"
    "Results: OK or NOT_FOUND for each block, in DRAM or on disk; a hint: it promises and touches nothing. No message to "
    "the\n"
    "node.";
constexpr const char* kGetDocs =
    "get($self, digests, out, *, part=0, timeout=2.0, sizes=False)\n--\n\n"
    "Copies block i into the i-th place of `out` and returns Results: OK, NOT_FOUND, OUT_OF_RANGE (the block has another\n"
    "length; nothing was written), DATA_LOSS (its bytes failed verification; the place holds garbage), ... What is on disk\n"
    "is read ahead, in this order, and copied as it comes: DEADLINE_EXCEEDED where it did not come in time.\n\n"
    "out: one writable buffer for all, n * block_bytes long (or an array whose n rows are each contiguous); or a sequence "
    "of n\n"
    "buffers; or for each block a sequence of pieces; or Pages(...)[ids]. sizes=True: Results.sizes are the blocks' "
    "lengths.\n"
    "timeout in seconds.";
constexpr const char* kSubmitGetDocs =
    "submit_get($self, digests, out, *, part=0, timeout=2.0)\n--\n\n"
    "get() that returns at once with a Submitted; `out` is filled until it is done. ResourceExhausted: 64 are under way.";
constexpr const char* kTouchDocs =
    "touch($self, digests, *, part=0, session=None, stop=None, timeout=2.0)\n--\n\n"
    "Records a use of the chain whose last position is digests[-1]; with a session id or stop reason (at most 255 bytes\n"
    "each) by a message to the node, else without one.";
constexpr const char* kRemoveDocs =
    "remove($self, digests, *, part=0, timeout=2.0)\n--\n\n"
    "Takes blocks away, for every client: Results with OK or NOT_FOUND. Who has one pinned reads on in peace.";
constexpr const char* kFlushDocs =
    "flush($self, *, timeout=2.0)\n--\n\n"
    "Makes all blocks of the namespace unreachable, for every client, and returns how many. This Space, like all others of\n"
    "the namespace, then raises FailedPrecondition until it is opened again.";
constexpr const char* kListDocs =
    "list($self, cursor=0, *, limit=1000, timeout=2.0)\n--\n\n"
    "A page of the namespace's blocks: (list of Listing, next cursor); cursor 0 begins, next cursor 0 is the end.";

}  // namespace

PyObject* make_space(State* state, const std::shared_ptr<Shared>& shared, Space space, PyObject* identity) {
  return guarded([&]() -> PyObject* {
    if (shared->live == nullptr) return raise(state, failed_precondition("this client was closed meanwhile: connect again"));
    std::list<Space>& spaces = shared->live->spaces;
    const auto where = spaces.insert(spaces.end(), std::move(space));
    PyObject* self = make<SpaceValue>(state->space, shared, where, identity);
    if (self == nullptr) spaces.erase(where);
    return self;
  });
}

bool add_space(PyObject* module, State* state) {
  static PyMethodDef kMethods[] = {
      method("digests", digests, kDigestsDocs),
      method("prefix", prefix, kPrefixDocs),
      method("pin", pin, kPinDocs),
      method("contains", contains, kContainsDocs),
      method("get", get, kGetDocs),
      method("submit_get", submit_get, kSubmitGetDocs),
      method("put", space_put, kPutDocs),
      method("submit_put", space_submit_put, kSubmitPutDocs),
      method("reserve", space_reserve, kReserveDocs),
      method("touch", touch, kTouchDocs),
      method("remove", remove, kRemoveDocs),
      method("flush", flush, kFlushDocs),
      method("list", list_blocks, kListDocs),
      {"_check", check_results, METH_O,
       "_check($self, results, /)\n--\n\nRaises what a whole call failed of, else returns its results."},
      {}};
  static PyGetSetDef kProperties[] = {
      {"identity", identity_of, nullptr, "The kvist.Identity that it was opened with.", nullptr},
      {"id", id_of, nullptr, "The namespace's id: 32 bytes.", nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kSpaceDocs)},
                                 {Py_tp_dealloc, slot(Object<SpaceValue>::dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_tp_getset, kProperties},
                                 {Py_tp_repr, slot(repr)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Space", sizeof(Object<SpaceValue>), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};
  return add_type(module, &kSpec, &state->space);
}

}  // namespace kvist::python
