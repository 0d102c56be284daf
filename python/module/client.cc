#include "client.h"

#include <array>
#include <cmath>

#include "digests.h"
#include "identity.h"
#include "submitted.h"

namespace kvist::python {

Live::~Live() {
  const Unlocked unlocked;
  spaces.clear();
  client = Client();
}

std::shared_ptr<Live> use(State* state, const Shared& shared) {
  if (shared.process != getpid()) {
    raise_forked(state);
    return nullptr;
  }
  if (shared.live == nullptr) raise(state, failed_precondition("this client was closed: connect again"));
  return shared.live;
}

bool read_timeout(PyObject* value, Deadline* out) {
  if (!given(value)) return true;
  const double seconds = PyFloat_AsDouble(value);
  if (seconds == -1 && PyErr_Occurred() != nullptr) return false;
  if (std::isnan(seconds) || seconds < 0) {
    PyErr_Format(PyExc_ValueError, "timeout must be seconds from 0 on, not %S", value);
    return false;
  }
  const double most = std::chrono::duration<double>(Deadline::kLongestBudget).count();
  *out = within(std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, most) * 1e9)));
  return true;
}

bool read_timeout(PyObject* value, std::optional<Deadline>* out) {
  return !given(value) || read_timeout(value, &out->emplace());
}

namespace {

using ClientValue = std::shared_ptr<Shared>;
Shared& shared_of(PyObject* self) { return *Object<ClientValue>::of(self); }

PyObject* make_client(PyTypeObject* type, Client client) {
  auto shared = std::make_shared<Shared>();
  shared->process = getpid();
  shared->live = std::make_shared<Live>();
  shared->live->client = std::move(client);
  return make<ClientValue>(type, std::move(shared));
}

State* state_of_type(PyTypeObject* type) { return static_cast<State*>(PyType_GetModuleState(type)); }

bool read_verify(PyObject* value, Verify* out) {
  std::string_view text;
  if (!given(value)) return true;
  if (!read_text(value, "verify", &text)) return false;
  if (text == "never") {
    *out = Verify::kNever;
  } else if (text == "sampled") {
    *out = Verify::kSampled;
  } else if (text == "always") {
    *out = Verify::kAlways;
  } else {
    PyErr_Format(PyExc_ValueError, "verify must be 'never', 'sampled' or 'always', not %R", value);
    return false;
  }
  return true;
}

bool read_string(PyObject* value, const char* name, std::string* out) {
  std::string_view text;
  if (!read_text(value, name, &text)) return false;
  *out = text;
  return true;
}

bool read_socket(PyObject* value, std::string* out) {
  if (!given(value)) return true;
  Ref path;
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(value, &encoded) == 0) return false;
  path.reset(encoded);
  return read_string(encoded, "socket", out);
}

PyObject* new_client(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* kNames[] = {"socket", "domain", "token",         "name",    "verify",
                                 "pins",   "stock",  "wait_for_node", "timeout", nullptr};
  std::array<PyObject*, 9> v{};
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O$OOOOOOOO:Client", const_cast<char**>(kNames), &v[0], &v[1], &v[2],
                                  &v[3], &v[4], &v[5], &v[6], &v[7], &v[8]) == 0) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    ClientOptions options;
    uint64_t pins = options.pins;
    Deadline deadline;
    const bool read = read_socket(v[0], &options.socket) && read_string(v[1], "domain", &options.domain) &&
                      read_string(v[2], "token", &options.token) && read_string(v[3], "name", &options.name) &&
                      read_verify(v[4], &options.verify) && read_uint(v[5], "pins", UINT32_MAX, &pins) &&
                      read_size(v[6], "stock", &options.stock_bytes) && read_bool(v[7], &options.wait_for_node) &&
                      read_timeout(v[8], &deadline);
    if (!read) return nullptr;
    options.pins = static_cast<uint32_t>(pins);
    StatusOr<Client> client = unavailable("not tried");
    {
      const Unlocked unlocked;
      client = Client::connect(options, deadline);
    }
    return client.ok() ? make_client(type, *std::move(client)) : raise(state_of_type(type), client.status());
  });
}

