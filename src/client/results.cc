// kvist::Prefix, Pinned and Batch: what calls hand out. All three may outlive their Client, and do nothing in a forked
// child.
#include <utility>

#include "client/batch_state.h"
#include "client/connection.h"
#include "client/pin_set.h"
#include "client/read_side.h"
#include "kvist/client.h"

namespace kvist {

namespace client {

void ReturnPins::operator()(PinSet* set) const noexcept { ReadSide::give_back(set); }

void EndBatch::operator()(BatchState* state) const noexcept {
  if (!state->forked()) delete state;
}

}  // namespace client

// ---- Prefix -------------------------------------------------------------------------------------------------------

Prefix::Prefix() = default;
Prefix::Prefix(Prefix&&) noexcept = default;
Prefix& Prefix::operator=(Prefix&&) noexcept = default;
Prefix::~Prefix() = default;

const Status& Prefix::status() const { return set_ == nullptr ? why_empty_ : set_->status; }
uint32_t Prefix::size() const { return set_ == nullptr ? 0 : set_->usable; }
uint32_t Prefix::on_disk() const { return set_ == nullptr ? 0 : set_->on_disk; }
std::span<const Run> Prefix::runs() const { return set_ == nullptr ? std::span<const Run>() : set_->runs; }
std::span<const Block> Prefix::blocks() const { return set_ == nullptr ? std::span<const Block>() : set_->blocks; }
void Prefix::reset() { set_.reset(); }

// ---- Pinned -------------------------------------------------------------------------------------------------------

Pinned::Pinned() = default;
Pinned::Pinned(Pinned&& other) noexcept
    : size_(std::exchange(other.size_, 0)), why_empty_(other.why_empty_), set_(std::move(other.set_)) {}
Pinned& Pinned::operator=(Pinned&& other) noexcept {
  size_ = std::exchange(other.size_, 0);
  why_empty_ = other.why_empty_;
  set_ = std::move(other.set_);
  return *this;
}
Pinned::~Pinned() = default;

size_t Pinned::size() const { return size_; }
const Block* Pinned::operator[](size_t i) const {
  return set_ != nullptr && set_->blocks[i].data != nullptr ? &set_->blocks[i] : nullptr;
}
StatusCode Pinned::result(size_t i) const { return set_ == nullptr ? why_empty_ : set_->results[i]; }
size_t Pinned::hits() const { return set_ == nullptr ? 0 : set_->hits; }
void Pinned::reset() {
  set_.reset();
  size_ = 0;
}

// ---- Batch --------------------------------------------------------------------------------------------------------

Batch::Batch() = default;
Batch::Batch(Batch&&) noexcept = default;
Batch& Batch::operator=(Batch&&) noexcept = default;
Batch::~Batch() = default;

size_t Batch::size() const { return state_ == nullptr ? 0 : state_->size(); }
std::span<std::byte> Batch::operator[](size_t i) const {
  return state_ == nullptr || state_->forked() ? std::span<std::byte>() : state_->room(i);
}
StatusCode Batch::result(size_t i) const { return state_ == nullptr ? StatusCode::kFailedPrecondition : state_->result(i); }

Status Batch::copy(size_t i, Gather source) {
  if (state_ == nullptr || i >= state_->size()) return out_of_range("the batch has no such block");
  if (state_->forked()) return client::forked_error();
  return client::guarded([&] { return state_->copy(i, source); }, [] { return client::no_memory_error(); });
}

size_t Batch::commit(Deadline deadline) {
  if (state_ == nullptr || state_->forked()) return 0;
  return client::guarded([&] { return state_->commit(deadline); }, []() -> size_t { return 0; });
}

void Batch::abort() {
  if (state_ == nullptr || state_->forked()) return;
  client::guarded([&] { state_->abort(); }, [] {});
}

}  // namespace kvist
