// disk/folder.h: one directory of the disk tier: its lock, its files, and how its file system does direct I/O.
//
//   kvist.lock     held (flock) by the node that uses the directory; its text names that node
//   kvist.disk     which store this is, and its namespaces (SpaceTable); replaced by renaming
//   N.segment      a segment, N in eight digits; a file is used again and again
//   kvist.probe    a page that is written and read to see whether the device works again
//
// Whatever else lies in the directory is left alone. Nothing is found through a symbolic link.
//
// Threads: any, one at a time; all members block as long as the file system does. Errors name the directory and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "disk/format.h"
#include "kvist/status.h"
#include "memory/shared_memory.h"

namespace kvist::disk {

enum class DirectChoice : uint8_t { kAuto, kRequire, kOff };

class Folder {
 public:
  Folder() = default;

  // Makes the directory if only its last part is missing, and takes the lock. kFailedPrecondition: it cannot be used, or
  // another node (which is named) uses it; with kRequire also: no direct I/O here, with the reason.
  static StatusOr<Folder> open(const std::string& path, DirectChoice direct);

  const std::string& path() const { return path_; }
  bool direct() const { return why_not_direct_.empty(); }
  // Why transfers go through the page cache; empty: they do not.
  const std::string& why_not_direct() const { return why_not_direct_; }
  // Whether the path still names this directory.
  bool is_there() const;

  // kNotFound: there is none. kUnimplemented, kDataLoss: as decode() says.
  Status read_table(SpaceTable* table) const;
  // In place, durably, when this returns.
  Status write_table(const SpaceTable& table) const;

  struct SegmentFile {
    uint32_t number = 0;
    uint64_t bytes = 0;
  };
  StatusOr<std::vector<SegmentFile>> list_segments() const;
  StatusOr<FileDescriptor> open_segment(uint32_t number) const;
  // A new file of so many bytes, with its room reserved where the file system can. kResourceExhausted: no room;
  // kAlreadyExists: something is called so;
  // kFailedPrecondition: the file system is read-only, or the directory is not in its place any more; kUnavailable: else.
  StatusOr<FileDescriptor> create_segment(uint32_t number, uint64_t bytes) const;
  void remove_segment(uint32_t number) const;
  // Opened or made; one page.
  StatusOr<FileDescriptor> open_probe() const;

 private:
  Status take_lock();
  void find_direct(DirectChoice direct);
  int flags() const;

  std::string path_;
  FileDescriptor folder_, lock_;
  std::string why_not_direct_;
};

}  // namespace kvist::disk
