#include "cli/load_batch.h"

#include <algorithm>
#include <string>

#include "base/units.h"
#include "cli/pool_access.h"

namespace kvist::cli {
namespace {

constexpr size_t kBatchBytes = size_t{16} << 20;
constexpr size_t kBatchBlocks = 1024;
// For a call after one that was refused for want of room or time.
constexpr std::chrono::milliseconds kBrief{20};
constexpr uint32_t kMostFruitless = 3;

bool begins_chain(const SnapshotRecord& record) { return record.depth == 0; }

}  // namespace

uint64_t LoadCounts::all_refused() const {
  uint64_t sum = 0;
  for (const auto& [code, blocks] : refused) sum += blocks;
  return sum;
}

std::span<std::byte> LoadBatch::room(uint32_t length) {
  if (buffer_.size() < used_ + length) buffer_.resize(std::max(used_ + length, kBatchBytes));
  return std::span(buffer_).subspan(used_, length);
}

void LoadBatch::keep(const SnapshotRecord& record) {
  kept_.push_back({record, used_});
  used_ += record.length;
}

bool LoadBatch::is_full() const { return used_ >= kBatchBytes || kept_.size() >= kBatchBlocks; }

std::vector<LoadBatch::Run> LoadBatch::runs() const {
  std::vector<Run> runs;
  std::vector<size_t> open(kSnapshotParts, SIZE_MAX);  // the run of each part that may go on
  for (uint32_t i = 0; i < kept_.size(); ++i) {
    const SnapshotRecord& record = kept_[i].record;
    Run* run = open[record.part] == SIZE_MAX ? nullptr : &runs[open[record.part]];
    const SnapshotRecord* last = run == nullptr ? nullptr : &kept_[run->kept.back()].record;
    const bool alone = run != nullptr && run->kept.size() == 1;
    const bool another_beginning =
        last != nullptr && begins_chain(*last) && begins_chain(record) && (alone || !run->chained);
    const bool follows =
        last != nullptr && (alone || run->chained) && record.depth == last->depth + 1 && record.parent == last->digest;
    if (another_beginning) run->chained = false;
    if (!another_beginning && !follows) {
      open[record.part] = runs.size();
      run = &runs.emplace_back();
      run->part = record.part;
    }
    run->kept.push_back(i);
  }
  return runs;
}

Status LoadBatch::put(Interrupt& interrupt) {
  const uint64_t refused = counts_.all_refused(), accepted = counts_.loaded + counts_.there;
  Status status;
  for (const Run& run : runs()) {
    if (interrupt.seen()) status = cancelled("interrupted");
    if (status.ok()) status = put_run(run);
    if (!status.ok()) break;
  }
  kept_.clear();
  used_ = 0;
  if (!status.ok()) return status;
  const bool fruitless = counts_.loaded + counts_.there == accepted && counts_.all_refused() > refused;
  fruitless_ = fruitless ? fruitless_ + 1 : 0;
  if (fruitless_ < kMostFruitless) return ok_status();
  const auto most = std::max_element(counts_.refused.begin(), counts_.refused.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return resource_exhausted("the pool takes nothing any more: " + reason_of(most->first));
}

Status LoadBatch::put_run(const Run& run) {
  std::vector<Digest> positions;
  std::vector<ConstRange> ranges;
  std::vector<Gather> sources;
  ranges.reserve(run.kept.size());
  for (const uint32_t i : run.kept) {
    const SnapshotRecord& record = kept_[i].record;
    positions.push_back(record.digest);
    ranges.push_back({buffer_.data() + kept_[i].at, record.length});
    sources.push_back({&ranges.back(), 1});
  }
  std::vector<StatusCode> results(positions.size(), StatusCode::kNotFound);
  if (mode_ == Mode::kLook) {
    if (space_ != nullptr) space_->contains(positions, results, run.part);
    return count(run, results);
  }
  const SnapshotRecord& first = kept_[run.kept.front()].record;
  const Chain chain{.positions = positions, .first = first.depth, .parent = first.parent};
  PutOptions how;
  how.part = run.part;
  how.unchained = !run.chained;
  const std::chrono::nanoseconds time = refused_last_ ? std::min<std::chrono::nanoseconds>(timeout_, kBrief) : timeout_;
  space_->put(chain, sources, results, how, within(time));
  return count(run, results);
}

Status LoadBatch::count(const Run& run, std::span<const StatusCode> results) {
  Status status;
  bool accepted = false;
  for (size_t k = 0; k < results.size(); ++k) {
    const StatusCode result = results[k];
    const bool would_be = mode_ == Mode::kLook && result == StatusCode::kNotFound;
    const bool is_there = result == StatusCode::kAlreadyExists || (mode_ == Mode::kLook && result == StatusCode::kOk);
    if (is_there) {
      ++counts_.there;
    } else if (would_be || result == StatusCode::kOk) {
      ++counts_.loaded;
      counts_.loaded_bytes += kept_[run.kept[k]].record.length;
    } else {
      ++counts_.refused[result];
    }
    accepted |= is_there || would_be || result == StatusCode::kOk;
    if (result == StatusCode::kUnavailable) status = unavailable("the node went away");
    if (result == StatusCode::kFailedPrecondition) status = failed_precondition("the namespace was flushed meanwhile");
  }
  refused_last_ = !accepted && results[0] != StatusCode::kInvalidArgument;
  return status;
}

}  // namespace kvist::cli
