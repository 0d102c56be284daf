#include "views.h"

#include <algorithm>

#include "base/copy.h"
#include "dlpack.h"
#include "results.h"

namespace kvist::python {

namespace {

// ---- the two that hold pins ---------------------------------------------------------------------------------------

// Value of both kvist.Prefix and kvist.Pinned.
struct HolderValue {
  std::shared_ptr<Held> held;  // null: closed
  int process = 0;
  Ref results;  // Pinned
  // Prefix: what stays true after close()
  uint32_t size = 0, on_disk = 0;
  Status status{};
  std::vector<Run> runs;
};

HolderValue& holder_of(PyObject* self) { return Object<HolderValue>::of(self); }

bool is_prefix(PyObject* self) { return Py_TYPE(self) == state_of_object(self)->prefix; }

PyObject* released_error() {
  PyErr_SetString(PyExc_ValueError,
                  "the pins of this block were given back (its `with` block was left, or close() was called): its bytes may "
                  "be overwritten. Read it before, or keep a view of it");
  return nullptr;
}

void release_pins(PyObject* self) { const std::shared_ptr<Held> held = std::exchange(holder_of(self).held, nullptr); }

PyObject* close_holder(PyObject* self, PyObject*) {
  release_pins(self);
  return Py_NewRef(Py_None);
}
PyObject* enter_holder(PyObject* self, PyObject*) { return Py_NewRef(self); }
PyObject* exit_holder(PyObject* self, PyObject*) {
  release_pins(self);
  return Py_NewRef(Py_None);
}
PyObject* is_closed(PyObject* self, void*) { return PyBool_FromLong(holder_of(self).held == nullptr); }

// The blocks as the library shows them. Of a Pinned those that missed have no data.
size_t block_count(PyObject* owner) {
  const HolderValue& value = holder_of(owner);
  if (value.held == nullptr) return 0;
  return is_prefix(owner) ? value.held->prefix.blocks().size() : value.held->pinned.size();
}
const Block* block_at(PyObject* owner, size_t index) {
  const HolderValue& value = holder_of(owner);
  if (is_prefix(owner)) return &value.held->prefix.blocks()[index];
  return value.held->pinned[index];
}

// ---- a block ------------------------------------------------------------------------------------------------------

struct BlockValue {
  Ref owner;  // the Prefix or Pinned
  Block block;
};
BlockValue& block_of(PyObject* self) { return Object<BlockValue>::of(self); }

PyObject* make_block(PyObject* owner, size_t index) {
  const Block* block = block_at(owner, index);
  if (block == nullptr) return Py_NewRef(Py_None);
  return make<BlockValue>(state_of_object(owner)->block, Ref::borrowed(owner), *block);
}

// Pins for a view; null with an exception when there are none any more.
std::shared_ptr<Held> pins_for_view(PyObject* self) {
  const HolderValue& owner = holder_of(block_of(self).owner.get());
  if (owner.process != getpid()) {
    raise_forked(state_of_object(self));
    return nullptr;
  }
  if (owner.held == nullptr) released_error();
  return owner.held;
}

int block_buffer(PyObject* self, Py_buffer* view, int flags) {
  std::shared_ptr<Held> held = pins_for_view(self);
  if (held == nullptr) {
    view->obj = nullptr;
    return -1;
  }
  auto keep = std::make_unique<std::shared_ptr<Held>>(std::move(held));
  const Block& block = block_of(self).block;
  if (PyBuffer_FillInfo(view, self, const_cast<std::byte*>(block.data), block.size, 1, flags) != 0) return -1;
  view->internal = keep.release();
  return 0;
}
void block_buffer_done(PyObject*, Py_buffer* view) { delete static_cast<std::shared_ptr<Held>*>(view->internal); }

PyObject* block_tensor(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  std::shared_ptr<Held> held = pins_for_view(self);
  if (held == nullptr) return nullptr;
  const Block& block = block_of(self).block;
  return export_tensor(std::move(held), const_cast<std::byte*>(block.data), block.size, true, arguments, count, keywords);
}
PyObject* block_device(PyObject*, PyObject*) { return cpu_device(); }

PyObject* block_bytes(PyObject* self, PyObject*) {
  const std::shared_ptr<Held> held = pins_for_view(self);
  if (held == nullptr) return nullptr;
  const Block& block = block_of(self).block;
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(block.data), block.size);
}
Py_ssize_t block_size(PyObject* self) { return block_of(self).block.size; }
PyObject* block_nbytes(PyObject* self, void*) { return PyLong_FromUnsignedLong(block_of(self).block.size); }
PyObject* block_position(PyObject* self, void*) { return PyLong_FromUnsignedLong(block_of(self).block.position); }
PyObject* block_part(PyObject* self, void*) { return PyLong_FromUnsignedLong(block_of(self).block.part); }
PyObject* block_address(PyObject* self, void*) {
  if (pins_for_view(self) == nullptr) return nullptr;
  return PyLong_FromVoidPtr(const_cast<std::byte*>(block_of(self).block.data));
}

// ---- the sequence of blocks ---------------------------------------------------------------------------------------

struct BlocksValue {
  Ref owner;
};

Py_ssize_t blocks_length(PyObject* self) {
  return static_cast<Py_ssize_t>(block_count(Object<BlocksValue>::of(self).owner.get()));
}
PyObject* blocks_item(PyObject* self, Py_ssize_t index) {
  PyObject* owner = Object<BlocksValue>::of(self).owner.get();
  if (holder_of(owner).held == nullptr) return released_error();
  if (index < 0 || static_cast<size_t>(index) >= block_count(owner)) {
    PyErr_SetString(PyExc_IndexError, "no such block");
    return nullptr;
  }
  return make_block(owner, static_cast<size_t>(index));
}
PyObject* blocks_of(PyObject* self, void*) {
  if (holder_of(self).held == nullptr) return released_error();
  return make<BlocksValue>(state_of_object(self)->blocks, Ref::borrowed(self));
}

// ---- Prefix -------------------------------------------------------------------------------------------------------

Py_ssize_t prefix_length(PyObject* self) { return holder_of(self).size; }
PyObject* prefix_code(PyObject* self, void*) { return code_object(state_of_object(self), holder_of(self).status.code()); }
PyObject* prefix_message(PyObject* self, void*) {
  const std::string_view text = holder_of(self).status.message();
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}
PyObject* prefix_on_disk(PyObject* self, void*) { return PyLong_FromUnsignedLong(holder_of(self).on_disk); }
PyObject* prefix_runs(PyObject* self, void*) {
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const Run& run : holder_of(self).runs) {
    Ref one(PyObject_CallFunction(state_of_object(self)->run, "IIKsI", run.begin, run.end,
                                  static_cast<unsigned long long>(run.part_mask),
                                  run.source == Run::Source::kDisk ? "disk" : "dram", run.predicted_us));
    if (!one || PyList_Append(list.get(), one.get()) != 0) return nullptr;
  }
  return list.release();
}
PyObject* prefix_repr(PyObject* self) {
  const HolderValue& value = holder_of(self);
  return PyUnicode_FromFormat("<kvist.Prefix of %u positions%s>", value.size, value.held == nullptr ? ", closed" : "");
}

