// disk/store.h: blocks on disk: a log of segments in one or several directories, written and read without waiting.
//
//   StatusOr<std::unique_ptr<Store>> store = Store::open(options, &owner, clock, log);
//   (*store)->recover();                                   // owner.found(record), for each record of before
//   (*store)->write(record, {&bytes, 1}, tag);             // ... owner.write_done(tag, record, kOk): record.at is its place
//   (*store)->read({.at = at, .length = n, .checksum = c, .to = ranges, .deadline_ns = d, .tag = tag});   // ... read_done
//   poll {(*store)->event_fd()} for (*store)->wait_ms(), then (*store)->poll();
//
// The store keeps no index: whoever owns it keeps eight bytes a block, the Location, and is told whatever happens to them.
// It keeps a promise about bytes: what read_done() calls kOk are the bytes whose checksum was asked for, whatever the disk
// did. All else may be lost at any time, and is then said to be lost.
//
//   write()   copies the bytes (so the source is free when it returns) and compares their checksum on the way. Records are
//             gathered into writes of a MiB, at most write_linger apart.
//   read()    goes through the store's own memory into the ranges given: these are no longer touched from the moment at
//             which read_done() was called, also where that is for a deadline and the device still works.
//   space     files are made up to the capacity, then the segment with the least that is live (or the oldest) is collected:
//             the owner chooses which of its records are worth writing again, the rest is gone.
//   faults    each is counted, logged with what to do (a bounded number of lines), and ends in calls that are refused early
//             or in misses. What a device does is judged by a Health for each directory.
//
// Threads: one, the owner's loop; the owner is called in poll(), recover() and close() only, and may call the store from
// there. Nothing blocks but open(), recover() and close(). No call allocates without a bound: buffers, queues, reads.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"
#include "disk/buffers.h"
#include "disk/folder.h"
#include "disk/format.h"
#include "disk/health.h"
#include "disk/io_engine.h"
#include "disk/workers.h"

