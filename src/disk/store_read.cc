// Reading: in the order of deadlines, through buffers of the store, into memory of the caller; nothing counts before its
// checksum is right.
#include <algorithm>
#include <cerrno>

#include "disk/store_state.h"

namespace kvist::disk {

Status Store::read(const ReadRequest& request) { return queue_read(request, nullptr); }

Status Store::queue_read(const ReadRequest& request, std::function<void(StatusCode)> then) {
  if (closing_) return unavailable("disk: the store is closed");
  const auto found = segments_.find(request.at.sequence());
  if (found == segments_.end()) return not_found("disk: the block's segment was collected");
  Segment& segment = *found->second;
  Directory& directory = *segment.directory;
  if (request.length == 0 || request.at.offset() + request.length > segment.bytes || request.deadline_ns == 0 ||
      total_bytes(request.to) != request.length) {
    return invalid_argument("disk: a read without length or deadline, or with ranges of another length");
  }
  if (!directory.health.may_read()) {
    stats_.refused_unhealthy += then == nullptr;
    return unavailable("disk: " + directory.options.path + " is bypassed: " + directory.health.reason());
  }
  if (then == nullptr && directory.queue.size() >= options_.queued_reads) {
    ++stats_.refused_queue;
    return resource_exhausted("disk: " + std::to_string(directory.queue.size()) + " reads of " + directory.options.path +
                              " wait already");
  }
  auto op = std::make_unique<ReadOp>();
  op->arrival = next_arrival_++;
  op->tag = request.tag, op->deadline_ns = request.deadline_ns, op->need = request.need;
  op->at = request.at, op->length = request.length, op->checksum = request.checksum;
  op->segment = &segment;
  op->to.assign(request.to.begin(), request.to.end());
  op->then = std::move(then);
  const uint64_t begin = request.at.offset(), end = begin + request.length;
  uint64_t at = begin / kPage * kPage;
  const uint64_t last = round_up(end, kPage);
  while (at < last) {
    // Two pages more or less do not make two transfers of one.
    const uint64_t bytes = last - at <= kReadPiece + 2 * kPage ? last - at : kReadPiece;
    ReadOp::Piece piece;
    piece.offset = at, piece.bytes = static_cast<uint32_t>(bytes);
    piece.skip = static_cast<uint32_t>(std::max(begin, at) - at);
    piece.use = static_cast<uint32_t>(std::min(end, at + bytes) - at - piece.skip);
    op->pieces.push_back(piece);
    at += bytes;
  }
  if (op->pieces.size() > 1) op->sum.emplace();
  op->queued = true;
  ++segment.users;
  directory.read_bytes += op->length;
  directory.queue.emplace(op->key(), op.get());
  reads_.emplace(op->arrival, std::move(op));
  return ok_status();
}

uint64_t Store::predict_ns(Location at, uint32_t length) const {
  const auto found = segments_.find(at.sequence());
  if (found == segments_.end()) return ~uint64_t{0};
  const Directory& directory = *found->second->directory;
  return directory.health.may_read() ? directory.health.predict_ns(length, directory.read_bytes) : ~uint64_t{0};
}

Store::ReadSpeed Store::read_speed() const {
  constexpr uint64_t kMiB = 1 << 20;
  ReadSpeed speed;
  double bytes_per_ns = 0, able = 0;
  for (const auto& directory : directories_) {
    if (!directory->health.may_read()) continue;
    const auto wait = static_cast<double>(directory->health.predict_ns(0, directory->read_bytes));
    const auto of_mib = static_cast<double>(directory->health.predict_ns(kMiB, directory->read_bytes)) - wait;
    speed.wait_ns += wait;
    bytes_per_ns += kMiB / std::max(of_mib, 1.0);
    ++able;
  }
  if (able == 0) return speed;
  speed.wait_ns /= able;
  speed.ns_per_byte = 1 / bytes_per_ns;
  return speed;
}

void Store::pump_reads(Directory& directory) {
  while (!directory.queue.empty() && directory.reads_in_flight < options_.read_depth) {
    ReadOp& op = *directory.queue.begin()->second;
    if (!issue_piece(directory, op)) return;
    if (op.issued < op.pieces.size()) continue;
    directory.queue.erase(op.key());
    op.queued = false;
    directory.active.insert(&op);
  }
}

// False: no buffer, or no room in the engine.
bool Store::issue_piece(Directory& directory, ReadOp& op) {
  ReadOp::Piece& piece = op.pieces[op.issued];
  piece.buffer = buffers_->allocate(piece.bytes);
  if (piece.buffer.empty()) return false;
  auto io = std::make_unique<Io>();
  io->request = {IoKind::kRead, op.segment->fd.get(), piece.offset, piece.buffer.data(), piece.bytes, 0};
  io->directory = &directory;
  io->read = op.arrival;
  io->piece = op.issued;
  if (!start_io(io)) {
    buffers_->free(piece.buffer);
    piece.buffer = {};
    return false;
  }
  ++directory.reads_in_flight;
  ++op.issued;
  ++op.in_flight;
  return true;
}

void Store::piece_done(std::unique_ptr<Io> io, int64_t result) {
  Directory& directory = *io->directory;
  const uint64_t now_ns = now();
  ReadOp& op = *reads_.at(io->read);
  ReadOp::Piece& piece = op.pieces[io->piece];
  --directory.reads_in_flight;
  if (result > 0 && result < io->request.bytes && result % kPage == 0) {  // short, as any read may be
    io->request.offset += static_cast<uint64_t>(result);
    io->request.data += result;
    io->request.bytes -= static_cast<uint32_t>(result);
    if (start_io(io)) {
      ++directory.reads_in_flight;
      return;
    }
    result = -EAGAIN;
  }
  const uint64_t took_ns = now_ns - io->started_ns;
  // The end of the file is not the device's fault: somebody cut it. The piece counts as under way meanwhile, so that the
  // operation stays, whatever the owner does when it is told of a change.
  const int error = result < 0 ? static_cast<int>(-result) : 0;
  if (directory.health.note_transfer(false, error, took_ns, now_ns)) note_change(directory);
  --op.in_flight;
  if (result == static_cast<int64_t>(io->request.bytes)) {
    directory.health.note_read(piece.bytes, took_ns, now_ns - std::max(directory.last_read_ns, io->started_ns));
    directory.last_read_ns = now_ns;
    piece.ready = true;
    arrived_.push_back(op.arrival);
  } else {
    note_error(directory, false, error);
    end_read(op, StatusCode::kDataLoss);
  }
  release_read(op);
}

// Verifying is left until the device has its next transfers.
void Store::absorb_arrived() {
  if (arrived_.empty()) return;
  pump();
  for (size_t i = 0; i < arrived_.size(); ++i) {
    const auto found = reads_.find(arrived_[i]);
    if (found == reads_.end()) continue;
    absorb(*found->second);
    release_read(*found->second);
  }
  arrived_.clear();
}

// What arrived in order goes to its ranges, and into the checksum on the way.
void Store::absorb(ReadOp& op) {
  while (op.absorbed < op.pieces.size() && op.pieces[op.absorbed].ready) {
    ReadOp::Piece& piece = op.pieces[op.absorbed];
    const std::span<const std::byte> bytes(piece.buffer.data() + piece.skip, piece.use);
    ++op.absorbed;
    if (!op.ended) {
      if (op.pieces.size() == 1) {
        const uint64_t sum = copy_out_.scatter_checksum(op.to, bytes.data());
        end_read(op, sum == op.checksum ? StatusCode::kOk : StatusCode::kDataLoss);
      } else {
        for (size_t done = 0; done < bytes.size();) {
          const Range& range = op.to[op.range];
          const size_t some = std::min(range.size - op.range_used, bytes.size() - done);
          op.sum->update_copying(static_cast<std::byte*>(range.data) + op.range_used, bytes.subspan(done, some),
                                 Stores::kStreaming);
          done += some;
          op.range_used += some;
          if (op.range_used == range.size) ++op.range, op.range_used = 0;
        }
        if (op.absorbed == op.pieces.size()) {
          copy_out_.order();
          end_read(op, op.sum->finish() == op.checksum ? StatusCode::kOk : StatusCode::kDataLoss);
        }
      }
    }
    buffers_->free(piece.buffer);
    piece.buffer = {};
  }
}

// Tells whoever asked. The operation stays until its pieces are back.
void Store::end_read(ReadOp& op, StatusCode code) {
  if (op.ended) return;
  op.ended = true;
  Directory& directory = *op.segment->directory;
  directory.read_bytes -= op.length;
  if (op.queued) directory.queue.erase(op.key());
  op.queued = false;
  const bool all_there = op.absorbed == op.pieces.size();
  if (code == StatusCode::kDataLoss && all_there) {
    ++stats_.bad_records;
    log_.warn("a block on disk is not what was written; it is a miss",
              {{"directory", directory.options.path}, {"segment", op.segment->file}, {"offset", op.at.offset()}});
  }
  if (code == StatusCode::kDeadlineExceeded) ++stats_.deadlines;
  if (op.then != nullptr) {
    const std::function<void(StatusCode)> then = std::move(op.then);
    then(code);
    return;
  }
  if (code == StatusCode::kOk) {
    ++stats_.reads;
    stats_.read_bytes += op.length;
  } else {
    ++stats_.read_misses;
  }
  owner_->read_done(op.tag, code);
}

void Store::release_read(ReadOp& op) {
  if (!op.ended || op.in_flight > 0) return;
  for (ReadOp::Piece& piece : op.pieces) {
    if (!piece.buffer.empty()) buffers_->free(piece.buffer);
  }
  --op.segment->users;
  op.segment->directory->active.erase(&op);
  reads_.erase(op.arrival);
}

void Store::expire_reads(Directory& directory, uint64_t now_ns) {
  while (!directory.queue.empty() && directory.queue.begin()->second->deadline_ns <= now_ns) {
    ReadOp& op = *directory.queue.begin()->second;
    end_read(op, StatusCode::kDeadlineExceeded);
    directory.active.insert(&op);
    release_read(op);
  }
  std::vector<uint64_t> late;  // by number: the owner may do anything meanwhile
  for (const ReadOp* op : directory.active) {
    if (!op->ended && op->deadline_ns <= now_ns) late.push_back(op->arrival);
  }
  for (const uint64_t arrival : late) {
    if (const auto found = reads_.find(arrival); found != reads_.end())
      end_read(*found->second, StatusCode::kDeadlineExceeded);
  }
}

void Store::fail_queued_reads(Directory& directory, StatusCode code) {
  while (!directory.queue.empty()) {
    ReadOp& op = *directory.queue.begin()->second;
    end_read(op, code);
    directory.active.insert(&op);
    release_read(op);
  }
}

}  // namespace kvist::disk
