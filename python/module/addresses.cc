// kvist.Addresses: memory that the caller knows only by address and length, as C programs and engines hand it over.
#include <algorithm>

#include "buffers.h"

namespace kvist::python {

namespace {

constexpr const char* kDocs =
    "Addresses(addresses, sizes)\n"
    "--\n\n"
    "Memory known by its addresses alone (a tensor's data_ptr(), a registered buffer), to be given to Space.put() and\n"
    "Space.get() as sources or destinations. addresses: a sequence with an address for each block, or for each block a\n"
    "sequence of those of its pieces; arrays too. sizes: bytes, in the same form, or one number for all. No Python object "
    "is\n"
    "looked at once it is made, and none is made a block.\n\n"
    "Nothing holds the memory: who made this sees to it that it is there, is writable where it is a destination, and stays\n"
    "until the call that uses it has ended (for submitted ones: until they are done). What can be seen to be wrong is a\n"
    "ValueError with the block's place: a null address of something, a negative number, what no process can have there,\n"
    "lists of unequal length.\n\n"
    "    space.get(chain, kvist.Addresses([tensor.data_ptr()], [tensor.nbytes]))";

// No process of any system that this runs on has memory below or from there on.
constexpr uint64_t kAddressSpaceBegin = 4096, kAddressSpaceEnd = uint64_t{1} << 56;

// Plain numbers at once, which is faster than asking an array or a tensor item by item; others as they are.
Ref plain(PyObject* numbers) {
  if (PyList_Check(numbers) || PyTuple_Check(numbers) || PyLong_Check(numbers)) return Ref::borrowed(numbers);
  if (!PyObject_HasAttrString(numbers, "tolist")) return Ref::borrowed(numbers);
  return Ref(PyObject_CallMethod(numbers, "tolist", nullptr));
}

bool is_sequence(PyObject* value) {
  return PyList_Check(value) || PyTuple_Check(value) || (PySequence_Check(value) && !PyLong_Check(value));
}

// A tuple of what a sequence holds: it stays as it is whatever the caller's code does meanwhile.
Ref items_of(PyObject* given_value, const char* name) {
  Ref numbers = plain(given_value);
  if (!numbers) return {};
  if (!is_sequence(numbers.get()) || PyUnicode_Check(numbers.get()) || PyBytes_Check(numbers.get())) {
    PyErr_Format(PyExc_TypeError, "%s must be a sequence of numbers, not %R", name,
                 reinterpret_cast<PyObject*>(Py_TYPE(given_value)));
    return {};
  }
  return Ref(PySequence_Tuple(numbers.get()));
}

bool read_number(PyObject* value, const char* name, uint64_t* out) {
  Ref number(PyNumber_Index(value));
  if (!number) return false;
  int overflow = 0;
  const long long read = PyLong_AsLongLongAndOverflow(number.get(), &overflow);
  if (read == -1 && overflow == 0 && PyErr_Occurred() != nullptr) return false;
  if (overflow != 0 || read < 0) {
    PyErr_Format(PyExc_ValueError, "%s must be from 0 to 2**63 - 1, not %S", name, value);
    return false;
  }
  *out = static_cast<uint64_t>(read);
  return true;
}

bool add_piece(PyObject* address, PyObject* size, AddressesValue* out) {
  uint64_t at = 0, bytes = 0;
  if (!read_number(address, "an address", &at) || !read_number(size, "a size", &bytes)) return false;
  if (bytes > 0 && (at < kAddressSpaceBegin || at >= kAddressSpaceEnd || bytes > kAddressSpaceEnd - at)) {
    PyErr_Format(PyExc_ValueError, at == 0 ? "the address of %llu bytes is null" : "no process can have %llu bytes there",
                 static_cast<unsigned long long>(bytes));
    return false;
  }
  if (bytes > kAddressSpaceEnd - out->total) {
    PyErr_SetString(PyExc_ValueError, "the sizes add up to more than any process can have");
    return false;
  }
  out->total += bytes;
  out->pieces.push_back({reinterpret_cast<std::byte*>(at), bytes});
  return true;
}

bool unequal(Py_ssize_t addresses, Py_ssize_t sizes) {
  PyErr_Format(PyExc_ValueError, "there are %zd addresses, but %zd sizes", addresses, sizes);
  return false;
}

bool add_block(PyObject* address, PyObject* size, AddressesValue* out) {
  if (PyLong_Check(address) || !is_sequence(address)) return add_piece(address, size, out);
  const bool one_size = !is_sequence(size);
  Ref addresses = items_of(address, "a block's addresses"), sizes;
  if (!addresses || (!one_size && !(sizes = items_of(size, "a block's sizes")))) return false;
  const Py_ssize_t count = PyTuple_Size(addresses.get());
  if (!one_size && PyTuple_Size(sizes.get()) != count) return unequal(count, PyTuple_Size(sizes.get()));
  for (Py_ssize_t p = 0; p < count; ++p) {
    if (add_piece(PyTuple_GetItem(addresses.get(), p), one_size ? size : PyTuple_GetItem(sizes.get(), p), out)) continue;
    prefix_error("piece", static_cast<size_t>(p));
    return false;
  }
  return true;
}

bool read_all(PyObject* given_addresses, PyObject* given_sizes, AddressesValue* out) {
  Ref addresses = items_of(given_addresses, "addresses");
  const bool one_size = PyIndex_Check(given_sizes) != 0 && !is_sequence(given_sizes);
  Ref sizes = one_size || !addresses ? Ref() : items_of(given_sizes, "sizes");
  if (!addresses || (!one_size && !sizes)) return false;
  const Py_ssize_t count = PyTuple_Size(addresses.get());
  if (!one_size && PyTuple_Size(sizes.get()) != count) return unequal(count, PyTuple_Size(sizes.get()));
  out->pieces.reserve(static_cast<size_t>(count));
  out->ends.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!add_block(PyTuple_GetItem(addresses.get(), i), one_size ? given_sizes : PyTuple_GetItem(sizes.get(), i), out)) {
      prefix_error("block", static_cast<size_t>(i));
      return false;
    }
    out->ends.push_back(out->pieces.size());
  }
  return true;
}

