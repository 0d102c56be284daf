// What a restart finds: segments in the order in which they were written, by their footers; those that were open by their
// groups, with the bytes compared.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "disk/store_state.h"

namespace kvist::disk {
namespace {

constexpr uint64_t kRecoverBuffer = 4 << 20;

// As many of the bytes as there are.
uint64_t read_at(int fd, uint64_t offset, std::span<std::byte> to) {
  uint64_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got <= 0) break;
    done += static_cast<uint64_t>(got);
    if (done % kPage != 0) break;  // the end of the file
  }
  return done;
}

// A stretch of a file in memory that follows what is asked for, forwards.
class Window {
 public:
  Window(int fd, uint64_t file_bytes, std::span<std::byte> buffer) : fd_(fd), file_bytes_(file_bytes), buffer_(buffer) {}

  // Up to `bytes` bytes from `offset` on, fewer at the end of the file or where it cannot be read.
  std::span<const std::byte> at(uint64_t offset, uint64_t bytes) {
    bytes = std::min({bytes, file_bytes_ - std::min(offset, file_bytes_), buffer_.size() - kPage});
    if (offset < begin_ || offset + bytes > begin_ + have_) {
      begin_ = offset / kPage * kPage;
      const uint64_t wanted = std::min(buffer_.size(), round_up(file_bytes_, kPage) - begin_);
      have_ = read_at(fd_, begin_, buffer_.first(static_cast<size_t>(wanted)));
    }
    const uint64_t skip = offset - begin_;
    if (skip >= have_) return {};
    return std::span<const std::byte>(buffer_).subspan(static_cast<size_t>(skip),
                                                       static_cast<size_t>(std::min(bytes, have_ - skip)));
  }

  bool matches(const Record& record) {
    Checksum sum;
    for (uint64_t done = 0; done < record.length;) {
      const std::span<const std::byte> some = at(record.at.offset() + done, record.length - done);
      if (some.empty()) return false;
      sum.update(some);
      done += some.size();
    }
    return sum.finish() == record.checksum;
  }

 private:
  const int fd_;
  const uint64_t file_bytes_;
  const std::span<std::byte> buffer_;
  uint64_t begin_ = 0, have_ = 0;
};

}  // namespace

Status Store::recover() {
  const std::span<std::byte> buffer = buffers_->allocate(kRecoverBuffer);
  for (const auto& directory : directories_) {
    if (Status status = find_segments(*directory, buffer); !status.ok()) return status;
    keep_within_capacity(*directory);
  }
  std::vector<Segment*> in_order;
  for (const auto& [sequence, segment] : segments_) in_order.push_back(segment.get());
  std::sort(in_order.begin(), in_order.end(), [](const Segment* a, const Segment* b) { return a->sequence < b->sequence; });
  std::unordered_set<uint32_t> known;
  for (const SpaceEntry& space : table_.spaces) known.insert(space.number);
  for (Segment* segment : in_order) load_segment(*segment, known, buffer);
  buffers_->free(buffer);
  for (const auto& directory : directories_) make_segments(*directory);
  return ok_status();
}

// The headers of all files; what is none of this store's is room.
Status Store::find_segments(Directory& directory, std::span<std::byte> buffer) {
  const StatusOr<std::vector<Folder::SegmentFile>> files = directory.folder->list_segments();
  if (!files.ok()) return files.status();
  for (const Folder::SegmentFile& file : *files) {
    directory.next_file = std::max(directory.next_file, file.number + 1);
    if (Status status = take_file(directory, file, buffer); !status.ok()) return status;
  }
  return ok_status();
}

Status Store::take_file(Directory& directory, const Folder::SegmentFile& file, std::span<std::byte> buffer) {
  StatusOr<FileDescriptor> fd = directory.folder->open_segment(file.number);
  if (!fd.ok()) return fd.status();
  SegmentHeader header;
  Status read = data_loss("an unreadable header");
  const bool whole = read_at(fd->get(), 0, buffer.first(kPage)) == kPage;
  if (whole) read = decode(buffer.first(kPage), &header);
  if (read.code() == StatusCode::kUnimplemented) {
    return failed_precondition("disk: " + directory.options.path + ", file " + std::to_string(file.number) + ": " +
                               std::string(read.message()));
  }
  auto segment = std::make_unique<Segment>();
  segment->directory = &directory;
  segment->fd = *std::move(fd);
  segment->file = file.number;
  segment->bytes = segment->file_bytes = file.bytes;
  const bool ours = read.ok() && header.store == table_.store && !segments_.contains(header.sequence);
  if (!ours && file.bytes != segment_bytes_) {
    ++stats_.damaged_segments;
    directory.folder->remove_segment(file.number);
    return ok_status();
  }
  directory.file_bytes += file.bytes;
  if (!ours) {
    // A file that was made and not yet used is no damage.
    const bool unused =
        whole && std::all_of(buffer.begin(), buffer.begin() + kPage, [](std::byte b) { return b == std::byte{0}; });
    stats_.damaged_segments += unused ? 0 : 1;
    directory.free.push_back(std::move(segment));
    return ok_status();
  }
  segment->sequence = header.sequence;
  segment->state = Segment::State::kSealed;
  // A file that was cut, or has another size than its header says, is read as far as both go, and not used again.
  segment->bytes = std::min(file.bytes / kPage * kPage, header.segment_bytes);
  next_sequence_ = std::max(next_sequence_, header.sequence + 1);
  segments_.emplace(header.sequence, std::move(segment));
  return ok_status();
}