// ---- Pinned -------------------------------------------------------------------------------------------------------

Py_ssize_t pinned_length(PyObject* self) { return PySequence_Size(holder_of(self).results.get()); }
PyObject* pinned_item(PyObject* self, Py_ssize_t index) {
  if (index < 0 || index >= pinned_length(self)) {
    PyErr_SetString(PyExc_IndexError, "no such block");
    return nullptr;
  }
  if (holder_of(self).held == nullptr) return released_error();
  return make_block(self, static_cast<size_t>(index));
}
PyObject* pinned_results(PyObject* self, void*) { return Py_NewRef(holder_of(self).results.get()); }
PyObject* pinned_hits(PyObject* self, void*) { return PyObject_GetAttrString(holder_of(self).results.get(), "done"); }

// The bytes objects of all blocks are made first, and filled without the GIL: nobody else can see them yet.
PyObject* pinned_copies(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    if (holder_of(self).process != getpid()) return raise_forked(state_of_object(self));
    const std::shared_ptr<Held> held = holder_of(self).held;
    if (held == nullptr) return released_error();
    const size_t count = held->pinned.size();
    Ref list(PyList_New(static_cast<Py_ssize_t>(count)));
    if (!list) return nullptr;
    std::vector<std::pair<char*, const Block*>> copies;
    copies.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const Block* block = held->pinned[i];
      PyObject* bytes = block == nullptr ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(nullptr, block->size);
      if (bytes == nullptr) return nullptr;
      if (block != nullptr && block->size > 0) copies.emplace_back(PyBytes_AsString(bytes), block);
      if (PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), bytes) != 0) return nullptr;
    }
    const Unlocked unlocked;
    const Copier copier;
    for (size_t i = 0; i < copies.size(); ++i) {
      if (i + 1 < copies.size()) prefetch_block(copies[i + 1].second->data, copies[i + 1].second->size);
      copier.copy(copies[i].first, copies[i].second->data, copies[i].second->size);
    }
    return list.release();
  });
}

