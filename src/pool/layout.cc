#include "pool/layout.h"

#include <array>
#include <cstring>

#include "base/checksum.h"

namespace kvist {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t round_to(uint64_t at, uint64_t unit) { return (at + unit - 1) / unit * unit; }

}  // namespace

uint32_t entry_check(const Entry& e, uint64_t generation) {
  std::array<uint64_t, 8> words{};
  words[0] = generation;
  words[1] = e.digest_hi.load(std::memory_order_relaxed);
  words[2] = e.digest_lo.load(std::memory_order_relaxed);
  words[3] = e.checksum.load(std::memory_order_relaxed);
  words[4] = e.location.load(std::memory_order_relaxed);
  words[5] = uint64_t{e.length.load(std::memory_order_relaxed)} | uint64_t{e.space_part.load(std::memory_order_relaxed)}
                                                                      << 32;
  const uint32_t depth_flags = e.depth_flags.load(std::memory_order_relaxed) & ~uint32_t{kUnverified};
  words[6] = uint64_t{e.parent.load(std::memory_order_relaxed)} | uint64_t{depth_flags} << 32;
  words[7] = e.parent_tag.load(std::memory_order_relaxed);
  // Of the last word only the tag's four bytes are in the formula: 60 bytes in all.
  return static_cast<uint32_t>(checksum(std::span(reinterpret_cast<const std::byte*>(words.data()), 60)));
}

uint32_t header_check(const ControlHeader& header) {
  constexpr size_t kFixed = offsetof(ControlHeader, lock_owner_pid);
  std::array<std::byte, kFixed + sizeof(header.run)> bytes;
  std::memcpy(bytes.data(), &header, kFixed);
  std::memcpy(bytes.data() + kFixed, &header.run, sizeof(header.run));
  return static_cast<uint32_t>(checksum(bytes));
}

ControlLayout ControlLayout::of(uint32_t max_entries, uint32_t extents) {
  ControlLayout layout;
  layout.max_entries = max_entries;
  layout.extents = extents;
  const uint64_t wanted = (uint64_t{max_entries} * 10 + Bucket::kSlots * 7 - 1) / (Bucket::kSlots * 7);
  layout.buckets_per_partition = static_cast<uint32_t>((wanted + kPartitions - 1) / kPartitions);
  layout.overflow_buckets = static_cast<uint32_t>(uint64_t{layout.buckets_per_partition} * kPartitions / 7);
  layout.space_words_at = kPage;
  layout.extent_generations_at = layout.space_words_at + kMaxSpaces * sizeof(uint64_t);
  layout.entries_at = round_to(layout.extent_generations_at + uint64_t{extents} * sizeof(uint32_t), kPage);
  layout.buckets_at = round_to(layout.entries_at + (uint64_t{max_entries} + 1) * sizeof(Entry), kPage);
  layout.overflow_at =
      round_to(layout.buckets_at + uint64_t{layout.buckets_per_partition} * kPartitions * sizeof(Bucket), kPage);
  layout.bytes = round_to(layout.overflow_at + uint64_t{layout.overflow_buckets} * sizeof(Bucket), kPage);
  return layout;
}

ControlView ControlView::over(std::byte* base, const ControlLayout& layout) {
  ControlView view;
  view.header = reinterpret_cast<ControlHeader*>(base);
  view.space_words = reinterpret_cast<std::atomic<uint64_t>*>(base + layout.space_words_at);
  view.extent_generations = reinterpret_cast<std::atomic<uint32_t>*>(base + layout.extent_generations_at);
  view.entries = reinterpret_cast<Entry*>(base + layout.entries_at);
  view.buckets = reinterpret_cast<Bucket*>(base + layout.buckets_at);
  view.overflow = reinterpret_cast<Bucket*>(base + layout.overflow_at);
  view.max_entries = layout.max_entries;
  view.buckets_per_partition = layout.buckets_per_partition;
  view.overflow_buckets = layout.overflow_buckets;
  return view;
}

uint32_t ControlView::layout_version(const std::byte* base, uint64_t bytes) {
  if (bytes < kPage) return 0;
  const auto* header = reinterpret_cast<const ControlHeader*>(base);
  return header->magic == kControlMagic ? header->layout_version : 0;
}

const char* ControlView::check(const std::byte* base, uint64_t bytes, ControlLayout* layout) {
  if (bytes < kPage) return "it is smaller than a header";
  const auto* header = reinterpret_cast<const ControlHeader*>(base);
  if (header->magic != kControlMagic) return "it does not begin with Kvist's magic";
  if (header->layout_version != kLayoutVersion)
    return "its layout version is another one; use client and node of one release";
  if (header->header_bytes != sizeof(ControlHeader)) return "its header has another size";
  if (header->max_entries == 0 || header->max_entries > kMaxEntries) return "its number of entries is out of bounds";
  if (header->extent_bytes == 0 || header->extents == 0 || header->arena_bytes / header->extent_bytes != header->extents) {
    return "its extents do not add up to its arena";
  }
  const ControlLayout expected = ControlLayout::of(header->max_entries, header->extents);
  if (expected.bytes != header->control_bytes || expected.bytes > bytes ||
      expected.buckets_per_partition != header->buckets_per_partition ||
      expected.overflow_buckets != header->overflow_buckets || expected.space_words_at != header->space_words_at ||
      expected.extent_generations_at != header->extent_generations_at || expected.entries_at != header->entries_at ||
      expected.buckets_at != header->buckets_at || expected.overflow_at != header->overflow_at) {
    return "its tables are not where this version expects them";
  }
  *layout = expected;
  return nullptr;
}

}  // namespace kvist