namespace kvist::disk {

struct DirectoryOptions {
  std::string path;
  uint64_t capacity_bytes = 0;  // of all files that the store makes there; at least eight segments
};

struct StoreOptions {
  std::vector<DirectoryOptions> directories;   // 1 to 64, each on a device of its own if it is to gain anything
  uint64_t segment_bytes = 0;                  // 0: default_segment_bytes() of the smallest capacity
  uint64_t buffer_bytes = uint64_t{64} << 20;  // memory for transfers; a block is at most a quarter of it
  uint32_t read_depth = 32, write_depth = 16;  // transfers under way in a directory
  uint32_t queued_reads = 4096;                // that wait, in a directory; more are refused
  std::chrono::nanoseconds write_linger = std::chrono::milliseconds(20);
  double reinsert_share = 0.5;  // of a segment, at most, is written again when it is collected
  HealthOptions health;
  IoChoice io = IoChoice::kAuto;
  DirectChoice direct = DirectChoice::kAuto;
  // For tests: what stands between the store and its engine.
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap_engine;
};

// Tens of MiB, so that there are some hundreds of them.
uint64_t default_segment_bytes(uint64_t capacity_bytes);

struct ReadRequest {
  Location at;
  uint32_t length = 0;
  uint64_t checksum = 0;
  std::span<const Range> to;  // their sizes add up to length; copied
  uint64_t deadline_ns = 0;   // of the store's clock
  uint32_t need = 0;          // of two with one deadline the smaller one is read first: a layer, a position
  uint64_t tag = 0;
};

// What the store tells. Records are as they lie, with their place.
class StoreOwner {
 public:
  virtual ~StoreOwner() = default;
  // recover(): a block of before, segments in the order in which they were written. False: not wanted (another record of the
  // name is; see Record::generation). Its namespace is one of spaces().
  virtual bool found(const Record& record) = 0;
  // kOk: it can be read now. kUnavailable: it could not be written, kCancelled: the store was closed first.
  virtual void write_done(uint64_t tag, const Record& record, StatusCode code) = 0;
  // kOk; kDeadlineExceeded; else a miss for good, after which the owner has to drop() the record: kDataLoss (other bytes, or
  // the device says so), kNotFound (its segment is gone); or for now: kUnavailable (the device is bypassed), kCancelled.
  virtual void read_done(uint64_t tag, StatusCode code) = 0;
  // A segment is collected: say which of its records are worth writing again. Those that are not are gone when this returns,
  // as if they had been dropped. Records that are not at this place any more (moved, dropped) are to be left out.
  virtual void choose(std::span<const Record> records, std::vector<bool>* keep) = 0;
  // A record that was kept lies elsewhere now; or it is gone after all.
  virtual void moved(const Record& from, const Record& to) = 0;
  virtual void lost(const Record& record) = 0;
};

struct StoreStats {
  uint64_t capacity_bytes = 0;  // configured
  uint64_t file_bytes = 0;      // of segment files, whatever is in them
  uint64_t live_bytes = 0, live_records = 0;
  uint64_t segments = 0, free_segments = 0;
  // Wear. written: all that was sent to the devices, padding, headers, footers and records that were moved included.
  uint64_t user_bytes = 0, written_bytes = 0, moved_bytes = 0;
  uint64_t records_written = 0, records_moved = 0, groups_written = 0, segments_collected = 0, records_lost = 0;
  uint64_t reads = 0, read_bytes = 0, read_misses = 0;  // reads: that ended kOk
  // Refusals, early: writes by reason, reads by reason.
  uint64_t refused_busy = 0, refused_no_segment = 0, refused_unhealthy = 0, refused_queue = 0, refused_bad_source = 0;
  // Faults.
  uint64_t bad_records = 0, read_errors = 0, write_errors = 0, no_space = 0, deadlines = 0, bypassed = 0, resumed = 0,
           probes = 0, vanished = 0, lost_footers = 0, table_errors = 0;
  // Of recover().
  uint64_t recovered_records = 0, recovered_segments = 0, scanned_segments = 0, torn_records = 0, flushed_records = 0,
           damaged_segments = 0;
  double write_amplification() const {
    return user_bytes == 0 ? 0 : static_cast<double>(written_bytes) / static_cast<double>(user_bytes);
  }
};

struct DirectoryReport {
  std::string path, why_not_direct, reason;  // reason: of a state that is not kServing
  DiskState state = DiskState::kServing;
  uint64_t capacity_bytes = 0, file_bytes = 0, live_bytes = 0, queued_reads = 0, transfers = 0;
};

class Store {
 public:
  // Locks the directories and reads what they say of themselves. kInvalidArgument, kFailedPrecondition, kResourceExhausted,
  // each with the directory and what to do. Owner, clock and log outlive the store.
  static StatusOr<std::unique_ptr<Store>> open(const StoreOptions& options, StoreOwner* owner, const Clock& clock,
                                               Logger& log);
  // As if the process died, but for waiting for transfers that are under way, for a bounded time. close() first keeps what
  // was accepted.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // ---- namespaces: to be reopened before recover(), or their records are dropped ----

  const std::vector<SpaceEntry>& spaces() const { return table_.spaces; }
  // Its number for records, a new one if this id has none. The table is written in the background.
  StatusOr<uint32_t> open_space(std::string_view alias, std::string_view record, const NamespaceId& id);
  // From now on records of this number mean nothing, in any later run too once `done` was called (in poll(), with the status
  // of writing that down; kDeadlineExceeded if a directory does not answer).
  void close_space(uint32_t number, std::function<void(const Status&)> done);

  // Finds the records of before. Reads footers, not bytes, but for the segments that were open. Blocks. kUnimplemented: a
  // segment of a newer release.
  Status recover();

  // ---- writing and reading ----

