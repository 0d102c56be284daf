// kvist.h: reading.
#include <algorithm>

#include "capi/handles.h"

using namespace kvist;
using namespace kvist::capi;

extern "C" {

kvist_status kvist_space_longest_prefix(const kvist_space* space, const kvist_chain* chain,
                                        const kvist_prefix_options* options, int64_t timeout_ns, kvist_prefix** out,
                                        kvist_error* error) {
  if (space == nullptr || out == nullptr) return null_error(error, "space or out is NULL");
  *out = nullptr;
  return guarded(error, [&] {
    Chain positions;
    kvist_prefix_options given;
    if (Status status = chain_of(chain, &positions); !status.ok()) return answer(error, status);
    if (Status status = take(options, "KVIST_PREFIX_OPTIONS_INIT", &given); !status.ok()) return answer(error, status);
    if (given.on_disk > KVIST_ON_DISK_LEAVE) {
      return answer(error, invalid_argument("options->on_disk is none of KVIST_ON_DISK_..."));
    }
    auto prefix = std::make_unique<kvist_prefix>();
    prefix->prefix =
        space->space.longest_prefix(positions, {given.from, given.hint == 0, given.parts, deadline_if_given(timeout_ns),
                                                given.on_disk == KVIST_ON_DISK_LEAVE ? OnDisk::kLeave : OnDisk::kBring});
    *out = prefix.release();
    return answer(error, (*out)->prefix.status());
  });
}

size_t kvist_prefix_length(const kvist_prefix* prefix) { return prefix == nullptr ? 0 : prefix->prefix.size(); }

size_t kvist_prefix_on_disk(const kvist_prefix* prefix) { return prefix == nullptr ? 0 : prefix->prefix.on_disk(); }

size_t kvist_prefix_blocks(const kvist_prefix* prefix, const kvist_block** blocks) {
  const std::span<const Block> found = prefix == nullptr ? std::span<const Block>() : prefix->prefix.blocks();
  if (blocks != nullptr) *blocks = reinterpret_cast<const kvist_block*>(found.data());
  return found.size();
}

size_t kvist_prefix_runs(const kvist_prefix* prefix, const kvist_run** runs) {
  const std::span<const Run> found = prefix == nullptr ? std::span<const Run>() : prefix->prefix.runs();
  if (runs != nullptr) *runs = reinterpret_cast<const kvist_run*>(found.data());
  return found.size();
}

void kvist_prefix_free(kvist_prefix* prefix) { delete prefix; }

kvist_status kvist_space_pin(const kvist_space* space, const kvist_digest* positions, size_t count, uint16_t part,
                             int64_t timeout_ns, kvist_pinned** out, kvist_error* error) {
  if (space == nullptr || out == nullptr || (positions == nullptr && count > 0)) {
    return null_error(error, "space, positions or out is NULL");
  }
  *out = nullptr;
  return guarded(error, [&] {
    auto pinned = std::make_unique<kvist_pinned>();
    pinned->pinned = space->space.pin(digests_of(positions, count), part, deadline_if_given(timeout_ns));
    *out = pinned.release();
    return answer(error, ok_status());
  });
}

size_t kvist_pinned_count(const kvist_pinned* pinned) { return pinned == nullptr ? 0 : pinned->pinned.size(); }
size_t kvist_pinned_hits(const kvist_pinned* pinned) { return pinned == nullptr ? 0 : pinned->pinned.hits(); }

const kvist_block* kvist_pinned_block(const kvist_pinned* pinned, size_t i) {
  if (pinned == nullptr || i >= pinned->pinned.size()) return nullptr;
  return reinterpret_cast<const kvist_block*>(pinned->pinned[i]);
}

kvist_status kvist_pinned_result(const kvist_pinned* pinned, size_t i) {
  if (pinned == nullptr || i >= pinned->pinned.size()) return KVIST_INVALID_ARGUMENT;
  return static_cast<kvist_status>(pinned->pinned.result(i));
}

void kvist_pinned_free(kvist_pinned* pinned) { delete pinned; }

size_t kvist_space_contains(const kvist_space* space, const kvist_digest* positions, size_t count, uint16_t part,
                            uint8_t* results) {
  return guarded_count({}, [&]() -> size_t {
    Results codes(results, count);
    std::fill_n(codes.span().begin(), count, StatusCode::kInvalidArgument);
    if (space == nullptr || positions == nullptr) return 0;
    return space->space.contains(digests_of(positions, count), codes.span(), part);
  });
}

size_t kvist_space_get(const kvist_space* space, const kvist_digest* positions, const kvist_scatter* destinations,
                       size_t count, uint16_t part, uint8_t* results, uint32_t* sizes, int64_t timeout_ns) {
  return guarded_count({}, [&]() -> size_t {
    Results codes(results, count);
    std::fill_n(codes.span().begin(), count, StatusCode::kInvalidArgument);
    if (space == nullptr || positions == nullptr || destinations == nullptr) return 0;
    const Spans<Scatter> pieces(destinations, count, scatter_of);
    return space->space.get(digests_of(positions, count), pieces.span(), codes.span(), part, deadline_of(timeout_ns),
                            {sizes, sizes == nullptr ? 0 : count});
  });
}

kvist_status kvist_space_submit_get(const kvist_space* space, const kvist_digest* positions,
                                    const kvist_scatter* destinations, size_t count, uint16_t part, uint8_t* results,
                                    int64_t timeout_ns, uint64_t* ticket, kvist_error* error) {
  if (space == nullptr || ticket == nullptr ||
      (count > 0 && (positions == nullptr || destinations == nullptr || results == nullptr))) {
    return null_error(error, "space, positions, destinations, results or ticket is NULL");
  }
  return guarded(error, [&] {
    // The worker looks at the pieces later: they move into memory that the ticket holds.
    auto held = std::make_unique<Shared::Destinations>();
    size_t pieces = 0;
    for (size_t i = 0; i < count; ++i) pieces += scatter_of(destinations[i]).size();
    held->pieces.reserve(pieces);
    for (size_t i = 0; i < count; ++i) {
      const Scatter block = scatter_of(destinations[i]);
      held->blocks.emplace_back(held->pieces.data() + held->pieces.size(), block.size());
      held->pieces.insert(held->pieces.end(), block.begin(), block.end());
    }
    Results codes(results, count);
    const StatusOr<uint64_t> submitted =
        space->space.submit_get(digests_of(positions, count), held->blocks, codes.span(), part, deadline_of(timeout_ns));
    if (!submitted.ok()) return answer(error, submitted.status());
    *ticket = *submitted;
    space->shared->submitted(*submitted, std::move(held));
    return answer(error, ok_status());
  });
}

}  // extern "C"
