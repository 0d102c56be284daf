#include "memory/slots.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace kvist {
namespace {

uint32_t round_up(uint64_t length) { return static_cast<uint32_t>((length + kSlotUnit - 1) / kSlotUnit * kSlotUnit); }

}  // namespace

uint64_t default_extent_bytes(uint64_t region_bytes) {
  uint64_t extent = kLargestExtent;
  while (extent > (uint64_t{1} << 20) && extent * 16 > region_bytes) extent /= 2;
  return extent;
}

SlotAllocator::SlotAllocator(uint64_t extent_bytes, uint32_t extents) : extent_bytes_(extent_bytes), extents_(extents) {
  assert(extent_bytes % kSlotUnit == 0 && extent_bytes >= kSlotUnit);
  // Four steps in each doubling: 64, 128, 192, 256, 320, 384, 448, 512, 640, ...
  for (uint64_t size = kSlotUnit; size < extent_bytes;) {
    classes_.push_back({.slot_bytes = static_cast<uint32_t>(size), .open = {}});
    size += std::max<uint64_t>(kSlotUnit, std::bit_floor(size) / 4);
  }
  classes_.push_back({.slot_bytes = static_cast<uint32_t>(extent_bytes), .open = {}});
  for (size_t c = 0; c < classes_.size(); ++c) by_size_.emplace_back(classes_[c].slot_bytes, static_cast<Class>(c));
  free_extents_.reserve(extents);
}

SlotAllocator::Class SlotAllocator::class_for(uint32_t length) const {
  assert(length >= 1 && length <= extent_bytes_);
  return std::lower_bound(by_size_.begin(), by_size_.end(), std::pair<uint32_t, Class>(round_up(length), 0))->second;
}

SlotAllocator::Class SlotAllocator::declare(uint32_t length) {
  const Class fitting = class_for(length);
  const uint32_t size = round_up(length);
  if (classes_[fitting].slot_bytes == size || classes_.size() >= kMaxDeclared) return fitting;
  const Class made = static_cast<Class>(classes_.size());
  classes_.push_back({.slot_bytes = size, .open = {}});
  const std::pair<uint32_t, Class> item(size, made);
  by_size_.insert(std::lower_bound(by_size_.begin(), by_size_.end(), item), item);
  return made;
}

void SlotAllocator::add_extent(uint32_t extent) {
  assert(!extents_[extent].ready);
  extents_[extent].ready = true;
  ready_bytes_ += extent_bytes_;
  free_extents_.push_back(extent);
}

std::optional<uint64_t> SlotAllocator::allocate(Class c) {
  SizeClass& size_class = classes_[c];
  if (size_class.open.empty()) {
    if (free_extents_.empty()) return std::nullopt;
    const uint32_t extent = free_extents_.back();
    free_extents_.pop_back();
    take(extent, c);
  }
  const uint32_t index = size_class.open.back();
  Extent& extent = extents_[index];
  uint32_t word = extent.hint;
  while (extent.summary[word] == 0) word = word + 1 == extent.summary.size() ? 0 : word + 1;
  extent.hint = word;
  const uint32_t bits_word = word * 64 + static_cast<uint32_t>(std::countr_zero(extent.summary[word]));
  const uint32_t slot = bits_word * 64 + static_cast<uint32_t>(std::countr_zero(extent.free_bits[bits_word]));
  mark_used(index, slot);
  return uint64_t{index} * extent_bytes_ + uint64_t{slot} * size_class.slot_bytes;
}

// Of an extent that is open.
void SlotAllocator::mark_used(uint32_t index, uint32_t slot) {
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[extent.owner];
  uint64_t& bits = extent.free_bits[slot / 64];
  bits &= ~(uint64_t{1} << (slot % 64));
  if (bits == 0) extent.summary[slot / 4096] &= ~(uint64_t{1} << (slot / 64 % 64));
  --size_class.free_slots;
  used_bytes_ += size_class.slot_bytes;
  if (--extent.free_slots == 0) close(index);
}

