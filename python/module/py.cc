#include "py.h"

#include <algorithm>
#include <string>

#include "base/units.h"

namespace kvist::python {

namespace {

bool sort_keyword(const Signature& signature, PyObject* name, PyObject* value, std::span<PyObject*> out) {
  for (size_t i = 0; i < signature.names.size(); ++i) {
    if (PyUnicode_CompareWithASCIIString(name, signature.names[i]) != 0) continue;
    if (out[i] != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() got two values for '%s'", signature.function, signature.names[i]);
      return false;
    }
    out[i] = value;
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s() has no argument '%U'", signature.function, name);
  return false;
}

}  // namespace

bool sort_arguments(const Signature& signature, PyObject* const* given, Py_ssize_t count, PyObject* keywords,
                    std::span<PyObject*> out) {
  std::fill(out.begin(), out.end(), nullptr);
  if (static_cast<size_t>(count) > signature.positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments without a name, not %zd", signature.function,
                 signature.positional, count);
    return false;
  }
  std::copy_n(given, count, out.begin());
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_Size(keywords);
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (!sort_keyword(signature, PyTuple_GetItem(keywords, i), given[count + i], out)) return false;
  }
  for (size_t i = 0; i < signature.required; ++i) {
    if (out[i] != nullptr) continue;
    PyErr_Format(PyExc_TypeError, "%s() needs '%s'", signature.function, signature.names[i]);
    return false;
  }
  return true;
}

bool read_bool(PyObject* value, bool* out) {
  if (!given(value)) return true;
  const int truth = PyObject_IsTrue(value);
  if (truth >= 0) *out = truth != 0;
  return truth >= 0;
}

bool read_uint(PyObject* value, const char* name, uint64_t most, uint64_t* out) {
  if (!given(value)) return true;
  Ref number(PyNumber_Index(value));
  if (!number) return false;
  int overflow = 0;
  const long long read = PyLong_AsLongLongAndOverflow(number.get(), &overflow);
  if (read == -1 && overflow == 0 && PyErr_Occurred() != nullptr) return false;
  if (overflow != 0 || read < 0 || static_cast<uint64_t>(read) > most) {
    PyErr_Format(PyExc_ValueError, "%s must be from 0 to %llu, not %S", name, static_cast<unsigned long long>(most), value);
    return false;
  }
  *out = static_cast<uint64_t>(read);
  return true;
}

bool read_text(PyObject* value, const char* name, std::string_view* out) {
  if (!given(value)) return true;
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyUnicode_Check(value)) {
    const char* text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text == nullptr) return false;
    *out = {text, static_cast<size_t>(size)};
    return true;
  }
  if (PyBytes_Check(value)) {
    if (PyBytes_AsStringAndSize(value, &data, &size) != 0) return false;
    *out = {data, static_cast<size_t>(size)};
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s must be str or bytes, not %R", name, reinterpret_cast<PyObject*>(Py_TYPE(value)));
  return false;
}

bool read_size(PyObject* value, const char* name, uint64_t* out) {
  if (!given(value)) return true;
  if (!PyUnicode_Check(value)) return read_uint(value, name, INT64_MAX, out);
  std::string_view text;
  if (!read_text(value, name, &text)) return false;
  const StatusOr<uint64_t> size = parse_size(text);
  if (!size.ok()) {
    PyErr_Format(PyExc_ValueError, "%s: %s", name, std::string(size.status().message()).c_str());
    return false;
  }
  *out = *size;
  return true;
}

}  // namespace kvist::python