  // record.length bytes in the ranges. kDataLoss: their checksum is not record.checksum; kInvalidArgument: no such record
  // can be; kResourceExhausted: no buffer or no segment for now; kUnavailable: no directory takes writes, with the reason.
  // record.at and record.generation are ignored.
  Status write(const Record& record, std::span<const ConstRange> from, uint64_t tag);
  uint64_t largest_record() const;
  // Whether so many bytes would be taken now: kBusy: perhaps, with less than half of the writes' buffers or no free segment
  // left; kNone: no directory takes writes.
  enum class WriteRoom : uint8_t { kFree, kBusy, kNone };
  WriteRoom write_room(uint64_t bytes) const;
  // Of a segment that is collected, bytes that may be written again.
  uint64_t most_kept() const { return static_cast<uint64_t>(options_.reinsert_share * static_cast<double>(segment_bytes_)); }
  // Sends what waits for more to come.
  void flush_writes();

  // kNotFound: the segment is gone (drop the record); kResourceExhausted: too many wait; kUnavailable: bypassed;
  // kInvalidArgument.
  Status read(const ReadRequest& request);
  // When a read would be done, in ns from now; ~0: it would not (segment gone, device bypassed).
  uint64_t predict_ns(Location at, uint32_t length) const;
  // The same for what lies spread over all directories that are read: until the first byte of a read that is asked for now,
  // and for each byte then. Zero where none is.
  struct ReadSpeed {
    double wait_ns = 0, ns_per_byte = 0;
  };
  ReadSpeed read_speed() const;

  // The owner does not want it any more.
  void drop(Location at, uint32_t length);

  // ---- the loop ----

  int event_fd() const { return event_.get(); }
  void poll();
  // Until poll() has something to do of its own; -1: nothing.
  int wait_ms() const;
  // Writes, moves and reads that were accepted and have not ended.
  bool idle() const;

  // Writes what waits, and the footers of open segments, so that the next start reads no bytes. Blocks, until the deadline.
  Status close(Deadline deadline);

  StoreStats stats() const;
  std::vector<DirectoryReport> directories() const;
  std::string describe() const;  // for the start-up line

 private:
  struct Segment;
  struct Group;
  struct ReadOp;
  struct Io;
  struct Directory;
  enum class For : uint8_t { kUser, kMove };
  enum class Room : uint8_t { kFound, kNoBuffer, kNoSegment, kNever };
  struct Waiting {
    uint64_t change, due_ns;
    std::function<void(const Status&)> done;
  };

  Store(const StoreOptions& options, StoreOwner* owner, const Clock& clock, Logger& log);
  Status open_directories();
  Status open_engine();
  uint64_t now() const { return clock_.now_ns(); }

  // store_spaces.cc
  Status adopt_tables();
  uint64_t overhead_bytes() const;
  void save_table();
  void table_written(uint64_t change, const Status& status);
  void watch_table();
  void tell_waiting(const std::function<bool(const Waiting&)>& whose, const Status& status);

  // store_write.cc
  Status check_record(const Record& record, std::span<const ConstRange> from) const;
  uint32_t largest_count() const;
  Status write_record(const Record& record, std::span<const ConstRange> from, uint64_t tag, Directory* moved_for);
  std::vector<Directory*> directories_for_write(Status* why_not);
  Status refuse(Room why, For reason);
  Room find_room(Directory& directory, uint32_t length, For reason);
  Room open_group(Directory& directory, uint32_t length, For reason);
  Room open_segment(Directory& directory, For reason);
  void close_group(Directory& directory);
  void seal(Directory& directory);
  void write_footers();
  bool write_footer(Segment& segment);
  std::span<std::byte> stage(uint64_t bytes, For reason);
  void send_group(std::unique_ptr<Group> group, uint64_t bytes);
  void group_done(Group& group);
  void tell_untold();
  void tell_written(const Group& group, int error);