PyObject* embedded(PyObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* kNames[] = {"memory", "max_blocks", "verify", "pins", nullptr};
  std::array<PyObject*, 4> v{};
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|O$OOO:embedded", const_cast<char**>(kNames), &v[0], &v[1], &v[2],
                                  &v[3]) == 0) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    EmbeddedOptions options;
    uint64_t pins = options.pins, blocks = 0;
    if (!read_size(v[0], "memory", &options.memory_bytes) || !read_uint(v[1], "max_blocks", UINT32_MAX, &blocks) ||
        !read_verify(v[2], &options.verify) || !read_uint(v[3], "pins", UINT32_MAX, &pins)) {
      return nullptr;
    }
    options.max_blocks = static_cast<uint32_t>(blocks);
    options.pins = static_cast<uint32_t>(pins);
    StatusOr<Client> client = unavailable("not tried");
    {
      const Unlocked unlocked;
      client = Client::embedded(options);
    }
    auto* made = reinterpret_cast<PyTypeObject*>(type);
    return client.ok() ? make_client(made, *std::move(client)) : raise(state_of_type(made), client.status());
  });
}

PyObject* open_space(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"identity", "timeout"};
  std::array<PyObject*, 2> values;
  State* state = state_of_object(self);
  Deadline deadline;
  if (!sort_arguments({"open", kNames, 1, 1}, given_values, count, keywords, values) ||
      !read_timeout(values[1], &deadline)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    Identity identity;
    if (!read_identity(values[0], &identity)) return nullptr;
    const std::shared_ptr<Live> live = use(state, shared_of(self));
    if (live == nullptr) return nullptr;
    StatusOr<Space> space = unavailable("not tried");
    {
      const Unlocked unlocked;
      space = live->client.open(identity, deadline);
    }
    if (!space.ok()) return raise(state, space.status());
    return make_space(state, Object<ClientValue>::of(self), *std::move(space), values[0]);
  });
}

// ---- its end ------------------------------------------------------------------------------------------------------

PyObject* close_client(PyObject* self, PyObject*) {
  State* state = state_of_object(self);
  Shared& shared = shared_of(self);
  if (shared.process != getpid()) {  // a forked child has nothing to close, and its parent goes on
    shared.live = nullptr;
    return PyLong_FromLong(0);
  }
  std::shared_ptr<Live> live = std::exchange(shared.live, nullptr);
  if (live == nullptr) return PyLong_FromLong(0);
  live.reset();
  const Ref kept = std::move(shared.keeps);  // ends with this call, when what is left has been told
  const unsigned long long pinned = shared.ledger->pinned_blocks.load(), rooms = shared.ledger->rooms.load();
  if (pinned + rooms > 0) {
    const int raised = PyErr_WarnFormat(
        state->pins_left, 1,
        "the client was closed while %llu pins and %llu reserved rooms are left: a Prefix, Pinned, Batch, memoryview, "
        "array or tensor over pool memory is left. They stay readable, and stay in the pool, until it is dropped",
        pinned, rooms);
    if (raised != 0) return nullptr;
  }
  return PyLong_FromUnsignedLongLong(pinned + rooms);
}
PyObject* keep(PyObject* self, PyObject* what) {
  shared_of(self).keeps = Ref::borrowed(what);
  return Py_NewRef(Py_None);
}
PyObject* enter(PyObject* self, PyObject*) { return Py_NewRef(self); }
PyObject* exit(PyObject* self, PyObject*) {
  Ref left(close_client(self, nullptr));
  return left ? Py_NewRef(Py_None) : nullptr;
}

// ---- what it says -------------------------------------------------------------------------------------------------

PyObject* connected(PyObject* self, void*) {
  const Shared& shared = shared_of(self);
  return PyBool_FromLong(shared.process == getpid() && shared.live != nullptr && shared.live->client.connected());
}
PyObject* closed(PyObject* self, void*) { return PyBool_FromLong(shared_of(self).live == nullptr); }
PyObject* pinned_blocks(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(shared_of(self).ledger->pinned_blocks.load());
}