// ---- words --------------------------------------------------------------------------------------------------------

constexpr const char* kPrefixDocs =
    "The longest usable prefix of a chain, pinned: from Space.prefix(). ``len()`` counts positions.\n\n"
    "While it lives its blocks cannot be evicted or overwritten. Use it in a ``with`` block; leaving it, close(), or the "
    "end\n"
    "of the object gives the pins back, except while views of the blocks (memoryviews, arrays, tensors) are left: then the\n"
    "last of those does. One thread at a time.";
constexpr const char* kPinnedDocs =
    "Blocks pinned one by one, from Space.pin(): a sequence with a Block for each position, or None where it missed;\n"
    "``results`` says why. Lives and ends like a Prefix.";
constexpr const char* kCopiesDocs =
    "copies($self)\n--\n\n"
    "A list with the bytes of each block, copied without the GIL; None where it missed (``results`` says why). For values\n"
    "whose length the reader does not know.";
constexpr const char* kBlockDocs =
    "A block in place, read-only. ``memoryview(block)``, ``numpy.frombuffer(block, dtype)``, ``numpy.from_dlpack(block)`` "
    "and\n"
    "``torch.from_dlpack(block)`` (one dimension of uint8, ``len(block)`` bytes) show the pool's own bytes without a copy, "
    "and\n"
    "keep the pins of its Prefix or Pinned as long as they live; ``bytes(block)`` copies. torch cannot mark memory as\n"
    "read-only: a store into such a tensor ends the process.";
constexpr const char* kCloseDocs =
    "close($self)\n--\n\nGives the pins back now, or with the last view that is left. May be called again.";

PyMethodDef kHolderMethods[] = {plain_method("close", close_holder, kCloseDocs),
                                plain_method("__enter__", enter_holder, nullptr),
                                {"__exit__", exit_holder, METH_VARARGS, nullptr},
                                {}};

}  // namespace

PyObject* make_prefix(State* state, const Shared& shared, Prefix prefix) {
  return guarded([&]() -> PyObject* {
    HolderValue value;
    value.process = shared.process;
    value.size = prefix.size();
    value.on_disk = prefix.on_disk();
    value.status = prefix.status();
    value.runs.assign(prefix.runs().begin(), prefix.runs().end());
    value.held = std::make_shared<Held>(shared.ledger, std::move(prefix));
    return make<HolderValue>(state->prefix, std::move(value));
  });
}

PyObject* make_pinned(State* state, const Shared& shared, Pinned pinned) {
  return guarded([&]() -> PyObject* {
    HolderValue value;
    value.process = shared.process;
    value.results.reset(make_results(state, pinned.size()));
    if (!value.results) return nullptr;
    const std::span<StatusCode> codes = codes_of(value.results.get());
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = pinned.result(i);
    value.held = std::make_shared<Held>(shared.ledger, std::move(pinned));
    return make<HolderValue>(state->pinned, std::move(value));
  });
}