  // store_read.cc
  Status queue_read(const ReadRequest& request, std::function<void(StatusCode)> then);
  void pump_reads(Directory& directory);
  bool issue_piece(Directory& directory, ReadOp& op);
  void piece_done(std::unique_ptr<Io> io, int64_t result);
  void absorb_arrived();
  void absorb(ReadOp& op);
  void end_read(ReadOp& op, StatusCode code);
  void release_read(ReadOp& op);
  void expire_reads(Directory& directory, uint64_t now_ns);
  void fail_queued_reads(Directory& directory, StatusCode code);

  // store_collect.cc
  uint64_t room(const Directory& directory) const;  // segments that are free or may be made
  void make_segments(Directory& directory);
  void collect(Directory& directory);
  Segment* choose_victim(Directory& directory);
  void choose_records(Directory& directory, const std::vector<Record>& records);
  void move_records(Directory& directory);
  void write_move(Directory& directory, size_t slot);
  void move_done(Directory& directory, size_t slot, const Record* to);
  bool free_segment(Segment& segment);

  // store_recover.cc
  Status find_segments(Directory& directory, std::span<std::byte> buffer);
  Status take_file(Directory& directory, const Folder::SegmentFile& file, std::span<std::byte> buffer);
  void keep_within_capacity(Directory& directory);
  void load_segment(Segment& segment, const std::unordered_set<uint32_t>& known, std::span<std::byte> buffer);
  bool read_footer(Segment& segment, std::span<std::byte> buffer, std::vector<Record>* records);
  void scan(Segment& segment, std::span<std::byte> buffer, std::vector<Record>* records);
  void write_recovered_footer(Segment& segment, uint64_t end, const std::vector<Record>& records);

  // store.cc
  bool start_io(std::unique_ptr<Io>& io);
  void io_done(uint64_t tag, int64_t result);
  void write_io_done(std::unique_ptr<Io> io, int64_t result);
  void pump();
  void watch();
  void probe(Directory& directory);
  void note_change(Directory& directory);
  void note_error(Directory& directory, bool write, int error);

  const StoreOptions options_;
  StoreOwner* const owner_;
  const Clock& clock_;
  Logger& log_;
  FileDescriptor event_;
  uint64_t segment_bytes_ = 0;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<IoEngine> engine_;
  std::string why_not_ring_;
  const Copier copy_in_, copy_out_;

  std::vector<std::unique_ptr<Directory>> directories_;
  std::unordered_map<uint64_t, std::unique_ptr<Segment>> segments_;  // by sequence
  uint64_t next_sequence_ = 1, next_generation_ = 1, next_arrival_ = 1;
  std::vector<std::unique_ptr<Io>> ios_;  // under way; the tag is the place here
  std::vector<uint32_t> free_ios_;
  std::unordered_map<Group*, std::unique_ptr<Group>> groups_;    // closed, being written
  std::vector<std::unique_ptr<Group>> untold_;                   // written, but for what a restart needs to find them
  std::vector<Segment*> sealing_;                                // all groups closed, no footer yet
  std::unordered_map<uint64_t, std::unique_ptr<ReadOp>> reads_;  // by arrival
  uint64_t staged_bytes_ = 0;                                    // of buffers, for writes
  std::vector<IoDone> done_;
  std::vector<uint64_t> arrived_;  // reads with pieces that were not looked at yet
  bool closing_ = false;

  SpaceTable table_;
  uint64_t newest_space_change_ = 0;  // the one that brought the newest namespace
  uint64_t known_change_ = 0;         // that one directory has at least
  uint64_t failed_change_ = 0;        // that none could be given
  uint64_t saved_change_ = 0;         // that all directories have
  uint32_t saving_ = 0;               // directories that are being written to
  Status saving_status_;
  uint64_t save_again_ns_ = 0;    // if it could not be
  std::vector<Waiting> waiting_;  // for saved_change_
  StoreStats stats_;
};

}  // namespace kvist::disk