PyObject* stats(PyObject* self, PyObject*) {
  State* state = state_of_object(self);
  const std::shared_ptr<Live> live = use(state, shared_of(self));
  if (live == nullptr) return nullptr;
  const ClientStats s = live->client.stats();
  return PyObject_CallFunction(state->stats, "KKKKKKKKKKKKKKKK", s.hits, s.misses, s.bytes_got, s.bytes_put, s.blocks_put,
                               s.already_there, s.verified, s.corrupt, s.pins_refused, s.put_refused, s.unavailable,
                               s.deadline_exceeded, s.reconnects, s.reports_dropped, s.brought, s.bring_failed);
}

bool read_report(PyObject* value, Client::Report* out) {
  std::string_view text = "node";
  if (!read_text(value, "what", &text)) return false;
  if (text == "node") {
    *out = Client::Report::kNode;
  } else if (text == "clients") {
    *out = Client::Report::kClients;
  } else if (text == "spaces") {
    *out = Client::Report::kSpaces;
  } else {
    PyErr_Format(PyExc_ValueError, "report() tells of 'node', 'clients' or 'spaces', not of %R", value);
    return false;
  }
  return true;
}

PyObject* report(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"what", "timeout"};
  std::array<PyObject*, 2> values;
  State* state = state_of_object(self);
  Deadline deadline;
  Client::Report what = Client::Report::kNode;
  if (!sort_arguments({"report", kNames, 1, 0}, given_values, count, keywords, values) || !read_report(values[0], &what) ||
      !read_timeout(values[1], &deadline)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    const std::shared_ptr<Live> live = use(state, shared_of(self));
    if (live == nullptr) return nullptr;
    StatusOr<std::string> text = unavailable("not tried");
    {
      const Unlocked unlocked;
      text = live->client.report(what, deadline);
    }
    if (!text.ok()) return raise(state, text.status());
    Ref json(PyImport_ImportModule("json"));
    if (!json) return nullptr;
    return PyObject_CallMethod(json.get(), "loads", "s#", text->data(), static_cast<Py_ssize_t>(text->size()));
  });
}

// ---- submitted calls ----------------------------------------------------------------------------------------------

PyObject* completion_fd(PyObject* self, PyObject*) {
  State* state = state_of_object(self);
  const std::shared_ptr<Live> live = use(state, shared_of(self));
  if (live == nullptr) return nullptr;
  const int fd = live->client.completion_fd();
  return fd >= 0 ? PyLong_FromLong(fd) : raise(state, resource_exhausted("no eventfd could be made: see `ulimit -n`"));
}

PyObject* poll(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"timeout"};
  std::array<PyObject*, 1> values;
  Deadline deadline = within(std::chrono::nanoseconds(0));
  State* state = state_of_object(self);
  if (!sort_arguments({"poll", kNames, 1, 0}, given_values, count, keywords, values) ||
      !read_timeout(values[0], &deadline)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    const std::shared_ptr<Live> live = use(state, shared_of(self));
    if (live == nullptr) return nullptr;
    std::array<Completion, Client::kMaxSubmitted> finished;
    size_t taken = 0;
    {
      const Unlocked unlocked;
      taken = live->client.poll(finished, deadline);
    }
    Ref list(PyList_New(0));
    for (size_t i = 0; list && i < taken; ++i) {
      Ref call = finish_submitted(*live, finished[i]);
      if (call && PyList_Append(list.get(), call.get()) != 0) return nullptr;
    }
    return list.release();
  });
}

// ---- words --------------------------------------------------------------------------------------------------------

