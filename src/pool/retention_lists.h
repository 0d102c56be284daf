// pool/retention_lists.h: the two containers that retention policies are made of. Both hold indices into a table that lies
// elsewhere (of entries, of sessions); index 0 means none.
//
//   Ring<PrivateEntry> leaves;  leaves.push_back(entries, x);  leaves.erase(entries, leaves.first());
//   KeyTable table(1000);       table.insert(x, key_of);       uint32_t x = table.find(key, key_of);
//
// A ring is a doubly linked list through the elements' `prev` and `next` that closes on itself, so that it takes four bytes
// itself, and a policy may have thousands of them.
//
// Threads: one at a time. Lifetime: a ring does not refer to its table.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace kvist {

template <class Element>
class Ring {
 public:
  bool empty() const { return first_ == 0; }
  uint32_t first() const { return first_; }
  uint32_t last(std::span<const Element> table) const { return first_ == 0 ? 0 : table[first_].prev; }

  void push_back(std::span<Element> table, uint32_t x) {
    if (first_ == 0) {
      table[x].prev = table[x].next = first_ = x;
      return;
    }
    const uint32_t last = table[first_].prev;
    table[x].prev = last;
    table[x].next = first_;
    table[last].next = x;
    table[first_].prev = x;
  }
  void push_front(std::span<Element> table, uint32_t x) {
    push_back(table, x);
    first_ = x;
  }
  // `x` is in it.
  void erase(std::span<Element> table, uint32_t x) {
    Element& element = table[x];
    if (element.next == x) {
      first_ = 0;
    } else {
      table[element.prev].next = element.next;
      table[element.next].prev = element.prev;
      if (first_ == x) first_ = element.next;
    }
    element.prev = element.next = 0;
  }
  // All of `other` behind what is here.
  void append(std::span<Element> table, Ring other) {
    if (first_ == 0) first_ = other.first_;
    if (other.first_ == 0 || first_ == other.first_) return;
    const uint32_t last = table[first_].prev, others_last = table[other.first_].prev;
    table[last].next = other.first_;
    table[other.first_].prev = last;
    table[others_last].next = first_;
    table[first_].prev = others_last;
  }

 private:
  uint32_t first_ = 0;
};

// Finds elements by a key of 32 bits that they know themselves: `key_of(x)`. Open addressing with linear probing.
class KeyTable {
 public:
  // For up to so many elements.
  explicit KeyTable(size_t most) : places_(std::bit_ceil(most < 2 ? size_t{2} : most) * 2) {}

  // The one that was inserted first among those of this key; 0: none.
  template <class KeyOf>
  uint32_t find(uint32_t key, const KeyOf& key_of) const {
    for (size_t at = place_of(key); places_[at] != 0; at = next(at)) {
      if (key_of(places_[at]) == key) return places_[at];
    }
    return 0;
  }
  template <class KeyOf>
  void insert(uint32_t x, const KeyOf& key_of) {
    size_t at = place_of(key_of(x));
    while (places_[at] != 0) at = next(at);
    places_[at] = x;
  }
  // Closes the gap, so that each key is found from its place on without a hole (Knuth, vol. 3, 6.4, algorithm R). `x` is in
  // it.
  template <class KeyOf>
  void erase(uint32_t x, const KeyOf& key_of) {
    const size_t mask = places_.size() - 1;
    size_t hole = place_of(key_of(x));
    while (places_[hole] != x) hole = next(hole);
    for (size_t at = next(hole); places_[at] != 0; at = next(at)) {
      const size_t home = place_of(key_of(places_[at]));
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = 0;
  }
  uint64_t metadata_bytes() const { return places_.capacity() * sizeof(uint32_t); }

 private:
  size_t place_of(uint32_t key) const { return (key * 0x9e3779b1u) & (places_.size() - 1); }
  size_t next(size_t at) const { return (at + 1) & (places_.size() - 1); }

  std::vector<uint32_t> places_;
};

}  // namespace kvist
