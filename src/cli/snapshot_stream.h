// cli/snapshot_stream.h: a snapshot (snapshot_file.h) as a file that is written, and as one that is read.
//
//   auto writer = SnapshotWriter::create({.path = "warm.kvs"}, header, interrupt);
//   (*writer)->add(record, bytes); ...;  (*writer)->finish(left_out);
//
//   auto reader = SnapshotReader::open("warm.kvs", interrupt);
//   while (*(more = (*reader)->next(&record))) (*reader)->read_bytes(room);
//
// A file appears under its name when it is whole and on disk, not before: it is written as PATH.tmp, synchronised, then
// renamed. A writer that ends otherwise takes PATH.tmp away; one that was killed leaves it, and the next one uses it again.
// "-" is standard output, or standard input: then nothing waits without looking at the interrupt.
//
// Threads: one. Nothing here allocates more than a buffer of a MiB.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/interrupt.h"
#include "cli/snapshot_file.h"
#include "kvist/status.h"
#include "memory/shared_memory.h"

namespace kvist::cli {

class SnapshotWriter {
 public:
  struct Place {
    std::string path;      // "-": standard output
    bool replace = false;  // what is called so already
  };
  // kAlreadyExists: there is a file of this name; kFailedPrecondition: it is none that could be replaced, or another writer
  // is at work; kUnavailable, kResourceExhausted: it cannot be written, and why.
  static StatusOr<std::unique_ptr<SnapshotWriter>> create(const Place& place, const SnapshotHeader& header,
                                                          Interrupt& interrupt);
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // `record` without its number, checksum and length, which are set here. kResourceExhausted: the disk is full;
  // kCancelled: interrupted; kUnavailable. After a failure only the destructor may be called.
  Status add(SnapshotRecord record, std::span<const std::byte> bytes);
  // The footer; and the file is there, durably, when this returns OK.
  Status finish(uint64_t left_out);

  const SnapshotTally& tally() const { return tally_; }

 private:
  SnapshotWriter(const Place& place, uint64_t header_bytes, Interrupt& interrupt)
      : place_(place), interrupt_(interrupt), tally_(header_bytes) {}

  bool is_stream() const { return place_.path == "-"; }
  std::string temporary() const { return place_.path + ".tmp"; }
  Status open_temporary();
  Status append(std::span<const std::byte> bytes);
  Status flush();
  Status write_all(std::span<const std::byte> bytes);
  Status wait_until_writable();
  Status take_its_name();
  Status failed(const char* doing, int error) const;

  Place place_;
  Interrupt& interrupt_;
  SnapshotTally tally_;
  FileDescriptor file_;  // of PATH.tmp
  int fd_ = -1;
  bool is_pipe_ = false;
  bool remove_ = false;  // PATH.tmp is ours to take away
  std::vector<std::byte> buffer_;
  uint64_t written_ = 0, told_ = 0;  // bytes written, and of those how many the kernel was told to begin with
};

class SnapshotReader {
 public:
  // kNotFound, kUnavailable: it cannot be opened or read; else as decode_snapshot_header() says, and kDataLoss where the
  // identity is none.
  static StatusOr<std::unique_ptr<SnapshotReader>> open(const std::string& path, Interrupt& interrupt);

  const SnapshotHeader& header() const { return header_; }
  const Identity& identity() const { return identity_; }  // with the file's alias

  // What the end of the file says is in it, before any of it is read. Nothing of a pipe, and of a file whose end is not
  // there: why_no_footer() says so then.
  const std::optional<SnapshotFooter>& footer() const { return footer_; }
  const Status& why_no_footer() const { return why_no_footer_; }

  // The next record; false: the end, and all is as it was written. kDataLoss: what follows cannot be read, since the file is
  // damaged or cut short, and where; kCancelled; kUnavailable: the disk's failure.
  StatusOr<bool> next(SnapshotRecord* record);
  // The bytes of the record that next() gave, once: `to` has as many. False: they are not those that were written.
  StatusOr<bool> read_bytes(std::span<std::byte> to);

  const SnapshotTally& tally() const { return tally_; }

 private:
  SnapshotReader(std::string path, Interrupt& interrupt) : path_(std::move(path)), interrupt_(interrupt), tally_(0) {}

  Status read_header();
  void look_at_end();
  // Fills `to`; fewer bytes: the file ends there.
  StatusOr<size_t> read_some(std::span<std::byte> to);
  Status read_all(std::span<std::byte> to);
  StatusOr<size_t> read_once(std::span<std::byte> to);
  StatusOr<bool> check_end(std::span<const std::byte, kSnapshotFooterBytes> bytes);
  Status damaged(const std::string& what) const;
  std::string name() const { return path_ == "-" ? "standard input" : path_; }

  std::string path_;
  Interrupt& interrupt_;
  FileDescriptor file_;
  int fd_ = -1;
  bool is_regular_ = false;
  uint64_t size_ = 0;  // of a regular file
  std::vector<std::byte> buffer_;
  size_t used_ = 0, filled_ = 0;  // of buffer_
  SnapshotHeader header_;
  Identity identity_;
  std::optional<SnapshotFooter> footer_;
  Status why_no_footer_;
  SnapshotTally tally_;
  std::optional<SnapshotRecord> current_;
};

}  // namespace kvist::cli