namespace {

constexpr unsigned int kMadeByCalls = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;

bool add_block(PyObject* module, State* state) {
  static PyMethodDef kMethods[] = {
      method("__dlpack__", block_tensor, "The bytes as a DLPack capsule: uint8, one dimension, host memory, read-only."),
      plain_method("__dlpack_device__", block_device, "(1, 0): host memory."),
      plain_method("__bytes__", block_bytes, "A copy of the bytes."),
      {}};
  static PyGetSetDef kProperties[] = {
      {"nbytes", block_nbytes, nullptr, "Length in bytes.", nullptr},
      {"position", block_position, nullptr, "Index into the positions that the call was given.", nullptr},
      {"part", block_part, nullptr, "Which part of the position's state this is.", nullptr},
      {"address", block_address, nullptr, "Where the bytes lie in this process, for device copies; valid while pinned.",
       nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kBlockDocs)},
                                 {Py_tp_dealloc, slot(Object<BlockValue>::dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_tp_getset, kProperties},
                                 {Py_mp_length, slot(block_size)},
                                 {Py_bf_getbuffer, slot(block_buffer)},
                                 {Py_bf_releasebuffer, slot(block_buffer_done)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Block", sizeof(Object<BlockValue>), 0, kMadeByCalls, kSlots};
  return add_type(module, &kSpec, &state->block);
}

bool add_blocks(PyObject* module, State* state) {
  static PyType_Slot kSlots[] = {
      {Py_tp_doc, const_cast<char*>("The blocks of a Prefix, position by position, part by part.")},
      {Py_tp_dealloc, slot(Object<BlocksValue>::dealloc)},
      {Py_sq_length, slot(blocks_length)},
      {Py_sq_item, slot(blocks_item)},
      {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Blocks", sizeof(Object<BlocksValue>), 0, kMadeByCalls, kSlots};
  return add_type(module, &kSpec, &state->blocks);
}

bool add_prefix(PyObject* module, State* state) {
  static PyGetSetDef kProperties[] = {
      {"blocks", blocks_of, nullptr, "Sequence of Block: position by position, part by part within one. Empty for a hint.",
       nullptr},
      {"on_disk", prefix_on_disk, nullptr,
       "Of the usable positions' blocks, how many came from disk (pinned) or are there (a hint).", nullptr},
      {"runs", prefix_runs, nullptr, "List of Run: the usable ones first, then (hints only) what lies behind holes.",
       nullptr},
      {"code", prefix_code, nullptr,
       "Code.OK: it ends at an ordinary hole or at the chain's end; RESOURCE_EXHAUSTED: no more pins; DATA_LOSS: the next "
       "block failed its verification; DEADLINE_EXCEEDED.",
       nullptr},
      {"message", prefix_message, nullptr, "Text for `code`; empty when OK.", nullptr},
      {"closed", is_closed, nullptr, "Whether the pins were given back (or wait for the last view).", nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kPrefixDocs)},
                                 {Py_tp_dealloc, slot(Object<HolderValue>::dealloc)},
                                 {Py_tp_methods, kHolderMethods},
                                 {Py_tp_getset, kProperties},
                                 {Py_tp_repr, slot(prefix_repr)},
                                 {Py_mp_length, slot(prefix_length)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Prefix", sizeof(Object<HolderValue>), 0, kMadeByCalls, kSlots};
  return add_type(module, &kSpec, &state->prefix);
}

bool add_pinned(PyObject* module, State* state) {
  static PyGetSetDef kProperties[] = {
      {"results", pinned_results, nullptr, "Results: OK where there is a block, else why not.", nullptr},
      {"hits", pinned_hits, nullptr, "How many blocks were there.", nullptr},
      {"closed", is_closed, nullptr, "Whether the pins were given back (or wait for the last view).", nullptr},
      {}};
  static PyMethodDef kMethods[] = {
      plain_method("copies", pinned_copies, kCopiesDocs), kHolderMethods[0], kHolderMethods[1], kHolderMethods[2], {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kPinnedDocs)},
                                 {Py_tp_dealloc, slot(Object<HolderValue>::dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_tp_getset, kProperties},
                                 {Py_sq_length, slot(pinned_length)},
                                 {Py_sq_item, slot(pinned_item)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Pinned", sizeof(Object<HolderValue>), 0, kMadeByCalls, kSlots};
  return add_type(module, &kSpec, &state->pinned);
}

}  // namespace

bool add_views(PyObject* module, State* state) {
  return add_block(module, state) && add_blocks(module, state) && add_prefix(module, state) && add_pinned(module, state);
}

}  // namespace kvist::python
