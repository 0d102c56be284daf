#include "digests.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvist::python {

namespace {

constexpr size_t kDigestBytes = 16;

uint64_t load_big(const std::byte* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value = value << 8 | static_cast<uint64_t>(bytes[i]);
  return value;
}
void store_big(uint64_t value, std::byte* bytes) {
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(value >> (56 - 8 * i));
}

bool load_all(const Memory& memory, std::vector<Digest>* out) {
  if (!memory.contiguous() || memory.size() % kDigestBytes != 0) {
    PyErr_Format(PyExc_ValueError, "digests take 16 bytes each, one behind the other; %zu bytes are no whole number of them",
                 memory.size());
    return false;
  }
  out->resize(memory.size() / kDigestBytes);
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = load_digest(memory.data() + i * kDigestBytes);
  return true;
}

DigestsValue& value_of(PyObject* self) { return Object<DigestsValue>::of(self); }

std::span<const Digest> items(const DigestsValue& value) {
  return std::span<const Digest>(*value.all).subspan(value.begin, value.end - value.begin);
}

PyObject* bytes_of(const Digest& digest) {
  std::byte bytes[kDigestBytes];
  store_digest(digest, bytes);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes), kDigestBytes);
}

PyObject* new_digests(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* kNames[] = {"data", "first", "parent", nullptr};
  PyObject *data = nullptr, *first = nullptr, *parent = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|OOO:Digests", const_cast<char**>(kNames), &data, &first, &parent) ==
      0) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    DigestsValue value;
    uint64_t depth = 0;
    if (!read_uint(first, "first", UINT32_MAX, &depth)) return nullptr;
    value.first = static_cast<uint32_t>(depth);
    std::vector<Digest> digests;
    Memory memory, parent_memory;
    if (given(data) && !(memory.hold(data, false) && load_all(memory, &digests))) return nullptr;
    if (given(parent)) {
      std::vector<Digest> one;
      if (!parent_memory.hold(parent, false) || !load_all(parent_memory, &one)) return nullptr;
      if (one.size() != 1) return PyErr_Format(PyExc_ValueError, "parent must be one digest of 16 bytes");
      value.parent = one[0];
    }
    value.end = digests.size();
    value.all = std::make_shared<const std::vector<Digest>>(std::move(digests));
    return make<DigestsValue>(type, std::move(value));
  });
}

Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(items(value_of(self)).size()); }

PyObject* item(PyObject* self, Py_ssize_t index) {
  const std::span<const Digest> digests = items(value_of(self));
  if (index < 0 || static_cast<size_t>(index) >= digests.size()) {
    PyErr_SetString(PyExc_IndexError, "no such position");
    return nullptr;
  }
  return bytes_of(digests[static_cast<size_t>(index)]);
}

PyObject* slice_of(PyObject* self, Py_ssize_t start, Py_ssize_t stop) {
  const DigestsValue& whole = value_of(self);
  DigestsValue part = whole;
  part.begin = whole.begin + static_cast<size_t>(start);
  part.end = whole.begin + static_cast<size_t>(std::max(start, stop));
  part.first = whole.first + static_cast<uint32_t>(start);
  if (start > 0) part.parent = (*whole.all)[part.begin - 1];
  return make<DigestsValue>(Py_TYPE(self), std::move(part));
}

PyObject* subscript(PyObject* self, PyObject* key) {
  const Py_ssize_t size = length(self);
  if (!PySlice_Check(key)) {
    Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (index == -1 && PyErr_Occurred() != nullptr) return nullptr;
    return item(self, index < 0 ? index + size : index);
  }
  Py_ssize_t start = 0, stop = 0, step = 0;
  if (PySlice_Unpack(key, &start, &stop, &step) != 0) return nullptr;
  PySlice_AdjustIndices(size, &start, &stop, step);
  if (step != 1) {
    PyErr_SetString(PyExc_ValueError,
                    "a slice of a chain must have step 1; join single digests for others: b''.join(chain[i] for i in ...)");
    return nullptr;
  }
  return slice_of(self, start, stop);
}

PyObject* concat(PyObject* left, PyObject* right) {
  State* state = state_of_object(left);
  return guarded([&]() -> PyObject* {
    ChainArgument more;
    if (!more.read(state, right)) return nullptr;
    DigestsValue joined = value_of(left);
    const std::span<const Digest> begin = items(joined);
    std::vector<Digest> all(begin.begin(), begin.end());
    all.insert(all.end(), more.positions().begin(), more.positions().end());
    joined.begin = 0;
    joined.end = all.size();
    joined.all = std::make_shared<const std::vector<Digest>>(std::move(all));
    return make<DigestsValue>(state->digests, std::move(joined));
  });
}

PyObject* to_bytes(PyObject* self, PyObject*) {
  const std::span<const Digest> digests = items(value_of(self));
  Ref bytes(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(digests.size() * kDigestBytes)));
  if (!bytes) return nullptr;
  auto* out = reinterpret_cast<std::byte*>(PyBytes_AsString(bytes.get()));
  for (size_t i = 0; i < digests.size(); ++i) store_digest(digests[i], out + i * kDigestBytes);
  return bytes.release();
}

