// Writing: records into groups, groups into segments, and the footer when a segment is full.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/units.h"
#include "disk/store_state.h"

namespace kvist::disk {
namespace {

// Groups that are written while the table of namespaces is not: what is known of them takes memory.
constexpr size_t kMostUntold = 1024;

}  // namespace

uint64_t Store::largest_record() const {
  const uint64_t in_segment = segment_bytes_ - kPage - group_header_bytes(1) - footer_bytes(1) - kPage;
  return std::min(in_segment, options_.buffer_bytes / 4 - 2 * kPage);
}

// Records of a segment: its footer has to fit into the buffers.
uint32_t Store::largest_count() const {
  return static_cast<uint32_t>((options_.buffer_bytes / 8 - kPage) / kRecordHeaderBytes);
}

Status Store::check_record(const Record& record, std::span<const ConstRange> from) const {
  if (record.length == 0 || record.length > largest_record()) {
    return invalid_argument("disk: a block of " + std::to_string(record.length) + " bytes; at most " +
                            format_size(largest_record()) + " are possible: choose larger segments");
  }
  if (record.digest.is_zero() || record.depth > kMaxDepth || record.part >= kMaxParts || record.flags != 0) {
    return invalid_argument("disk: no record of a block: digest, depth or part is out of bounds");
  }
  if (record.space == 0 || record.space >= table_.next_number) return invalid_argument("disk: no such namespace");
  if (total_bytes(from) != record.length) return invalid_argument("disk: the ranges are not as long as the block");
  return ok_status();
}

Status Store::write(const Record& record, std::span<const ConstRange> from, uint64_t tag) {
  if (Status status = check_record(record, from); !status.ok()) return status;
  return write_record(record, from, tag, nullptr);
}

Store::WriteRoom Store::write_room(uint64_t bytes) const {
  bool able = false, segment = false;
  for (const auto& directory : directories_) {
    if (!directory->health.may_write()) continue;
    able = true;
    segment |= directory->open != nullptr || room(*directory) > 1;
  }
  if (!able || closing_) return WriteRoom::kNone;
  const uint64_t limit = (options_.buffer_bytes / 2 - 2 * kGroupBytes) / 2;
  return segment && (staged_bytes_ == 0 || staged_bytes_ + bytes <= limit) ? WriteRoom::kFree : WriteRoom::kBusy;
}

// Those that take writes, the least loaded first; of idle ones the one that got the least for its capacity.
std::vector<Store::Directory*> Store::directories_for_write(Status* why_not) {
  std::vector<Directory*> able;
  for (const auto& directory : directories_) {
    if (directory->health.may_write()) {
      able.push_back(directory.get());
    } else {
      *why_not = unavailable("disk: " + directory->options.path + " is " + disk_state_name(directory->health.state()) +
                             ": " + directory->health.reason());
    }
  }
  std::sort(able.begin(), able.end(), [](const Directory* a, const Directory* b) {
    if (a->write_bytes != b->write_bytes) return a->write_bytes < b->write_bytes;
    return a->share_written() < b->share_written();
  });
  return able;
}

Status Store::write_record(const Record& wanted, std::span<const ConstRange> from, uint64_t tag, Directory* moved_for) {
  const For reason = moved_for == nullptr ? For::kUser : For::kMove;
  if (closing_) return unavailable("disk: the store is closed");
  Status status;
  const std::vector<Directory*> able = directories_for_write(&status);
  if (able.empty()) {
    stats_.refused_unhealthy += reason == For::kUser;
    return status;
  }
  Directory* directory = nullptr;
  Room room = Room::kNoBuffer;
  for (size_t i = 0; i < able.size() && directory == nullptr && untold_.size() < kMostUntold; ++i) {
    room = find_room(*able[i], wanted.length, reason);
    if (room == Room::kFound) directory = able[i];
  }
  if (directory == nullptr) return refuse(room, reason);

  Group& group = *directory->group;
  const uint64_t start = place_of(group.used, wanted.length);
  const uint64_t sum = copy_in_.gather_checksum(group.buffer.data() + start, from);
  if (sum != wanted.checksum) {
    ++stats_.refused_bad_source;
    return data_loss("disk: the block is not what its checksum says; it is not written");
  }
  std::memset(group.buffer.data() + group.used, 0, start - group.used);
  Record record = wanted;
  record.at = Location(group.segment->sequence, group.offset + start);
  record.generation = next_generation_++;
  group.items.push_back({record, tag, moved_for});
  group.used = start + record.length;
  ++group.segment->accepted;
  directory->accepted_bytes += record.length;
  (reason == For::kUser ? stats_.user_bytes : stats_.moved_bytes) += record.length;
  if (group.used >= group.header_bytes + kGroupFull || group.items.size() == group.slots ||
      place_of(group.used, record.length) + record.length > group.buffer.size()) {
    close_group(*directory);
  }
  return ok_status();
}

// Counts what users are refused; what is moved is tried again with each poll().
Status Store::refuse(Room why, For reason) {
  const uint64_t user = reason == For::kUser ? 1 : 0;
  switch (why) {
    case Room::kNoBuffer:
      stats_.refused_busy += user;
      return resource_exhausted("disk: as much is being written as there are buffers for; try again, or raise the buffers");
    case Room::kNoSegment:
      stats_.refused_no_segment += user;
      return resource_exhausted("disk: no segment is free yet; one is being made or collected: try again");
    case Room::kFound:
    case Room::kNever: break;
  }
  return internal_error("disk: a record that fits into no segment was accepted");
}

// After it the directory's open group has room for a record of this length.
Store::Room Store::find_room(Directory& directory, uint32_t length, For reason) {
  const auto fits = [&] {
    if (directory.group == nullptr) return false;
    const Group& group = *directory.group;
    const uint64_t end = place_of(group.used, length) + length;
    return group.items.size() < group.slots && end <= group.buffer.size() && group.segment->accepted < largest_count() &&
           group.offset + round_up(end, kPage) + footer_bytes(group.segment->accepted + 1) <= group.segment->bytes;
  };
  if (fits()) return Room::kFound;
  close_group(directory);
  if (directory.open != nullptr && directory.open->header_error != 0) seal(directory);
  for (int round = 0; round < 2; ++round) {
    if (directory.open == nullptr) {
      if (const Room room = open_segment(directory, reason); room != Room::kFound) return room;
    }
    const Segment& segment = *directory.open;
    const uint64_t needed = round_up(place_of(group_header_bytes(1), length) + length, kPage);
    if (segment.accepted < largest_count() && segment.end + needed + footer_bytes(segment.accepted + 1) <= segment.bytes) {
      return open_group(directory, length, reason);
    }
    seal(directory);
  }
  return Room::kNever;
}

std::span<std::byte> Store::stage(uint64_t bytes, For reason) {
  // Reads find half of the memory at least, and what is moved finds some when users take all they can get.
  const uint64_t limit = options_.buffer_bytes / 2 - (reason == For::kUser ? 2 * kGroupBytes : 0);
  if (staged_bytes_ + bytes > limit) return {};
  const std::span<std::byte> buffer = buffers_->allocate(bytes);
  staged_bytes_ += buffer.size();
  return buffer;
}

Store::Room Store::open_group(Directory& directory, uint32_t length, For reason) {
  Segment& segment = *directory.open;
  const uint64_t room = segment.bytes - segment.end - footer_bytes(segment.accepted + 1);
  // Headers for as many blocks of this length as a group takes; what is left of their page is lost if others come.
  const uint64_t slots =
      std::clamp<uint64_t>(std::min<uint64_t>(kGroupFull, room / 2) / std::max<uint32_t>(length, 256), 1, kMaxGroupRecords);
  auto group = std::make_unique<Group>();
  group->header_bytes = group_header_bytes(slots);
  uint64_t needed = round_up(place_of(group->header_bytes, length) + length, kPage);
  if (needed > room) {
    group->header_bytes = group_header_bytes(1);
    needed = round_up(place_of(group->header_bytes, length) + length, kPage);
  }
  group->slots = (group->header_bytes - kGroupHeaderBytes) / kRecordHeaderBytes;
  group->slots = std::min(group->slots, kMaxGroupRecords);
  group->buffer = stage(std::max(needed, std::min<uint64_t>(kGroupBytes, room)), reason);
  if (group->buffer.empty()) return Room::kNoBuffer;
  group->segment = &segment;
  group->offset = segment.end;
  group->used = group->header_bytes;
  group->opened_ns = now();
  directory.group = std::move(group);
  return Room::kFound;
}

Store::Room Store::open_segment(Directory& directory, For reason) {
  // The last one is for what collecting moves: without it nothing could be collected any more.
  if (directory.free.empty() || (reason == For::kUser && room(directory) < 2)) return Room::kNoSegment;
  const std::span<std::byte> page = stage(kPage, reason);
  if (page.empty()) return Room::kNoBuffer;
  // The one that has been free for the longest: files take turns.
  std::unique_ptr<Segment> owned = std::move(directory.free.front());
  directory.free.erase(directory.free.begin());
  Segment& segment = *owned;
  segment.sequence = next_sequence_++;
  segment.state = Segment::State::kOpen;
  segment.end = kPage;
  segment.accepted = 0;
  segment.has_footer = false;
  segment.header_done = false;
  segment.header_error = 0;
  segments_.emplace(segment.sequence, std::move(owned));
  directory.open = &segment;

  auto header = std::make_unique<Group>();
  header->kind = Group::Kind::kHeader;
  header->segment = &segment;
  header->buffer = page;
  encode(SegmentHeader{segment.sequence, segment.bytes, table_.store}, page.first<kPage>());
  send_group(std::move(header), kPage);
  return Room::kFound;
}

void Store::close_group(Directory& directory) {
  if (directory.group == nullptr) return;
  std::unique_ptr<Group> group = std::move(directory.group);
  if (group->items.empty()) {
    staged_bytes_ -= group->buffer.size();
    buffers_->free(group->buffer);
    return;
  }
  const uint64_t bytes = round_up(group->used, kPage);
  std::memset(group->buffer.data() + group->used, 0, bytes - group->used);
  std::vector<Record> records;
  records.reserve(group->items.size());
  for (const Group::Item& item : group->items) records.push_back(item.record);
  encode(GroupHeader{group->segment->sequence, group->offset, static_cast<uint32_t>(records.size()), group->header_bytes,
                     static_cast<uint32_t>(bytes)},
         records, group->buffer);
  group->segment->end = group->offset + bytes;
  group->needs_change = newest_space_change_;
  ++stats_.groups_written;
  send_group(std::move(group), bytes);
}

// The first `bytes` of the group's buffer, to its place; the rest of the buffer is given back.
void Store::send_group(std::unique_ptr<Group> group, uint64_t bytes) {
  if (group->buffer.size() > bytes) {
    buffers_->free(group->buffer.subspan(bytes));
    staged_bytes_ -= group->buffer.size() - bytes;
    group->buffer = group->buffer.first(bytes);
  }
  Segment& segment = *group->segment;
  Directory& directory = *segment.directory;
  ++segment.writes_pending;
  for (uint64_t at = 0; at < bytes; at += kGroupBytes) {
    auto io = std::make_unique<Io>();
    const auto piece = static_cast<uint32_t>(std::min<uint64_t>(kGroupBytes, bytes - at));
    io->request = {IoKind::kWrite, segment.fd.get(), group->offset + at, group->buffer.data() + at, piece, 0};
    io->directory = &directory;
    io->group = group.get();
    ++group->writes_left;
    directory.write_bytes += piece;
    directory.writes.push_back(std::move(io));
  }
  Group* key = group.get();
  groups_.emplace(key, std::move(group));
}

void Store::seal(Directory& directory) {
  close_group(directory);
  if (directory.open == nullptr) return;
  directory.open->state = Segment::State::kSealing;
  sealing_.push_back(directory.open);
  directory.open = nullptr;
}

void Store::write_footers() {
  std::erase_if(sealing_, [this](Segment* segment) { return segment->writes_pending == 0 && write_footer(*segment); });
}

// False: no buffer for now.
bool Store::write_footer(Segment& segment) {
  if (segment.records.empty()) {  // nothing of it could be written
    segment.state = Segment::State::kSealed;
    return true;
  }
  const uint64_t bytes = footer_bytes(segment.records.size());
  auto group = std::make_unique<Group>();
  group->buffer = stage(bytes, For::kMove);
  if (group->buffer.empty()) return false;
  group->kind = Group::Kind::kFooter;
  group->segment = &segment;
  group->offset = segment.bytes - bytes;
  group->footer =
      encode_footer({segment.sequence, segment.bytes, table_.store}, segment.records, group->buffer.first(bytes));
  send_group(std::move(group), bytes);
  return true;
}

// All writes of a group ended.
void Store::group_done(Group& ended) {
  const auto found = groups_.find(&ended);
  std::unique_ptr<Group> group = std::move(found->second);
  groups_.erase(found);
  staged_bytes_ -= group->buffer.size();
  buffers_->free(group->buffer);
  Segment& segment = *group->segment;
  if (group->kind == Group::Kind::kRecords) {
    group->buffer = {};
    untold_.push_back(std::move(group));
    tell_untold();
    return;
  }
  --segment.writes_pending;
  switch (group->kind) {
    case Group::Kind::kHeader:
      segment.header_done = true;
      segment.header_error = group->error;
      tell_untold();
      break;
    case Group::Kind::kFooter:
      segment.state = Segment::State::kSealed;
      segment.has_footer = group->error == 0;
      segment.footer = group->footer;
      if (segment.has_footer) segment.records = {};
      break;
    case Group::Kind::kRecords: break;
    case Group::Kind::kClear:
      --segment.directory->clearing;
      segment.directory->free.push_back(std::move(group->cleared));
      break;
  }
}

// A group counts when a restart would find it: with the header of its segment, and with the numbers of its namespaces in the
// table of one directory at least. What could not be written of these is as lost as if the group itself could not.
void Store::tell_untold() {
  std::vector<std::unique_ptr<Group>> ready;
  std::erase_if(untold_, [&](std::unique_ptr<Group>& group) {
    const bool table_known = group->needs_change <= std::max(known_change_, failed_change_);
    if (!group->segment->header_done || !table_known) return false;
    if (group->segment->header_error != 0) group->error = group->segment->header_error;
    if (group->needs_change > known_change_) group->error = EIO;
    ready.push_back(std::move(group));
    return true;
  });
  for (const std::unique_ptr<Group>& group : ready) {
    --group->segment->writes_pending;
    tell_written(*group, group->error);
  }
}

void Store::tell_written(const Group& group, int error) {
  Segment& segment = *group.segment;
  if (error != 0) segment.accepted -= static_cast<uint32_t>(group.items.size());
  for (const Group::Item& item : group.items) {
    if (error == 0) {
      segment.records.push_back(item.record);
      segment.live_bytes += item.record.length;
      ++segment.live_records;
    }
    if (item.moved_for != nullptr) {
      move_done(*item.moved_for, item.tag, error == 0 ? &item.record : nullptr);
    } else {
      stats_.records_written += error == 0;
      owner_->write_done(item.tag, item.record, error == 0 ? StatusCode::kOk : StatusCode::kUnavailable);
    }
  }
}

void Store::flush_writes() {
  for (const auto& directory : directories_) close_group(*directory);
}

}  // namespace kvist::disk