// After a smaller capacity was configured: free files go first, then the oldest segments.
void Store::keep_within_capacity(Directory& directory) {
  const auto over = [&] { return directory.file_bytes + overhead_bytes() > directory.options.capacity_bytes; };
  while (over() && !directory.free.empty()) {
    directory.folder->remove_segment(directory.free.back()->file);
    directory.file_bytes -= directory.free.back()->file_bytes;
    directory.free.pop_back();
  }
  while (over()) {
    Segment* oldest = nullptr;
    for (const auto& [sequence, segment] : segments_) {
      if (segment->directory == &directory && (oldest == nullptr || sequence < oldest->sequence)) oldest = segment.get();
    }
    if (oldest == nullptr) return;
    directory.folder->remove_segment(oldest->file);
    directory.file_bytes -= oldest->file_bytes;
    segments_.erase(oldest->sequence);
  }
}

void Store::load_segment(Segment& segment, const std::unordered_set<uint32_t>& known, std::span<std::byte> buffer) {
  std::vector<Record> records;
  if (!read_footer(segment, buffer, &records)) scan(segment, buffer, &records);
  if (records.empty()) {  // it was opened, and nothing came of it
    (void)free_segment(segment);
    return;
  }
  ++stats_.recovered_segments;
  for (const Record& record : records) {
    next_generation_ = std::max(next_generation_, record.generation + 1);
    if (!known.contains(record.space)) {
      ++stats_.flushed_records;
      continue;
    }
    // Counted first: the owner may drop this one or another one of its name.
    segment.live_bytes += record.length;
    ++segment.live_records;
    ++stats_.recovered_records;
    if (!owner_->found(record)) drop(record.at, record.length);
  }
}

bool Store::read_footer(Segment& segment, std::span<std::byte> buffer, std::vector<Record>* records) {
  const SegmentHeader header{segment.sequence, segment.bytes, table_.store};
  if (segment.bytes < kSmallestSegment) return false;
  // Mostly one read: the last page and what is before it.
  const uint64_t tail = std::min<uint64_t>(buffer.size(), std::min<uint64_t>(segment.bytes, 64 << 10));
  if (read_at(segment.fd.get(), segment.bytes - tail, buffer.first(tail)) != tail) return false;
  Footer footer;
  if (!decode_footer(buffer.subspan(tail - kPage, kPage), header, &footer)) return false;
  const uint64_t bytes = segment.bytes - footer.entries_at;
  std::span<const std::byte> entries;
  std::vector<std::byte> large;
  if (bytes <= tail) {
    entries = buffer.subspan(tail - bytes, bytes);
  } else {
    // Footers are bounded by the buffers of whoever wrote them, not by ours: in pieces.
    large.resize(bytes);
    for (uint64_t done = 0; done < bytes; done += buffer.size()) {
      const uint64_t some = std::min<uint64_t>(buffer.size(), bytes - done);
      if (read_at(segment.fd.get(), footer.entries_at + done, buffer.first(some)) != some) return false;
      std::memcpy(large.data() + done, buffer.data(), some);
    }
    entries = large;
  }
  if (!decode_entries(entries, header, footer, records)) return false;
  segment.has_footer = true;
  segment.footer = footer;
  return true;
}

// A segment that was open when the process ended, or whose footer is damaged. Writes end in any order, so a group that is
// missing says nothing about the next: the search goes on page by page.
void Store::scan(Segment& segment, std::span<std::byte> buffer, std::vector<Record>* records) {
  ++stats_.scanned_segments;
  const SegmentHeader header{segment.sequence, segment.bytes, table_.store};
  Window window(segment.fd.get(), segment.bytes, buffer);
  uint64_t end = kPage;
  for (uint64_t at = kPage; at + kPage < segment.bytes;) {
    GroupHeader group;
    std::vector<Record> found;
    if (!begins_group(window.at(at, kGroupHeaderBytes), header, at, &group) ||
        !decode_group(window.at(at, group.header_bytes), header, at, &group, &found)) {
      at += kPage;
      continue;
    }
    for (const Record& record : found) {
      if (window.matches(record)) {
        records->push_back(record);
      } else {
        ++stats_.torn_records;
      }
    }
    at += group.group_bytes;
    end = at;
  }
  segment.records = *records;
  write_recovered_footer(segment, end, *records);
}

// So that the next start need not look again. If there is no room for it, or it cannot be written, it will.
void Store::write_recovered_footer(Segment& segment, uint64_t end, const std::vector<Record>& records) {
  const uint64_t bytes = footer_bytes(records.size());
  if (records.empty() || segment.bytes != segment_bytes_ || end + bytes > segment.bytes) return;
  const std::span<std::byte> buffer = buffers_->allocate(bytes);
  if (buffer.empty()) return;
  const Footer footer = encode_footer({segment.sequence, segment.bytes, table_.store}, records, buffer.first(bytes));
  const ssize_t wrote = ::pwrite(segment.fd.get(), buffer.data(), bytes, static_cast<off_t>(segment.bytes - bytes));
  buffers_->free(buffer);
  stats_.written_bytes += wrote > 0 ? static_cast<uint64_t>(wrote) : 0;
  if (wrote != static_cast<ssize_t>(bytes)) {
    ++stats_.write_errors;
    return;
  }
  segment.has_footer = true;
  segment.footer = footer;
  segment.records = {};
}

}  // namespace kvist::disk
