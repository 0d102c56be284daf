#include "batch.h"

#include <unistd.h>

#include "buffers.h"
#include "dlpack.h"
#include "results.h"

namespace kvist::python {

namespace {

struct Reserved {
  Reserved(std::shared_ptr<Ledger> of, Batch&& from) : ledger(std::move(of)), batch(std::move(from)) {
    for (size_t i = 0; i < batch.size(); ++i) rooms += batch.result(i) == StatusCode::kOk ? 1 : 0;
    ledger->rooms.fetch_add(rooms, std::memory_order_relaxed);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() { settle(); }
  // The room is given back or has become blocks.
  void settle() { ledger->rooms.fetch_sub(std::exchange(rooms, 0), std::memory_order_relaxed); }

  const std::shared_ptr<Ledger> ledger;
  Batch batch;
  uint64_t rooms = 0;
};

struct BatchValue {
  std::shared_ptr<Reserved> reserved;  // null: committed, aborted or closed
  Ref results;
  int process = 0;
};
BatchValue& batch_of(PyObject* self) { return Object<BatchValue>::of(self); }

struct RoomValue {
  Ref owner;  // the Batch
  size_t index = 0;
};

std::shared_ptr<Reserved> open_batch(PyObject* self) {
  const BatchValue& value = batch_of(self);
  if (value.process != getpid()) {
    raise_forked(state_of_object(self));
    return nullptr;
  }
  if (value.reserved == nullptr) PyErr_SetString(PyExc_ValueError, "this batch was committed or aborted: reserve again");
  return value.reserved;
}

void read_results(PyObject* self) {
  const BatchValue& value = batch_of(self);
  const std::span<StatusCode> codes = codes_of(value.results.get());
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = value.reserved->batch.result(i);
}

// ---- Room ---------------------------------------------------------------------------------------------------------

RoomValue& room_of(PyObject* self) { return Object<RoomValue>::of(self); }

int room_buffer(PyObject* self, Py_buffer* view, int flags) {
  std::shared_ptr<Reserved> reserved = open_batch(room_of(self).owner.get());
  if (reserved == nullptr) {
    view->obj = nullptr;
    return -1;
  }
  const std::span<std::byte> bytes = reserved->batch[room_of(self).index];
  auto keep = std::make_unique<std::shared_ptr<Reserved>>(std::move(reserved));
  if (PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), 0, flags) != 0) return -1;
  view->internal = keep.release();
  return 0;
}
void room_buffer_done(PyObject*, Py_buffer* view) { delete static_cast<std::shared_ptr<Reserved>*>(view->internal); }

PyObject* room_tensor(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  std::shared_ptr<Reserved> reserved = open_batch(room_of(self).owner.get());
  if (reserved == nullptr) return nullptr;
  const std::span<std::byte> bytes = reserved->batch[room_of(self).index];
  return export_tensor(std::move(reserved), bytes.data(), bytes.size(), false, arguments, count, keywords);
}
PyObject* room_device(PyObject*, PyObject*) { return cpu_device(); }

Py_ssize_t room_size(PyObject* self) {
  const std::shared_ptr<Reserved> reserved = open_batch(room_of(self).owner.get());
  return reserved == nullptr ? -1 : static_cast<Py_ssize_t>(reserved->batch[room_of(self).index].size());
}

// ---- Batch --------------------------------------------------------------------------------------------------------

Py_ssize_t length(PyObject* self) { return PySequence_Size(batch_of(self).results.get()); }

bool check_index(PyObject* self, Py_ssize_t index) {
  if (index >= 0 && index < length(self)) return true;
  PyErr_SetString(PyExc_IndexError, "no such block");
  return false;
}

PyObject* item(PyObject* self, Py_ssize_t index) {
  if (!check_index(self, index)) return nullptr;
  const std::shared_ptr<Reserved> reserved = open_batch(self);
  if (reserved == nullptr) return nullptr;
  if (reserved->batch.result(static_cast<size_t>(index)) != StatusCode::kOk) return Py_NewRef(Py_None);
  return make<RoomValue>(state_of_object(self)->room, Ref::borrowed(self), static_cast<size_t>(index));
}

PyObject* copy(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"i", "source"};
  std::array<PyObject*, 2> values;
  if (!sort_arguments({"copy", kNames, 2, 2}, given_values, count, keywords, values)) return nullptr;
  return guarded([&]() -> PyObject* {
    const Py_ssize_t index = PyNumber_AsSsize_t(values[0], PyExc_IndexError);
    if ((index == -1 && PyErr_Occurred() != nullptr) || !check_index(self, index)) return nullptr;
    State* state = state_of_object(self);
    Ref one(PyTuple_Pack(1, values[1]));
    Pieces<ConstRange> source;
    if (!one || !source.read(state, one.get(), 1, 0)) return nullptr;
    const std::shared_ptr<Reserved> reserved = open_batch(self);
    if (reserved == nullptr) return nullptr;
    Status status;
    {
      const Unlocked unlocked;
      status = reserved->batch.copy(static_cast<size_t>(index), source.blocks()[0]);
    }
    return status.ok() ? Py_NewRef(Py_None) : raise(state, status);
  });
}

