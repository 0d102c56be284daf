#include "buffers.h"

#include <cstring>
#include <limits>

namespace kvist::python {

// ---- one object's memory ------------------------------------------------------------------------------------------

Memory::~Memory() {
  if (viewed_) PyBuffer_Release(&view_);
}

namespace {

// Whether a format of the buffer protocol has references to Python objects in it: their bytes are addresses. Names of
// fields stand between colons.
bool holds_objects(const char* format) {
  if (format == nullptr) return false;
  bool in_name = false;
  for (const char* at = format; *at != '\0'; ++at) {
    if (*at == ':') in_name = !in_name;
    if (!in_name && (*at == 'O' || *at == '&')) return true;
  }
  return false;
}

bool not_contiguous() {
  PyErr_SetString(PyExc_BufferError,
                  "the memory is not contiguous within a row (first dimension): give contiguous blocks, or the pieces of "
                  "each block as a sequence, or make a contiguous copy");
  return false;
}

}  // namespace

template <typename Number>
bool Memory::describe(void* data, int dimensions, const Number* shape, const Number* strides, size_t item_bytes,
                      size_t stride_unit) {
  data_ = static_cast<std::byte*>(data);
  size_t row = item_bytes;
  bool rows_contiguous = true;
  for (int d = dimensions - 1; d >= 1; --d) {
    const auto step = strides == nullptr ? static_cast<ptrdiff_t>(row)
                                         : static_cast<ptrdiff_t>(strides[d]) * static_cast<ptrdiff_t>(stride_unit);
    if (shape[d] != 1 && step != static_cast<ptrdiff_t>(row)) rows_contiguous = false;
    row *= static_cast<size_t>(shape[d]);
  }
  rows_ = dimensions == 0 ? 1 : static_cast<size_t>(shape[0]);
  size_ = rows_ * row;
  row_stride_ = dimensions == 0 || strides == nullptr
                    ? static_cast<ptrdiff_t>(row)
                    : static_cast<ptrdiff_t>(strides[0]) * static_cast<ptrdiff_t>(stride_unit);
  contiguous_ = rows_contiguous && (rows_ <= 1 || row_stride_ == static_cast<ptrdiff_t>(row));
  return rows_contiguous || size_ == 0 || not_contiguous();
}

bool Memory::hold(PyObject* object, bool writable) {
  if (PyObject_CheckBuffer(object)) return hold_buffer(object, writable);
  if (PyObject_HasAttrString(object, "__dlpack__")) return hold_tensor(object, writable);
  PyErr_Format(PyExc_TypeError, "%R has no memory to read or fill: give something with the buffer protocol or DLPack",
               reinterpret_cast<PyObject*>(Py_TYPE(object)));
  return false;
}

bool Memory::hold_buffer(PyObject* object, bool writable) {
  const int access = writable ? PyBUF_WRITABLE : 0;
  // Without a format for those whose dtype has none in the protocol (bfloat16 of an extension package).
  viewed_ = PyObject_GetBuffer(object, &view_, PyBUF_STRIDES | PyBUF_FORMAT | access) == 0;
  if (!viewed_) {
    PyErr_Clear();
    viewed_ = PyObject_GetBuffer(object, &view_, PyBUF_STRIDES | access) == 0;
  }
  if (!viewed_) {
    if (!writable) return false;
    PyErr_Clear();
    if (PyObject_GetBuffer(object, &view_, PyBUF_STRIDES) != 0) return false;
    PyBuffer_Release(&view_);
    PyErr_Format(PyExc_BufferError, "%R is for reading only; blocks can only be copied into memory that can be written",
                 reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return false;
  }
  if (holds_objects(view_.format)) {
    PyErr_SetString(PyExc_TypeError, "an array of Python objects has no bytes of its own: give it a numeric dtype");
    return false;
  }
  return describe(view_.buf, view_.ndim, view_.shape, view_.strides, static_cast<size_t>(view_.itemsize), 1);
}

bool Memory::hold_tensor(PyObject* object, bool writable) {
  if (!import_tensor(object, &imported_)) return false;
  if (writable && imported_.read_only) {
    PyErr_SetString(PyExc_BufferError,
                    "the tensor is for reading only; blocks can only be copied into memory that can be written");
    return false;
  }
  const DLTensor& tensor = *imported_.tensor;
  const size_t bits = size_t{tensor.dtype.bits} * tensor.dtype.lanes;
  if (bits == 0 || bits % 8 != 0) {
    PyErr_Format(PyExc_BufferError, "a tensor whose elements have %zu bits cannot be taken as bytes", bits);
    return false;
  }
  return describe(static_cast<std::byte*>(tensor.data) + tensor.byte_offset, tensor.ndim, tensor.shape, tensor.strides,
                  bits / 8, bits / 8);
}

// ---- blocks -------------------------------------------------------------------------------------------------------

void prefix_error(const char* what, size_t index) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  if (type == nullptr) return;
  Ref old_type(type), old_trace(trace);
  Ref old_value(value);
  Ref text(old_value ? PyObject_Str(old_value.get()) : nullptr);
  if (!text) PyErr_Clear();
  // A UnicodeError cannot be made of a text alone. It is a ValueError, too.
  if (PyErr_GivenExceptionMatches(type, PyExc_UnicodeError) != 0) type = PyExc_ValueError;
  PyErr_Format(type, "%s %zu: %V", what, index, text.get(), "bad argument");
}

template <typename RangeT>
bool Pieces<RangeT>::read_one(const Memory& memory, size_t blocks, uint32_t block_bytes) {
  const size_t each = block_bytes != 0 ? block_bytes : (blocks == 0 ? 0 : memory.size() / blocks);
  if (memory.size() != each * blocks) {
    if (block_bytes != 0) {
      PyErr_Format(PyExc_ValueError, "%zu blocks of %u bytes take %zu bytes; the buffer has %zu", blocks, block_bytes,
                   each * blocks, memory.size());
    } else {
      PyErr_Format(PyExc_ValueError, "a buffer of %zu bytes cannot be split into %zu equal blocks", memory.size(), blocks);
    }
    return false;
  }
  if (!memory.contiguous() && memory.rows() != blocks) return not_contiguous();
  const std::span<RangeT> ranges = ranges_.resize(blocks);
  const std::span<std::span<const RangeT>> views = blocks_.resize(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    ranges[i] = {memory.contiguous() ? memory.data() + i * each : memory.row(i), each};
    views[i] = {&ranges[i], 1};
  }
  return true;
}

template <typename RangeT>
bool Pieces<RangeT>::read_block(PyObject* item, size_t index) {
  firsts_[index] = many_.size();
  const auto add = [&](PyObject* object) {
    Memory& memory = others_.emplace_back();
    if (!memory.hold(object, kWritable)) return false;
    if (!memory.contiguous()) return not_contiguous();
    many_.push_back({memory.data(), memory.size()});
    return true;
  };
  if (!PyList_Check(item) && !PyTuple_Check(item)) return add(item);
  const Py_ssize_t pieces = PySequence_Size(item);
  for (Py_ssize_t p = 0; p < pieces; ++p) {
    Ref piece(PySequence_GetItem(item, p));
    if (!piece) return false;
    if (!add(piece.get())) {
      prefix_error("piece", static_cast<size_t>(p));
      return false;
    }
  }
  return true;
}

template <typename RangeT>
bool Pieces<RangeT>::read_sequence(PyObject* sequence, size_t blocks) {
  const Py_ssize_t size = PySequence_Size(sequence);
  if (size < 0) return false;
  if (static_cast<size_t>(size) != blocks) {
    PyErr_Format(PyExc_ValueError, "there are %zu blocks, but %zd buffers: give one for each", blocks, size);
    return false;
  }
  firsts_.resize(blocks);
  many_.reserve(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    Ref item(PySequence_GetItem(sequence, static_cast<Py_ssize_t>(i)));
    if (!item) return false;
    if (!read_block(item.get(), i)) {
      prefix_error("block", i);
      return false;
    }
  }
  const std::span<std::span<const RangeT>> views = blocks_.resize(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    const size_t end = i + 1 < blocks ? firsts_[i + 1] : many_.size();
    views[i] = {many_.data() + firsts_[i], end - firsts_[i]};
  }
  return true;
}

template <typename RangeT>
bool Pieces<RangeT>::read_selection(PyObject* object, size_t blocks) {
  const auto& selection = Object<SelectionValue>::of(object);
  const auto& pages = Object<PagesValue>::of(selection.pages.get());
  if (selection.ids.size() != blocks) {
    PyErr_Format(PyExc_ValueError, "there are %zu blocks, but %zu pages are selected", blocks, selection.ids.size());
    return false;
  }
  if (kWritable && !pages.writable) {
    PyErr_SetString(PyExc_BufferError, "these Pages are for reading only: blocks cannot be copied into them");
    return false;
  }
  keep_ = Ref::borrowed(object);
  const size_t arrays = pages.arrays.size();
  const std::span<RangeT> ranges = ranges_.resize(blocks * arrays);
  const std::span<std::span<const RangeT>> views = blocks_.resize(blocks);
  for (size_t a = 0; a < arrays; ++a) {
    const Memory& memory = pages.arrays[a];
    for (size_t i = 0; i < blocks; ++i) ranges[i * arrays + a] = {memory.row(selection.ids[i]), memory.row_bytes()};
  }
  for (size_t i = 0; i < blocks; ++i) views[i] = {ranges.data() + i * arrays, arrays};
  return true;
}

template <typename RangeT>
bool Pieces<RangeT>::read_addresses(PyObject* object, size_t blocks) {
  const auto& given = Object<AddressesValue>::of(object);
  if (given.ends.size() != blocks) {
    PyErr_Format(PyExc_ValueError, "there are %zu blocks, but the addresses of %zu", blocks, given.ends.size());
    return false;
  }
  const std::span<RangeT> ranges = ranges_.resize(given.pieces.size());
  for (size_t p = 0; p < ranges.size(); ++p) ranges[p] = {given.pieces[p].data, given.pieces[p].size};
  const std::span<std::span<const RangeT>> views = blocks_.resize(blocks);
  for (size_t i = 0, begin = 0; i < blocks; begin = given.ends[i++]) {
    views[i] = {ranges.data() + begin, given.ends[i] - begin};
  }
  return true;
}

template <typename RangeT>
bool Pieces<RangeT>::read(State* state, PyObject* object, size_t blocks, uint32_t block_bytes) {
  if (PyObject_TypeCheck(object, state->selection)) return read_selection(object, blocks);
  if (PyObject_TypeCheck(object, state->addresses)) return read_addresses(object, blocks);
  const bool memory = PyObject_CheckBuffer(object) ||
                      (!PyList_Check(object) && !PyTuple_Check(object) && PyObject_HasAttrString(object, "__dlpack__"));
  if (memory) return first_.hold(object, kWritable) && read_one(first_, blocks, block_bytes);
  if (PySequence_Check(object)) return read_sequence(object, blocks);
  PyErr_Format(
      PyExc_TypeError,
      "%R gives no blocks: give one buffer of all, a sequence with a buffer (or the pieces) of each, Pages(...)[ids] or "
      "Addresses(...)",
      reinterpret_cast<PyObject*>(Py_TYPE(object)));
  return false;
}

template class Pieces<ConstRange>;
template class Pieces<Range>;

}  // namespace kvist::python
