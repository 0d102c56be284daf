// capi/handles.h: what the C interface's handles hold, and the few things that each of its functions does: read a struct
// that may be of another version, turn a status into a code and a text, keep exceptions in.
//
// Values that stand in arrays (digests, pieces, blocks, runs, result codes) have in C and C++ the same layout, which the
// assertions below hold, and are handed through as they are. Nothing but the library's own code sees both types.
//
// Threads and lifetime: as kvist.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvist/client.h"
#include "kvist/kvist.h"

namespace kvist::capi {

static_assert(sizeof(kvist_digest) == sizeof(Digest) && offsetof(kvist_digest, lo) == offsetof(Digest, lo));
static_assert(sizeof(kvist_bytes) == sizeof(ConstRange) && offsetof(kvist_bytes, size) == offsetof(ConstRange, size));
static_assert(sizeof(kvist_range) == sizeof(Range) && offsetof(kvist_range, size) == offsetof(Range, size));
static_assert(sizeof(kvist_block) == sizeof(Block) && offsetof(kvist_block, size) == offsetof(Block, size) &&
              offsetof(kvist_block, position) == offsetof(Block, position) &&
              offsetof(kvist_block, part) == offsetof(Block, part));
static_assert(sizeof(kvist_run) == sizeof(Run) && offsetof(kvist_run, part_mask) == offsetof(Run, part_mask) &&
              offsetof(kvist_run, source) == offsetof(Run, source) &&
              offsetof(kvist_run, predicted_us) == offsetof(Run, predicted_us));
static_assert(sizeof(kvist_completion) == sizeof(Completion) &&
              offsetof(kvist_completion, code) == offsetof(Completion, code) &&
              offsetof(kvist_completion, done) == offsetof(Completion, done));
static_assert(sizeof(kvist_stretch) == sizeof(Region::Stretch) &&
              offsetof(kvist_stretch, bytes) == offsetof(Region::Stretch, bytes));
static_assert(sizeof(StatusCode) == 1);

// ---- errors -------------------------------------------------------------------------------------------------------

kvist_status put_error(kvist_error* error, StatusCode code, std::string_view text) noexcept;
inline kvist_status answer(kvist_error* error, const Status& status) noexcept {
  return put_error(error, status.code(), status.message());
}
inline kvist_status null_error(kvist_error* error, std::string_view what) noexcept {
  return put_error(error, StatusCode::kInvalidArgument, what);
}

// The call, or what a lack of memory in it is answered with.
template <typename Call>
kvist_status guarded(kvist_error* error, Call&& call) noexcept {
  try {
    return call();
  } catch (...) {
    return put_error(error, StatusCode::kResourceExhausted, "this process has no memory left for the call");
  }
}
template <typename Call>
size_t guarded_count(std::span<StatusCode> results, Call&& call) noexcept {
  try {
    return call();
  } catch (...) {
    for (StatusCode& result : results) result = StatusCode::kResourceExhausted;
    return 0;
  }
}

inline Deadline deadline_of(int64_t timeout_ns) {
  return timeout_ns < 0 ? Deadline() : within(std::chrono::nanoseconds(timeout_ns));
}
// For reads in place, which look at no clock without one unless they take long.
inline std::optional<Deadline> deadline_if_given(int64_t timeout_ns) {
  return timeout_ns < 0 ? std::nullopt : std::optional(deadline_of(timeout_ns));
}

// ---- structs of any version -----------------------------------------------------------------------------------------

// The size that each struct had when it first appeared: no program can have a shorter one. These never change.
template <typename T>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<kvist_client_options> = 56;
template <>
inline constexpr size_t kFirstSize<kvist_embedded_options> = 32;
template <>
inline constexpr size_t kFirstSize<kvist_client_stats> = 120;
template <>
inline constexpr size_t kFirstSize<kvist_identity> = 136;
template <>
inline constexpr size_t kFirstSize<kvist_chain> = 48;
template <>
inline constexpr size_t kFirstSize<kvist_prefix_options> = 24;
template <>
inline constexpr size_t kFirstSize<kvist_put_options> = 32;

Status check_struct(const void* given, size_t first_size, size_t known_size, const char* init);

// Copies what the caller's version of the struct and this one have in common; the rest is zero. Null: all zero.
template <typename T>
Status take(const T* given, const char* init, T* out) {
  static_assert(kFirstSize<T> != 0 && kFirstSize<T> <= sizeof(T));
  std::memset(static_cast<void*>(out), 0, sizeof(T));
  if (given == nullptr) return ok_status();
  if (Status status = check_struct(given, kFirstSize<T>, sizeof(T), init); !status.ok()) return status;
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  std::memcpy(static_cast<void*>(out), given, size < sizeof(T) ? size : sizeof(T));
  return ok_status();
}

// ---- values -------------------------------------------------------------------------------------------------------

inline std::string_view text_of(const char* text) { return text == nullptr ? std::string_view() : std::string_view(text); }
inline std::span<const Digest> digests_of(const kvist_digest* digests, size_t count) {
  return {reinterpret_cast<const Digest*>(digests), digests == nullptr ? 0 : count};
}
inline Gather gather_of(const kvist_gather& gather) {
  return {reinterpret_cast<const ConstRange*>(gather.pieces), gather.pieces == nullptr ? 0 : gather.count};
}
inline Scatter scatter_of(const kvist_scatter& scatter) {
  return {reinterpret_cast<const Range*>(scatter.pieces), scatter.pieces == nullptr ? 0 : scatter.count};
}

// A call's results: the caller's bytes, or if there are none, some of our own.
class Results {
 public:
  Results(uint8_t* given, size_t count) : count_(count), given_(given) {
    if (given == nullptr) own_.resize(count);
  }
  std::span<StatusCode> span() {
    return given_ == nullptr ? std::span<StatusCode>(own_) : std::span(reinterpret_cast<StatusCode*>(given_), count_);
  }

