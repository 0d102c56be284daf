// python/module/digests.h: kvist.Digests, the names of consecutive positions of a chain.
//
// A Digests is never changed after it was made, so its memory may be read without the GIL while a call holds a reference.
// A slice shares its memory and knows its place: `chain[8:]` begins at depth 8 below chain[7].
#pragma once

#include <vector>

#include "buffers.h"

namespace kvist::python {

struct DigestsValue {
  std::shared_ptr<const std::vector<Digest>> all;
  size_t begin = 0, end = 0;
  uint32_t first = 0;  // depth of the first
  Digest parent{};     // zero: none known
};

// What a call takes as its chain: a Digests, or bytes of 16 for each position (depth 0, no parent).
class ChainArgument {
 public:
  bool read(State* state, PyObject* object);
  Chain chain() const { return chain_; }
  std::span<const Digest> positions() const { return chain_.positions; }
  size_t size() const { return chain_.positions.size(); }

 private:
  Ref keep_;
  std::vector<Digest> converted_;
  Chain chain_;
};

PyObject* make_digests(State* state, std::vector<Digest> digests);

// 16 bytes, big-endian, as everywhere outside a process.
Digest load_digest(const std::byte* bytes);
void store_digest(const Digest& digest, std::byte* bytes);

}  // namespace kvist::python
