// kvist.h: writing.
#include <algorithm>

#include "capi/handles.h"

using namespace kvist;
using namespace kvist::capi;

namespace {

// What put and submit_put are given, as C++ has it.
Status take_put(const kvist_space* space, const kvist_chain* chain, const kvist_gather* sources,
                const kvist_put_options* options, Chain* positions, PutOptions* wanted) {
  if (space == nullptr) return invalid_argument("space is NULL");
  if (Status status = chain_of(chain, positions); !status.ok()) return status;
  if (sources == nullptr && !positions->positions.empty()) return invalid_argument("sources is NULL");
  return put_options_of(options, wanted);
}

}  // namespace

extern "C" {

size_t kvist_space_put(const kvist_space* space, const kvist_chain* chain, const kvist_gather* sources,
                       const kvist_put_options* options, uint8_t* results, int64_t timeout_ns) {
  return guarded_count({}, [&]() -> size_t {
    Chain positions;
    PutOptions wanted;
    const Status status = take_put(space, chain, sources, options, &positions, &wanted);
    Results codes(results, positions.positions.size());
    // Until the call says otherwise: what follows may lack memory.
    std::fill_n(codes.span().begin(), codes.span().size(), status.ok() ? StatusCode::kResourceExhausted : status.code());
    if (!status.ok()) return 0;
    const Spans<Gather> pieces(sources, positions.positions.size(), gather_of);
    return space->space.put(positions, pieces.span(), codes.span(), wanted, deadline_of(timeout_ns));
  });
}

kvist_status kvist_space_submit_put(const kvist_space* space, const kvist_chain* chain, const kvist_gather* sources,
                                    const kvist_put_options* options, uint8_t* results, int64_t timeout_ns, uint64_t* ticket,
                                    kvist_error* error) {
  if (ticket == nullptr) return null_error(error, "ticket is NULL");
  return guarded(error, [&] {
    Chain positions;
    PutOptions wanted;
    const Status status = take_put(space, chain, sources, options, &positions, &wanted);
    if (!status.ok()) return answer(error, status);
    const size_t count = positions.positions.size();
    if (results == nullptr && count > 0) return null_error(error, "results is NULL");
    const Spans<Gather> pieces(sources, count, gather_of);
    Results codes(results, count);
    const StatusOr<uint64_t> submitted =
        space->space.submit_put(positions, pieces.span(), codes.span(), wanted, deadline_of(timeout_ns));
    if (!submitted.ok()) return answer(error, submitted.status());
    *ticket = *submitted;
    space->shared->submitted(*submitted, nullptr);
    return answer(error, ok_status());
  });
}

kvist_status kvist_space_reserve(const kvist_space* space, const kvist_chain* chain, const uint32_t* lengths,
                                 size_t length_count, const kvist_put_options* options, int64_t timeout_ns,
                                 kvist_batch** out, kvist_error* error) {
  if (space == nullptr || out == nullptr || (lengths == nullptr && length_count > 0)) {
    return null_error(error, "space, lengths or out is NULL");
  }
  *out = nullptr;
  return guarded(error, [&] {
    Chain positions;
    PutOptions wanted;
    if (Status status = chain_of(chain, &positions); !status.ok()) return answer(error, status);
    if (Status status = put_options_of(options, &wanted); !status.ok()) return answer(error, status);
    auto batch = std::make_unique<kvist_batch>();
    StatusOr<Batch> made = space->space.reserve(positions, {lengths, length_count}, wanted, deadline_of(timeout_ns));
    if (!made.ok()) return answer(error, made.status());
    batch->batch = *std::move(made);
    *out = batch.release();
    return answer(error, ok_status());
  });
}

size_t kvist_batch_count(const kvist_batch* batch) { return batch == nullptr ? 0 : batch->batch.size(); }

void* kvist_batch_room(const kvist_batch* batch, size_t i, size_t* size) {
  const std::span<std::byte> room = batch == nullptr || i >= batch->batch.size() ? std::span<std::byte>() : batch->batch[i];
  if (size != nullptr) *size = room.size();
  return room.empty() ? nullptr : room.data();
}

kvist_status kvist_batch_result(const kvist_batch* batch, size_t i) {
  if (batch == nullptr || i >= batch->batch.size()) return KVIST_INVALID_ARGUMENT;
  return static_cast<kvist_status>(batch->batch.result(i));
}

kvist_status kvist_batch_copy(kvist_batch* batch, size_t i, kvist_gather source, kvist_error* error) {
  if (batch == nullptr) return null_error(error, "batch is NULL");
  return answer(error, batch->batch.copy(i, gather_of(source)));
}

size_t kvist_batch_commit(kvist_batch* batch, int64_t timeout_ns) {
  return batch == nullptr ? 0 : batch->batch.commit(deadline_of(timeout_ns));
}

void kvist_batch_free(kvist_batch* batch) { delete batch; }

}  // extern "C"