PyObject* commit(PyObject* self, PyObject* const* given_values, Py_ssize_t count, PyObject* keywords) {
  static constexpr const char* kNames[] = {"timeout"};
  std::array<PyObject*, 1> values;
  Deadline deadline;
  if (!sort_arguments({"commit", kNames, 0, 0}, given_values, count, keywords, values) ||
      !read_timeout(values[0], &deadline)) {
    return nullptr;
  }
  std::shared_ptr<Reserved> reserved = open_batch(self);
  if (reserved == nullptr) return nullptr;
  BatchValue& value = batch_of(self);
  if (reserved.use_count() > 2) {  // this one and the batch's own
    PyErr_SetString(PyExc_BufferError,
                    "a view of this batch's room is left (a memoryview, an array or a tensor), and a store through it would "
                    "change a block that others read: drop it (`del`, or memoryview.release()), then commit");
    return nullptr;
  }
  value.reserved = nullptr;  // no new views from here on
  {
    const Unlocked unlocked;
    reserved->batch.commit(deadline);
  }
  reserved->settle();
  const std::span<StatusCode> codes = codes_of(value.results.get());
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = reserved->batch.result(i);
  return Py_NewRef(value.results.get());
}

void give_back(PyObject* self) {
  std::shared_ptr<Reserved> reserved = std::exchange(batch_of(self).reserved, nullptr);
  if (reserved == nullptr) return;
  const Unlocked unlocked;
  reserved.reset();
}

PyObject* abort_batch(PyObject* self, PyObject*) {
  give_back(self);
  return Py_NewRef(Py_None);
}
PyObject* enter(PyObject* self, PyObject*) { return Py_NewRef(self); }
PyObject* exit(PyObject* self, PyObject*) { return abort_batch(self, nullptr); }
PyObject* results(PyObject* self, void*) { return Py_NewRef(batch_of(self).results.get()); }

constexpr const char* kBatchDocs =
    "Room in the pool's own memory for blocks that are absent, from Space.reserve(): a sequence with a Room for each "
    "block,\n"
    "or None where it needs none (``results`` says why: ALREADY_EXISTS, RESOURCE_EXHAUSTED, ...).\n\n"
    "Fill every Room, drop the views of it, then commit(). Leaving the ``with`` block without commit(), or abort(), gives "
    "the\n"
    "room back, as soon as no view of it is left. One thread at a time.";
constexpr const char* kRoomDocs =
    "Writable room for one block: buffer protocol and DLPack (one dimension of uint8, ``len(room)`` bytes), without a "
    "copy.\n"
    "Its bytes are anything at first: write them all.";
constexpr const char* kCopyDocs =
    "copy($self, i, source)\n--\n\n"
    "Copies `source` (one buffer, or a sequence of buffers: the block's pieces in order) into block i's room, with its\n"
    "checksum on the way. Lengths must add up to the block's.";
constexpr const char* kCommitDocs =
    "commit($self, *, timeout=2.0)\n--\n\n"
    "Makes all blocks readable and returns Results: OK, or ALREADY_EXISTS where somebody else was first. The batch is used\n"
    "up by it. BufferError, and nothing is committed, while a view of a Room is left. timeout in seconds.";

}  // namespace

PyObject* make_batch(State* state, const Shared& shared, Batch batch) {
  return guarded([&]() -> PyObject* {
    BatchValue value;
    value.process = shared.process;
    value.results.reset(make_results(state, batch.size()));
    if (!value.results) return nullptr;
    value.reserved = std::make_shared<Reserved>(shared.ledger, std::move(batch));
    Ref self(make<BatchValue>(state->batch, std::move(value)));
    if (self) read_results(self.get());
    return self.release();
  });
}

bool add_batch(PyObject* module, State* state) {
  static PyMethodDef kMethods[] = {
      method("copy", copy, kCopyDocs),
      method("commit", commit, kCommitDocs),
      plain_method("abort", abort_batch,
                   "abort($self)\n--\n\nGives the room back without storing anything. May be called again."),
      plain_method("__enter__", enter, nullptr),
      {"__exit__", exit, METH_VARARGS, nullptr},
      {}};
  static PyGetSetDef kProperties[] = {
      {"results", results, nullptr, "Results: OK where there is room or, after commit(), a block; else why not.", nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kBatchDocs)},
                                 {Py_tp_dealloc, slot(Object<BatchValue>::dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_tp_getset, kProperties},
                                 {Py_sq_length, slot(length)},
                                 {Py_sq_item, slot(item)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Batch", sizeof(Object<BatchValue>), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};
  static PyMethodDef kRoomMethods[] = {method("__dlpack__", room_tensor, "The room as a writable DLPack capsule."),
                                       plain_method("__dlpack_device__", room_device, "(1, 0): host memory."),
                                       {}};
  static PyType_Slot kRoomSlots[] = {{Py_tp_doc, const_cast<char*>(kRoomDocs)},
                                     {Py_tp_dealloc, slot(Object<RoomValue>::dealloc)},
                                     {Py_tp_methods, kRoomMethods},
                                     {Py_mp_length, slot(room_size)},
                                     {Py_bf_getbuffer, slot(room_buffer)},
                                     {Py_bf_releasebuffer, slot(room_buffer_done)},
                                     {0, nullptr}};
  static PyType_Spec kRoom = {"kvist.Room", sizeof(Object<RoomValue>), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kRoomSlots};
  return add_type(module, &kSpec, &state->batch) && add_type(module, &kRoom, &state->room);
}

}  // namespace kvist::python
