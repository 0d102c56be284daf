// kvist.mooncake.BufferHandle: a value's private, writable copy, with the methods that callers of that module expect. In C
// because a class of Python 3.11 cannot have the buffer protocol.
#include <cstdlib>

#include "module.h"

namespace kvist::python {

namespace {

constexpr const char* kDocs =
    "BufferHandle(nbytes)\n"
    "--\n\n"
    "Writable memory of its own, from MooncakeDistributedStore.get_buffer(): one dimension of bytes (buffer protocol, "
    "format\n"
    "'b'). ``size()`` and ``len()`` are its length, ``ptr()`` its address, valid as long as it or a view of it lives.";

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

struct HandleValue {
  std::unique_ptr<void, FreeMemory> memory;
  Py_ssize_t size = 0;
};
HandleValue& value_of(PyObject* self) { return Object<HandleValue>::of(self); }

PyObject* new_handle(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* kNames[] = {"nbytes", nullptr};
  HandleValue value;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "n:BufferHandle", const_cast<char**>(kNames), &value.size) == 0) {
    return nullptr;
  }
  if (value.size < 0) return PyErr_Format(PyExc_ValueError, "nbytes must not be negative");
  const size_t rounded = (static_cast<size_t>(value.size) / kAlignment + 1) * kAlignment;
  value.memory.reset(std::aligned_alloc(kAlignment, rounded));
  if (value.memory == nullptr) return PyErr_NoMemory();
  return guarded([&]() -> PyObject* { return make<HandleValue>(type, std::move(value)); });
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  static char kFormat[] = "b";
  HandleValue& value = value_of(self);
  if (PyBuffer_FillInfo(view, self, value.memory.get(), value.size, 0, flags) != 0) return -1;
  if (view->format != nullptr) view->format = kFormat;
  return 0;
}

Py_ssize_t length(PyObject* self) { return value_of(self).size; }
PyObject* size(PyObject* self, PyObject*) { return PyLong_FromSsize_t(value_of(self).size); }
PyObject* ptr(PyObject* self, PyObject*) { return PyLong_FromVoidPtr(value_of(self).memory.get()); }

}  // namespace

bool add_handle(PyObject* module, State* state) {
  static PyMethodDef kMethods[] = {plain_method("size", size, "size($self)\n--\n\nLength in bytes."),
                                   plain_method("ptr", ptr, "ptr($self)\n--\n\nAddress of the first byte."),
                                   {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kDocs)},
                                 {Py_tp_new, slot(new_handle)},
                                 {Py_tp_dealloc, slot(Object<HandleValue>::dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_mp_length, slot(length)},
                                 {Py_bf_getbuffer, slot(get_buffer)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.mooncake.BufferHandle", sizeof(Object<HandleValue>), 0, Py_TPFLAGS_DEFAULT, kSlots};
  return add_type(module, &kSpec, &state->handle);
}

}  // namespace kvist::python
