// python/module/buffers.h: from what a Python caller gives as sources or destinations to the ranges that the library reads
// or fills.
//
//   Pieces<ConstRange> sources;
//   if (!sources.read(state, object, n, block_bytes)) return nullptr;   // TypeError, ValueError, BufferError, with the
//   index { Unlocked unlocked; space.put(chain, sources.blocks(), ...); }     // the memory is held until `sources` goes
//
// Accepted for n blocks:
//   - one buffer of n equal blocks, one behind the other (or with an equal distance between them: rows of an array whose
//     first dimension is n); no Python object is made or looked at per block
//   - a sequence of n items: each a buffer (one block) or a sequence of buffers (the pieces of one block, in order)
//   - a selection of pages: kvist.Pages(arrays)[ids]
//   - raw memory: kvist.Addresses(addresses, sizes)
// A buffer is whatever has the buffer protocol or DLPack in host memory. Its dtype does not matter: blocks are bytes.
//
// Threads: needs the GIL, but for blocks() and the ranges in it. Not copyable: libraries fill views in place.
#pragma once

#include <array>
#include <deque>
#include <type_traits>
#include <vector>

#include "dlpack.h"
#include "kvist/client.h"
#include "module.h"

namespace kvist::python {

// Memory of one object, held until it goes. Rows: the first dimension.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  // False with an exception: no memory at all, not writable, no contiguous rows, a dtype that holds Python objects.
  bool hold(PyObject* object, bool writable);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // bytes that belong to it, gaps between rows not counted
  bool contiguous() const { return contiguous_; }
  size_t rows() const { return rows_; }  // 1 where there is no dimension
  size_t row_bytes() const { return rows_ == 0 ? 0 : size_ / rows_; }
  std::byte* row(size_t i) const { return data_ + static_cast<ptrdiff_t>(i) * row_stride_; }

 private:
  bool hold_buffer(PyObject* object, bool writable);
  bool hold_tensor(PyObject* object, bool writable);
  // Shapes in elements; `strides` in bytes, null for row by row.
  template <typename Number>
  bool describe(void* data, int dimensions, const Number* shape, const Number* strides, size_t item_bytes,
                size_t stride_unit);

  Py_buffer view_{};
  bool viewed_ = false;
  Imported imported_;
  std::byte* data_ = nullptr;
  size_t size_ = 0, rows_ = 0;
  ptrdiff_t row_stride_ = 0;
  bool contiguous_ = true;
};

// Room for `Kept` values without an allocation, which is what a call of ordinary size needs.
template <typename T, size_t Kept>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  std::span<T> resize(size_t size) {
    if (size > Kept) more_.resize(size);
    size_ = size;
    return span();
  }
  std::span<T> span() { return {size_ > Kept ? more_.data() : kept_.data(), size_}; }
  size_t size() const { return size_; }

 private:
  std::array<T, Kept> kept_;
  std::vector<T> more_;
  size_t size_ = 0;
};

inline constexpr size_t kOrdinaryBatch = 64;  // blocks

// RangeT: ConstRange (sources) or Range (destinations, which must be writable).
template <typename RangeT>
class Pieces {
 public:
  static constexpr bool kWritable = std::is_same_v<RangeT, Range>;

  // block_bytes 0: the namespace does not say; one buffer is then split evenly.
  bool read(State* state, PyObject* object, size_t blocks, uint32_t block_bytes);

  std::span<const std::span<const RangeT>> blocks() { return blocks_.span(); }

 private:
  bool read_one(const Memory& memory, size_t blocks, uint32_t block_bytes);
  bool read_sequence(PyObject* sequence, size_t blocks);
  bool read_block(PyObject* item, size_t index);
  bool read_selection(PyObject* object, size_t blocks);
  bool read_addresses(PyObject* object, size_t blocks);

  Memory first_;
  std::deque<Memory> others_;
  Ref keep_;
  Scratch<RangeT, kOrdinaryBatch> ranges_;
  std::vector<RangeT> many_;  // of sequences, whose number of pieces is not known beforehand
  std::vector<size_t> firsts_;
  Scratch<std::span<const RangeT>, kOrdinaryBatch> blocks_;
};

// Adds where and in what an argument was wrong to the exception that is set: "block 3: ...".
void prefix_error(const char* what, size_t index);

// The value of a kvist.Pages and of its selection, see pages.cc.
struct PagesValue {
  std::deque<Memory> arrays;
  size_t pages = 0;
  size_t page_bytes = 0;  // of all arrays together
  bool writable = true;
};
struct SelectionValue {
  Ref pages;
  std::vector<uint32_t> ids;
};

// The value of a kvist.Addresses, see addresses.cc. Block i: the pieces from ends[i - 1] to ends[i].
struct AddressesValue {
  std::vector<Range> pieces;
  std::vector<size_t> ends;
  uint64_t total = 0;  // bytes: sums of sizes cannot overflow
};

}  // namespace kvist::python