 private:
  const size_t count_;
  uint8_t* const given_;
  std::vector<StatusCode> own_;
};

// The pieces of each block as C++ has them. Batches of ordinary size need no memory of their own.
template <typename Span>
class Spans {
 public:
  template <typename C, typename Convert>
  Spans(const C* given, size_t count, Convert&& convert) : count_(given == nullptr ? 0 : count) {
    if (count_ > kInline) large_ = std::make_unique<Span[]>(count_);
    Span* const at = large_ ? large_.get() : small_;
    for (size_t i = 0; i < count_; ++i) at[i] = convert(given[i]);
  }
  std::span<const Span> span() const { return {large_ ? large_.get() : small_, count_}; }

 private:
  static constexpr size_t kInline = 64;
  const size_t count_;
  Span small_[kInline];
  std::unique_ptr<Span[]> large_;
};

Status put_options_of(const kvist_put_options* given, PutOptions* out);
Status chain_of(const kvist_chain* given, Chain* out);

// ---- handles ------------------------------------------------------------------------------------------------------

// The client, and what its submitted calls need until they are polled. Shared by a client's handle and its spaces'.
class Shared {
 public:
  explicit Shared(Client made) : client(std::move(made)) {}

  // Pieces that a submitted get writes to.
  struct Destinations {
    std::vector<Range> pieces;
    std::vector<Scatter> blocks;
  };

  // To be called once for each ticket, after it was given out: keeps `held` (may be null) until the ticket was polled,
  // which another thread may have done already. The call is under way, so this cannot fail: without memory for the note
  // what it writes through is never freed.
  void submitted(uint64_t ticket, std::unique_ptr<Destinations> held) noexcept;
  void polled(std::span<const Completion> completions);

  Client client;

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Destinations>> held_;
  std::set<uint64_t> polled_first_;
};

}  // namespace kvist::capi

struct kvist_client {
  std::shared_ptr<kvist::capi::Shared> shared;
};
struct kvist_space {
  std::shared_ptr<kvist::capi::Shared> shared;
  kvist::Space space;
  std::string record;
};
struct kvist_prefix {
  kvist::Prefix prefix;
};
struct kvist_pinned {
  kvist::Pinned pinned;
};
struct kvist_batch {
  kvist::Batch batch;
};