PyObject* new_addresses(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* kNames[] = {"addresses", "sizes", nullptr};
  PyObject *addresses = nullptr, *sizes = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "OO:Addresses", const_cast<char**>(kNames), &addresses, &sizes) ==
      0) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    Ref self(make<AddressesValue>(type));
    if (!self || !read_all(addresses, sizes, &Object<AddressesValue>::of(self.get()))) return nullptr;
    return self.release();
  });
}

Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(Object<AddressesValue>::of(self).ends.size()); }

PyObject* nbytes(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(Object<AddressesValue>::of(self).total); }

PyObject* sizes_of_blocks(PyObject* self, void*) {
  const auto& value = Object<AddressesValue>::of(self);
  Ref list(PyList_New(static_cast<Py_ssize_t>(value.ends.size())));
  for (size_t i = 0, begin = 0; list && i < value.ends.size(); begin = value.ends[i++]) {
    size_t sum = 0;
    for (size_t p = begin; p < value.ends[i]; ++p) sum += value.pieces[p].size;
    PyObject* number = PyLong_FromSize_t(sum);
    if (number == nullptr || PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), number) != 0) return nullptr;
  }
  return list.release();
}

}  // namespace

bool add_addresses(PyObject* module, State* state) {
  static PyGetSetDef kProperties[] = {{"nbytes", nbytes, nullptr, "Bytes of all blocks together.", nullptr},
                                      {"sizes", sizes_of_blocks, nullptr, "List of the bytes of each block.", nullptr},
                                      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kDocs)},
                                 {Py_tp_new, slot(new_addresses)},
                                 {Py_tp_dealloc, slot(Object<AddressesValue>::dealloc)},
                                 {Py_tp_getset, kProperties},
                                 {Py_mp_length, slot(length)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Addresses", sizeof(Object<AddressesValue>), 0, Py_TPFLAGS_DEFAULT, kSlots};
  return add_type(module, &kSpec, &state->addresses);
}

}  // namespace kvist::python
