#include "results.h"

#include <algorithm>
#include <string>

namespace kvist::python {

namespace {

// Followed by the sizes, if any, and the codes.
struct ResultsObject {
  PyObject_VAR_HEAD  // ob_size: bytes that follow
      size_t blocks;
  bool with_sizes;
};

ResultsObject* object_of(PyObject* self) { return reinterpret_cast<ResultsObject*>(self); }
std::byte* tail_of(PyObject* self) { return reinterpret_cast<std::byte*>(object_of(self) + 1); }

size_t count_of(PyObject* self, StatusCode code) {
  const std::span<StatusCode> codes = codes_of(self);
  return static_cast<size_t>(std::count(codes.begin(), codes.end(), code));
}

Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(object_of(self)->blocks); }

PyObject* item(PyObject* self, Py_ssize_t index) {
  const std::span<StatusCode> codes = codes_of(self);
  if (index < 0 || static_cast<size_t>(index) >= codes.size()) {
    PyErr_SetString(PyExc_IndexError, "no such block");
    return nullptr;
  }
  return code_object(state_of_object(self), codes[static_cast<size_t>(index)]);
}

bool read_code(PyObject* value, StatusCode* out) {
  uint64_t number = 0;
  if (!read_uint(value, "code", UINT8_MAX, &number)) return false;
  *out = static_cast<StatusCode>(number);
  return true;
}

PyObject* count(PyObject* self, PyObject* value) {
  StatusCode code;
  return read_code(value, &code) ? PyLong_FromSize_t(count_of(self, code)) : nullptr;
}

PyObject* where(PyObject* self, PyObject* value) {
  StatusCode code;
  Ref list(PyList_New(0));
  if (!list || !read_code(value, &code)) return nullptr;
  const std::span<StatusCode> codes = codes_of(self);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] != code) continue;
    Ref index(PyLong_FromSize_t(i));
    if (!index || PyList_Append(list.get(), index.get()) != 0) return nullptr;
  }
  return list.release();
}

bool fine(StatusCode code) { return code == StatusCode::kOk || code == StatusCode::kAlreadyExists; }

PyObject* check(PyObject* self, PyObject*) {
  const std::span<StatusCode> codes = codes_of(self);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (fine(codes[i])) continue;
    return raise(state_of_object(self),
                 Status(codes[i], "block " + std::to_string(i) + " of " + std::to_string(codes.size()) + ": " +
                                      std::string(status_code_name(codes[i]))));
  }
  return Py_NewRef(self);
}

PyObject* done(PyObject* self, void*) { return PyLong_FromSize_t(count_of(self, StatusCode::kOk)); }
PyObject* ok(PyObject* self, void*) {
  const std::span<StatusCode> codes = codes_of(self);
  return PyBool_FromLong(std::all_of(codes.begin(), codes.end(), fine));
}
PyObject* sizes(PyObject* self, void*) {
  if (!object_of(self)->with_sizes) return Py_NewRef(Py_None);
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const uint32_t size : sizes_of(self)) {
    Ref number(PyLong_FromUnsignedLong(size));
    if (!number || PyList_Append(list.get(), number.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* repr(PyObject* self) {
  std::string text = "<kvist.Results of " + std::to_string(length(self)) + ":";
  for (size_t number = 0; number < kStatusCodes; ++number) {
    const auto code = static_cast<StatusCode>(number);
    const size_t times = count_of(self, code);
    if (times > 0) text += " " + std::to_string(times) + " " + std::string(status_code_name(code));
  }
  text += ">";
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const std::span<StatusCode> codes = codes_of(self);
  return PyBuffer_FillInfo(view, self, codes.data(), static_cast<Py_ssize_t>(codes.size()), 1, flags);
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

constexpr const char* kDocs =
    "What became of each block of a call: a sequence of kvist.Code, one byte each (the buffer protocol shows them as "
    "uint8).\n\n"
    "``done`` counts OK. ``ok`` is True when every block is OK or, for a put, ALREADY_EXISTS. ``count(code)``,\n"
    "``where(code)``: how many, and which. ``check()`` raises the first failure as its exception and else returns this.";

}  // namespace

PyObject* make_results(State* state, size_t size, bool with_sizes) {
  const size_t tail = size + (with_sizes ? size * sizeof(uint32_t) : 0);
  PyObject* self =
      reinterpret_cast<PyObject*>(PyObject_NewVar(ResultsObject, state->results, static_cast<Py_ssize_t>(tail)));
  if (self == nullptr) return nullptr;
  object_of(self)->blocks = size;
  object_of(self)->with_sizes = with_sizes;
  std::fill_n(tail_of(self), tail, std::byte{});
  const std::span<StatusCode> codes = codes_of(self);
  std::fill(codes.begin(), codes.end(), StatusCode::kCancelled);
  return self;
}

std::span<uint32_t> sizes_of(PyObject* self) {
  if (!object_of(self)->with_sizes) return {};
  return {reinterpret_cast<uint32_t*>(tail_of(self)), object_of(self)->blocks};
}
std::span<StatusCode> codes_of(PyObject* self) {
  std::byte* at = tail_of(self) + sizes_of(self).size_bytes();
  return {reinterpret_cast<StatusCode*>(at), object_of(self)->blocks};
}

bool add_results(PyObject* module, State* state) {
  static PyMethodDef kMethods[] = {
      {"count", count, METH_O, "count($self, code, /)\n--\n\nHow many blocks ended with this kvist.Code."},
      {"where", where, METH_O,
       "where($self, code, /)\n--\n\nA list of the indices of the blocks that ended with this kvist.Code."},
      plain_method("check", check,
                   "check($self)\n--\n\nRaises the first failure (a kvist.Error that names the block), else returns this."),
      {}};
  static PyGetSetDef kProperties[] = {
      {"done", done, nullptr, "How many blocks are OK: read, stored, or there.", nullptr},
      {"ok", ok, nullptr, "Whether every block is OK or ALREADY_EXISTS.", nullptr},
      {"sizes", sizes, nullptr, "Of get(..., sizes=True): each block's length in bytes, 0 where it missed. Else None.",
       nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kDocs)},
                                 {Py_tp_dealloc, slot(dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_tp_getset, kProperties},
                                 {Py_tp_repr, slot(repr)},
                                 {Py_sq_length, slot(length)},
                                 {Py_sq_item, slot(item)},
                                 {Py_bf_getbuffer, slot(get_buffer)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Results", sizeof(ResultsObject), 1,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};
  return add_type(module, &kSpec, &state->results);
}

}  // namespace kvist::python