PyObject* hex(PyObject* self, PyObject*) {
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const Digest& digest : items(value_of(self))) {
    const std::string text = to_hex(digest);
    Ref one(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
    if (!one || PyList_Append(list.get(), one.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* parent_of(PyObject* self, void*) {
  const Digest& parent = value_of(self).parent;
  return parent.is_zero() ? Py_NewRef(Py_None) : bytes_of(parent);
}
PyObject* first_of(PyObject* self, void*) { return PyLong_FromUnsignedLong(value_of(self).first); }

PyObject* reduce(PyObject* self, PyObject*) {
  Ref bytes(to_bytes(self, nullptr)), first(first_of(self, nullptr)), parent(parent_of(self, nullptr));
  if (!bytes || !first || !parent) return nullptr;
  return Py_BuildValue("O(OOO)", reinterpret_cast<PyObject*>(Py_TYPE(self)), bytes.get(), first.get(), parent.get());
}

PyObject* compare(PyObject* left, PyObject* right, int operation) {
  if ((operation != Py_EQ && operation != Py_NE) || !PyObject_TypeCheck(right, Py_TYPE(left)))
    return Py_NewRef(Py_NotImplemented);
  const DigestsValue &a = value_of(left), &b = value_of(right);
  const std::span<const Digest> x = items(a), y = items(b);
  const bool equal = a.first == b.first && a.parent == b.parent && std::equal(x.begin(), x.end(), y.begin(), y.end());
  return PyBool_FromLong(equal == (operation == Py_EQ));
}

PyObject* repr(PyObject* self) {
  const DigestsValue& value = value_of(self);
  return PyUnicode_FromFormat("<kvist.Digests of %zu positions from depth %u>", value.end - value.begin, value.first);
}

constexpr const char* kDocs =
    "Digests(data=b'', first=0, parent=None)\n"
    "--\n\n"
    "The names of consecutive positions of a chain: 16 bytes each, opaque, made by Space.digests(). Wherever a chain is\n"
    "wanted, plain bytes of 16 a position will do too.\n\n"
    "``d[i]`` is one name as 16 bytes. ``d[a:b]`` is a part of the chain, shares the memory, and knows its place: its\n"
    "``first`` is the depth of its first position and its ``parent`` the name before it. ``d + e`` appends.\n"
    "``bytes(d)`` are all names, 16 bytes each, big-endian; with first and parent they make the same Digests again,\n"
    "in any process. Cannot be changed; may be used by any thread; can be pickled.";

}  // namespace

Digest load_digest(const std::byte* bytes) { return {load_big(bytes), load_big(bytes + 8)}; }
void store_digest(const Digest& digest, std::byte* bytes) {
  store_big(digest.hi, bytes);
  store_big(digest.lo, bytes + 8);
}

bool ChainArgument::read(State* state, PyObject* object) {
  if (PyObject_TypeCheck(object, state->digests)) {
    const DigestsValue& value = value_of(object);
    keep_ = Ref::borrowed(object);
    chain_ = {items(value), value.first, value.parent};
    return true;
  }
  Memory memory;
  if (!PyObject_CheckBuffer(object)) {
    PyErr_Format(PyExc_TypeError, "a chain is a Digests (from Space.digests()) or bytes of 16 a position, not %R",
                 reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return false;
  }
  if (!memory.hold(object, false) || !load_all(memory, &converted_)) return false;
  chain_ = {converted_, 0, {}};
  return true;
}

PyObject* make_digests(State* state, std::vector<Digest> digests) {
  DigestsValue value;
  value.end = digests.size();
  value.all = std::make_shared<const std::vector<Digest>>(std::move(digests));
  return make<DigestsValue>(state->digests, std::move(value));
}

bool add_digests(PyObject* module, State* state) {
  static PyMethodDef kMethods[] = {
      plain_method("__bytes__", to_bytes, "All names, 16 bytes each, big-endian."),
      plain_method("hex", hex, "hex($self)\n--\n\nA list of the names as 32 hexadecimal digits, as `kvist ls` prints them."),
      plain_method("__reduce__", reduce, nullptr),
      {}};
  static PyGetSetDef kProperties[] = {
      {"first", first_of, nullptr, "Depth of the first position in its chain; 0: the chain's beginning.", nullptr},
      {"parent", parent_of, nullptr, "The name before the first position, 16 bytes; None: none known.", nullptr},
      {}};
  static PyType_Slot kSlots[] = {{Py_tp_doc, const_cast<char*>(kDocs)},
                                 {Py_tp_new, slot(new_digests)},
                                 {Py_tp_dealloc, slot(Object<DigestsValue>::dealloc)},
                                 {Py_tp_methods, kMethods},
                                 {Py_tp_getset, kProperties},
                                 {Py_tp_repr, slot(repr)},
                                 {Py_tp_richcompare, slot(compare)},
                                 {Py_tp_hash, slot(PyObject_HashNotImplemented)},
                                 {Py_sq_length, slot(length)},
                                 {Py_sq_item, slot(item)},
                                 {Py_sq_concat, slot(concat)},
                                 {Py_mp_length, slot(length)},
                                 {Py_mp_subscript, slot(subscript)},
                                 {0, nullptr}};
  static PyType_Spec kSpec = {"kvist.Digests", sizeof(Object<DigestsValue>), 0, Py_TPFLAGS_DEFAULT, kSlots};
  return add_type(module, &kSpec, &state->digests);
}

}  // namespace kvist::python
