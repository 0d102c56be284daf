// Room: making segment files up to the capacity, then collecting segments for those to come.
#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "disk/store_state.h"

namespace kvist::disk {
namespace {

// Segments that are kept free ahead of demand: collecting begins when there are fewer.
constexpr uint64_t kAhead = 3;
// Files that lie ready, empty.
constexpr size_t kMadeAhead = 2;
constexpr uint64_t kMovedAtOnce = 8 << 20;  // bytes
constexpr uint64_t kMoveBudgetNs = 10'000'000'000;

// How a read ended that may go well later: the device is bypassed, or the store is closed.
bool for_now(StatusCode code) { return code == StatusCode::kUnavailable || code == StatusCode::kCancelled; }

}  // namespace

uint64_t Store::room(const Directory& directory) const {
  const uint64_t used = directory.file_bytes + overhead_bytes();
  const bool may_make = directory.no_room_until_ns <= now() && directory.options.capacity_bytes > used;
  return directory.free.size() + directory.clearing +
         (may_make ? (directory.options.capacity_bytes - used) / segment_bytes_ : 0);
}

void Store::make_segments(Directory& directory) {
  if (directory.making || closing_ || directory.free.size() >= kMadeAhead ||
      room(directory) <= directory.free.size() + directory.clearing || !directory.health.may_write()) {
    return;
  }
  const uint32_t number = directory.next_file++;
  struct Made {
    StatusOr<FileDescriptor> fd = unavailable("disk: a segment was not made");
    bool vanished = false;
  };
  auto made = std::make_shared<Made>();
  const auto then = [this, &directory, number, made] {
    directory.making = false;
    const Status& status = made->fd.status();
    if (status.ok()) {
      auto segment = std::make_unique<Segment>();
      segment->directory = &directory;
      segment->fd = *std::move(made->fd);
      segment->file = number;
      segment->bytes = segment->file_bytes = segment_bytes_;
      directory.free.push_back(std::move(segment));
      return;
    }
    directory.file_bytes -= segment_bytes_;
    if (status.code() == StatusCode::kAlreadyExists) return;  // somebody's; the next number
    directory.no_room_until_ns = now() + options_.health.longest_pause_ns;
    if (status.code() == StatusCode::kResourceExhausted) {
      ++stats_.no_space;
      log_.warn("the disk tier gets less room than its capacity; it goes on with what it has",
                {{"reason", status}, {"bytes", directory.file_bytes}});
      if (directory.file_bytes / segment_bytes_ < kAhead + 1) {
        if (directory.health.note_unwritable("it has no room left", now())) note_change(directory);
      }
      return;
    }
    stats_.vanished += made->vanished;
    if (directory.health.note_unwritable(std::string(status.message()), now())) note_change(directory);
  };
  // Counted before it is there, so that the capacity holds at every moment.
  directory.file_bytes += segment_bytes_;
  directory.making = directory.workers->post(
      [made, number, folder = directory.folder, bytes = segment_bytes_] {
        made->fd = folder->create_segment(number, bytes);
        made->vanished = !made->fd.ok() && !folder->is_there();
      },
      then);
  if (!directory.making) directory.file_bytes -= segment_bytes_;
}

void Store::collect(Directory& directory) {
  // What is under way waits: nothing that is worth keeping is given up for want of a place to write it to for now.
  if (closing_ || !directory.health.may_write()) return;
  Directory::Collection& collection = directory.collection;
  if (collection.victim == nullptr) {
    if (room(directory) >= kAhead) return;
    Segment* victim = choose_victim(directory);
    if (victim == nullptr) return;
    collection.victim = victim;
    victim->state = Segment::State::kCollecting;
    if (victim->live_records > 0 && !victim->has_footer) choose_records(directory, victim->records);
    if (victim->live_records > 0 && victim->has_footer) {
      collection.entries.resize(size_t{victim->footer.records} * kRecordHeaderBytes);
      const Range to = {collection.entries.data(), collection.entries.size()};
      ReadRequest request;
      request.at = Location(victim->sequence, victim->footer.entries_at);
      request.length = static_cast<uint32_t>(collection.entries.size());
      request.checksum = victim->footer.entries_checksum;
      request.to = {&to, 1};
      request.deadline_ns = now() + kMoveBudgetNs;
      const auto then = [this, &directory](StatusCode code) {
        Directory::Collection& under_way = directory.collection;
        under_way.reading = false;
        std::vector<Record> records;
        Segment& segment = *under_way.victim;
        if (for_now(code)) {  // nothing was given up yet: chosen again when the device works
          segment.state = Segment::State::kSealed;
          under_way.victim = nullptr;
          under_way.entries = {};
          return;
        }
        if (code != StatusCode::kOk ||
            !decode_entries(under_way.entries, {segment.sequence, segment.bytes, table_.store}, segment.footer, &records)) {
          ++stats_.lost_footers;  // its records are found to be gone when they are read
        }
        under_way.entries = {};
        choose_records(directory, records);
      };
      collection.reading = queue_read(request, then).ok();
      if (!collection.reading) ++stats_.lost_footers, collection.entries = {};
    }
  }
  if (collection.reading) return;
  move_records(directory);
  for (const Directory::Move& move : collection.moves) {
    if (move.step != Directory::Move::Step::kNone) return;
  }
  if (collection.next < collection.keep.size() || collection.victim->users > 0) return;
  if (!free_segment(*collection.victim)) return;
  collection.victim = nullptr;
  collection.keep.clear();
  collection.next = 0;
  ++stats_.segments_collected;
}

// One of which little is live; else the oldest, so that what nobody asks for goes in the end.
Store::Segment* Store::choose_victim(Directory& directory) {
  Segment* emptiest = nullptr;
  Segment* oldest = nullptr;
  for (const auto& [sequence, segment] : segments_) {
    if (segment->directory != &directory || segment->state != Segment::State::kSealed) continue;
    if (emptiest == nullptr || segment->live_bytes < emptiest->live_bytes) emptiest = segment.get();
    if (oldest == nullptr || sequence < oldest->sequence) oldest = segment.get();
  }
  if (emptiest != nullptr && emptiest->live_bytes * 8 <= emptiest->bytes) return emptiest;
  return oldest;
}

void Store::choose_records(Directory& directory, const std::vector<Record>& records) {
  Directory::Collection& collection = directory.collection;
  std::vector<bool> keep(records.size(), false);
  owner_->choose(records, &keep);
  uint64_t kept = 0;
  const auto limit = static_cast<uint64_t>(options_.reinsert_share * static_cast<double>(segment_bytes_));
  for (size_t i = 0; i < records.size(); ++i) {
    if (!keep[i]) continue;
    if (kept + records[i].length > limit) {
      ++stats_.records_lost;
      owner_->lost(records[i]);
      continue;
    }
    kept += records[i].length;
    collection.keep.push_back(records[i]);
  }
}

void Store::move_records(Directory& directory) {
  Directory::Collection& collection = directory.collection;
  uint64_t bytes = 0;
  for (const Directory::Move& move : collection.moves) bytes += move.bytes.size();
  for (size_t slot = 0; slot < collection.moves.size(); ++slot) {
    Directory::Move& move = collection.moves[slot];
    if (move.step == Directory::Move::Step::kRead) write_move(directory, slot);
    if (move.step != Directory::Move::Step::kNone || collection.next == collection.keep.size()) continue;
    if (bytes > 0 && bytes + collection.keep[collection.next].length > kMovedAtOnce) continue;
    move.record = collection.keep[collection.next++];
    move.bytes.resize(move.record.length);
    bytes += move.bytes.size();
    const Range to = {move.bytes.data(), move.bytes.size()};
    ReadRequest request;
    request.at = move.record.at, request.length = move.record.length, request.checksum = move.record.checksum;
    request.to = {&to, 1};
    request.deadline_ns = now() + kMoveBudgetNs;  // behind what somebody waits for
    move.step = Directory::Move::Step::kReading;
    const auto then = [this, &directory, slot](StatusCode code) {
      Directory::Move& read = directory.collection.moves[slot];
      if (for_now(code)) {
        directory.collection.keep.push_back(read.record);
        read = {};
        return;
      }
      if (code != StatusCode::kOk) {
        move_done(directory, slot, nullptr);
        return;
      }
      read.step = Directory::Move::Step::kRead;  // and written by the next collect()
    };
    if (!queue_read(request, then).ok()) move_done(directory, slot, nullptr);
  }
}

void Store::write_move(Directory& directory, size_t slot) {
  Directory::Move& move = directory.collection.moves[slot];
  const ConstRange from = {move.bytes.data(), move.bytes.size()};
  const Status status = write_record(move.record, {&from, 1}, slot, &directory);
  if (status.ok()) {
    move.step = Directory::Move::Step::kWriting;
    return;
  }
  // With nothing staged it is not for want of buffers: there is no segment that it could go to, unless one is coming.
  const bool one_is_coming = std::any_of(directories_.begin(), directories_.end(), [this](const auto& other) {
    return other->health.may_write() && (other->making || room(*other) > 0);
  });
  if (status.code() != StatusCode::kResourceExhausted || (staged_bytes_ == 0 && !one_is_coming)) {
    move_done(directory, slot, nullptr);
  }  // else again with the next poll()
}

// `to`: where it lies now; null: it is lost.
void Store::move_done(Directory& directory, size_t slot, const Record* to) {
  Directory::Move& move = directory.collection.moves[slot];
  const Record from = move.record;
  move.step = Directory::Move::Step::kNone;
  move.bytes = {};
  if (to != nullptr) {
    ++stats_.records_moved;
    owner_->moved(from, *to);
  } else {
    ++stats_.records_lost;
    owner_->lost(from);
  }
}

// What it held is gone. Its file is used again, or removed where it has another size than segments have now. False: the file
// system does not answer, so it stays for now.
bool Store::free_segment(Segment& segment) {
  Directory& directory = *segment.directory;
  if (segment.bytes != segment_bytes_ || segment.file_bytes != segment_bytes_) {
    const auto work = [folder = directory.folder, file = segment.file] { folder->remove_segment(file); };
    if (!directory.workers->post(work, [] {})) return false;
    directory.file_bytes -= segment.file_bytes;
    segments_.erase(segment.sequence);
    return true;
  }
  const std::unique_ptr<Segment> owned = std::move(segments_.at(segment.sequence));
  segments_.erase(segment.sequence);
  auto free = std::make_unique<Segment>();
  free->directory = &directory;
  free->fd = std::move(segment.fd);
  free->file = segment.file;
  free->bytes = free->file_bytes = segment.bytes;
  // Its header goes, so that a restart finds it free and not what was given up. Before that it is not used again: the two
  // writes could land in either order.
  const std::span<std::byte> page = stage(kPage, For::kMove);
  if (page.empty()) {
    directory.free.push_back(std::move(free));
    return true;
  }
  std::memset(page.data(), 0, page.size());
  auto clear = std::make_unique<Group>();
  clear->kind = Group::Kind::kClear;
  clear->segment = free.get();
  clear->buffer = page;
  clear->cleared = std::move(free);
  ++directory.clearing;
  send_group(std::move(clear), kPage);
  return true;
}

void Store::drop(Location at, uint32_t length) {
  const auto found = segments_.find(at.sequence());
  if (found == segments_.end()) return;
  Segment& segment = *found->second;
  segment.live_bytes -= std::min<uint64_t>(segment.live_bytes, length);
  segment.live_records -= segment.live_records > 0 ? 1 : 0;
}

}  // namespace kvist::disk