bool SlotAllocator::adopt(uint64_t offset, uint32_t slot_bytes) {
  const uint32_t index = extent_of(offset);
  Extent& extent = extents_[index];
  if (extent.owner == kNoClass) {
    const Class c = declare(slot_bytes);
    if (classes_[c].slot_bytes != slot_bytes) return false;
    assert(!extent.ready);
    extent.ready = true;
    ready_bytes_ += extent_bytes_;
    take(index, c);
  }
  const uint64_t within = offset % extent_bytes_;
  assert(classes_[extent.owner].slot_bytes == slot_bytes && within % slot_bytes == 0);
  const auto slot = static_cast<uint32_t>(within / slot_bytes);
  assert((extent.free_bits[slot / 64] >> (slot % 64) & 1) != 0);
  mark_used(index, slot);
  return true;
}

void SlotAllocator::free(uint64_t offset) {
  const uint32_t index = extent_of(offset);
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[extent.owner];
  const uint32_t slot = static_cast<uint32_t>((offset % extent_bytes_) / size_class.slot_bytes);
  const uint64_t bit = uint64_t{1} << (slot % 64);
  assert((offset % extent_bytes_) % size_class.slot_bytes == 0 && (extent.free_bits[slot / 64] & bit) == 0);
  extent.free_bits[slot / 64] |= bit;
  extent.summary[slot / 4096] |= uint64_t{1} << (slot / 64 % 64);
  used_bytes_ -= size_class.slot_bytes;
  ++extent.free_slots;
  if (!extent.draining) ++size_class.free_slots;
  if (extent.free_slots == extent.slots) {
    give_up(index);
  } else if (!extent.draining && extent.open_at == kNotOpen) {
    open(index);
  }
}

void SlotAllocator::drain(uint32_t index) {
  Extent& extent = extents_[index];
  assert(extent.owner != kNoClass && !extent.draining);
  if (extent.open_at != kNotOpen) close(index);
  classes_[extent.owner].free_slots -= extent.free_slots;
  extent.draining = true;
}

void SlotAllocator::undrain(uint32_t index) {
  Extent& extent = extents_[index];
  if (!extent.draining) return;
  extent.draining = false;
  classes_[extent.owner].free_slots += extent.free_slots;
  if (extent.free_slots > 0) open(index);
}

uint64_t SlotAllocator::metadata_bytes() const {
  uint64_t bytes = extents_.capacity() * sizeof(Extent) + classes_.capacity() * sizeof(SizeClass);
  for (const Extent& extent : extents_) bytes += (extent.free_bits.capacity() + extent.summary.capacity()) * 8;
  return bytes;
}

void SlotAllocator::take(uint32_t index, Class c) {
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[c];
  extent.owner = c;
  extent.slots = extent.free_slots = static_cast<uint32_t>(extent_bytes_ / size_class.slot_bytes);
  extent.hint = 0;
  extent.free_bits.assign((extent.slots + 63) / 64, ~uint64_t{0});
  if (extent.slots % 64 != 0) extent.free_bits.back() = (uint64_t{1} << (extent.slots % 64)) - 1;
  extent.summary.assign((extent.free_bits.size() + 63) / 64, ~uint64_t{0});
  if (extent.free_bits.size() % 64 != 0) extent.summary.back() = (uint64_t{1} << (extent.free_bits.size() % 64)) - 1;
  size_class.free_slots += extent.slots;
  if (record_ != nullptr) record_[index].store(recorded(size_class.slot_bytes), std::memory_order_release);
  open(index);
}

void SlotAllocator::give_up(uint32_t index) {
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[extent.owner];
  if (extent.open_at != kNotOpen) close(index);
  if (!extent.draining) size_class.free_slots -= extent.slots;
  extent.draining = false;
  extent.owner = kNoClass;
  extent.free_bits = {};
  extent.summary = {};
  free_extents_.push_back(index);
}

void SlotAllocator::open(uint32_t index) {
  Extent& extent = extents_[index];
  std::vector<uint32_t>& open = classes_[extent.owner].open;
  extent.open_at = static_cast<uint32_t>(open.size());
  open.push_back(index);
}

void SlotAllocator::close(uint32_t index) {
  Extent& extent = extents_[index];
  std::vector<uint32_t>& open = classes_[extent.owner].open;
  const uint32_t last = open.back();
  open[extent.open_at] = last;
  extents_[last].open_at = extent.open_at;
  open.pop_back();
  extent.open_at = kNotOpen;
}

}  // namespace kvist
