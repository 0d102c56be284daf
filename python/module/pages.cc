// kvist.Pages: paged memory of an engine, looked at once and then addressed by page number.
#include "buffers.h"

namespace kvist::python {

namespace {

constexpr const char* kPagesDocs =
    "Pages(arrays, *, writable=True)\n"
    "--\n\n"
    "An engine's paged KV memory: one array, or a sequence of arrays (one a layer, say), each with the page number as its\n"
    "first dimension and the same number of pages; within a page each must be contiguous. ``pages[ids]`` selects pages by\n"
    "number and can be given to Space.put() and Space.get() as sources or destinations: block i is the piece of page "
    "ids[i]\n"
    "of every array, in the order of the arrays. No Python object is made per block or piece.\n\n"
    "The arrays stay in use (a bytearray cannot be resized) as long as this object lives.\n\n"
    "    layers = [torch.empty(1024, 16, 8, 128, dtype=torch.bfloat16) for _ in range(32)]\n"
    "    pages = kvist.Pages(layers)\n"
    "    space.put(chain, pages[[7, 3, 12]])\n\n"
    "writable: False allows read-only arrays; such pages can only be sources.";

bool hold_arrays(PyObject* object, PagesValue* value) {
  const bool one = PyObject_CheckBuffer(object) || !PySequence_Check(object) ||
                   (!PyList_Check(object) && !PyTuple_Check(object) && PyObject_HasAttrString(object, "__dlpack__"));
  const Py_ssize_t count = one ? 1 : PySequence_Size(object);
  if (count < 1) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, "Pages needs at least one array");
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    Ref array = one ? Ref::borrowed(object) : Ref(PySequence_GetItem(object, i));
    if (!array) return false;
    Memory& memory = value->arrays.emplace_back();
    if (!memory.hold(array.get(), value->writable)) {
      prefix_error("array", static_cast<size_t>(i));
      return false;
    }
    if (i == 0) value->pages = memory.rows();
    if (memory.rows() != value->pages) {
      PyErr_Format(PyExc_ValueError, "array %zd has %zu pages, array 0 has %zu", i, memory.rows(), value->pages);
      return false;
    }
    value->page_bytes += memory.row_bytes();
  }
  return true;
}

PyObject* new_pages(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* kNames[] = {"arrays", "writable", nullptr};
  PyObject* arrays = nullptr;
  int writable = 1;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$p:Pages", const_cast<char**>(kNames), &arrays, &writable) == 0) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    Ref self(make<PagesValue>(type));
    if (!self) return nullptr;
    auto& value = Object<PagesValue>::of(self.get());
    value.writable = writable != 0;
    return hold_arrays(arrays, &value) ? self.release() : nullptr;
  });
}

bool add_id(const PagesValue& pages, PyObject* item, SelectionValue* out) {
  Ref number(PyNumber_Index(item));
  if (!number) return false;
  const Py_ssize_t id = PyLong_AsSsize_t(number.get());
  if (id == -1 && PyErr_Occurred() != nullptr) return false;
  if (id < 0 || static_cast<size_t>(id) >= pages.pages) {
    PyErr_Format(PyExc_IndexError, "page %zd of %zu", id, pages.pages);
    return false;
  }
  out->ids.push_back(static_cast<uint32_t>(id));
  return true;
}

PyObject* select(PyObject* self, PyObject* ids) {
  return guarded([&]() -> PyObject* {
    const auto& pages = Object<PagesValue>::of(self);
    Ref selection(make<SelectionValue>(state_of_object(self)->selection));
    if (!selection) return nullptr;
    auto& value = Object<SelectionValue>::of(selection.get());
    value.pages = Ref::borrowed(self);
    // tolist() of an array or a tensor makes plain numbers at once, which is faster than asking it item by item.
    Ref list(PyObject_HasAttrString(ids, "tolist") ? PyObject_CallMethod(ids, "tolist", nullptr) : PySequence_List(ids));
    if (!list) return nullptr;
    if (!PyList_Check(list.get())) {
      PyErr_SetString(PyExc_TypeError, "page numbers must be a one-dimensional sequence");
      return nullptr;
    }
    const Py_ssize_t count = PyList_Size(list.get());
    value.ids.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!add_id(pages, PyList_GetItem(list.get(), i), &value)) return nullptr;
    }
    return selection.release();
  });
}

Py_ssize_t pages_length(PyObject* self) { return static_cast<Py_ssize_t>(Object<PagesValue>::of(self).pages); }
Py_ssize_t selection_length(PyObject* self) { return static_cast<Py_ssize_t>(Object<SelectionValue>::of(self).ids.size()); }
PyObject* page_bytes(PyObject* self, void*) { return PyLong_FromSize_t(Object<PagesValue>::of(self).page_bytes); }

}  // namespace

bool add_pages(PyObject* module, State* state) {
  static PyGetSetDef kProperties[] = {{"page_bytes", page_bytes, nullptr,
                                       "Bytes of one page in all arrays together: the size of the block it makes.", nullptr},
                                      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kPagesDocs)},
                                 {Py_tp_new, slot(new_pages)},
                                 {Py_tp_dealloc, slot(Object<PagesValue>::dealloc)},
                                 {Py_tp_getset, kProperties},
                                 {Py_mp_subscript, slot(select)},
                                 {Py_mp_length, slot(pages_length)},
                                 {0, nullptr}};
  static PyType_Spec kPages = {"kvist.Pages", sizeof(Object<PagesValue>), 0, Py_TPFLAGS_DEFAULT, kSlots};
  static PyType_Slot kSelectionSlots[] = {{Py_tp_doc, const_cast<char*>("Pages selected by number, see Pages.")},
                                          {Py_tp_dealloc, slot(Object<SelectionValue>::dealloc)},
                                          {Py_sq_length, slot(selection_length)},
                                          {0, nullptr}};
  static PyType_Spec kSelection = {"kvist.Selection", sizeof(Object<SelectionValue>), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSelectionSlots};
  return add_type(module, &kPages, &state->pages) && add_type(module, &kSelection, &state->selection);
}

}  // namespace kvist::python