constexpr const char* kClientDocs =
    "Client(socket=None, *, domain='', token=None, name=None, verify='sampled', pins=16384, stock='64MiB',\n"
    "       wait_for_node=False, timeout=2.0)\n"
    "--\n\n"
    "A connection to this host's node.\n\n"
    "socket: path; None: $KVIST_SOCKET, else the first that exists of $XDG_RUNTIME_DIR/kvist.sock and\n"
    "/run/kvist/node.sock. domain, token: the tenant's pool and what it asks for. name: shown by `kvist clients`.\n"
    "verify: 'never', 'sampled' (one read in 64) or 'always' compare a block's checksum before it is handed out.\n"
    "pins: blocks that may be pinned at once. stock: bytes of empty slots kept ready for puts. wait_for_node: connect "
    "later,\n"
    "by itself, instead of raising Unavailable now. timeout: seconds.\n\n"
    "May be used by any thread; calls that copy or wait let other threads run. A forked child cannot use it (Forked): it\n"
    "connects anew. Losing the node raises Unavailable until the client has reconnected by itself.";
constexpr const char* kEmbeddedDocs =
    "embedded(memory='1GiB', *, max_blocks=0, verify='sampled', pins=16384)\n"
    "--\n\n"
    "A pool in this process, without a node: nobody else can read it, and it ends with the process. max_blocks 0: one for\n"
    "each 16 KiB.";
constexpr const char* kOpenDocs =
    "open($self, identity, *, timeout=2.0)\n--\n\n"
    "The Space of a kvist.Identity. FailedPrecondition when its alias is in use for another identity: the message names "
    "the\n"
    "differing field.";
constexpr const char* kCloseDocs =
    "close($self)\n--\n\n"
    "Says goodbye to the node; every later call of this client and its spaces raises FailedPrecondition. Returns how many\n"
    "pins and reserved rooms are left, held by objects that are (two pins of one block count two), and warns\n"
    "(PinsLeftWarning) when that is not 0: views stay readable, and their blocks in the pool, until they are dropped. May\n"
    "be called again.";
constexpr const char* kReportDocs =
    "report($self, what='node', *, timeout=2.0)\n--\n\n"
    "What the node says of itself ('node': capacity_bytes, used_bytes, blocks, pinned, hit_rate, ...), of its 'clients' or "
    "of\n"
    "its 'spaces', as the dicts and lists of its JSON. Pins are those of its last count, at most a tick (a second) ago.";
constexpr const char* kPollDocs =
    "poll($self, timeout=0.0)\n--\n\n"
    "A list of the Submitted calls that have finished; waits up to `timeout` seconds for the first.";

}  // namespace

bool add_client(PyObject* module, State* state) {
  static PyMethodDef kMethods[] = {
      {"embedded", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(embedded)),
       METH_CLASS | METH_VARARGS | METH_KEYWORDS, kEmbeddedDocs},
      method("open", open_space, kOpenDocs),
      plain_method("close", close_client, kCloseDocs),
      plain_method("stats", stats, "stats($self)\n--\n\nkvist.Stats: what this client has done since it connected."),
      method("report", report, kReportDocs),
      plain_method("completion_fd", completion_fd,
                   "completion_fd($self)\n--\n\nA descriptor that is readable while poll() has something to give. Owned by "
                   "the client."),
      method("poll", poll, kPollDocs),
      {"_keep", keep, METH_O,
       "_keep($self, what, /)\n--\n\nHolds an object until close(), or until this client and its spaces are gone."},
      plain_method("__enter__", enter, nullptr),
      {"__exit__", exit, METH_VARARGS, nullptr},
      {}};
  static PyGetSetDef kProperties[] = {
      {"connected", connected, nullptr, "Whether there is a node right now.", nullptr},
      {"closed", closed, nullptr, "Whether close() was called.", nullptr},
      {"pinned_blocks", pinned_blocks, nullptr,
       "Pins that objects and views of this client hold: two of one block count two.", nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kClientDocs)},
                                 {Py_tp_new, slot(new_client)},
                                 {Py_tp_dealloc, slot(Object<ClientValue>::dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_tp_getset, kProperties},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Client", sizeof(Object<ClientValue>), 0, Py_TPFLAGS_DEFAULT, kSlots};
  return add_type(module, &kSpec, &state->client);
}

}  // namespace kvist::python
