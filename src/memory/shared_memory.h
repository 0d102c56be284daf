// memory/shared_memory.h: memory that processes share by descriptor: sealed memfds and their mappings.
//
// The owner creates one (create), populates ranges of it ahead of demand (populate) and passes the descriptor over a Unix
// socket; the other side maps it (map). Seals keep either side from shrinking it, so that no access is ever beyond its end
// (SIGBUS); with seal_future_write() the receiver can map it for reading only.
//
// What no seal forbids short of forbidding all writes: whoever has a writable descriptor can punch holes into the memory
// (fallocate). The next access to a hole gets a page of zeros, charged to whoever touches it; only where the system or a
// cgroup has no page left can that fail, as any page fault then does. So pages that were populated stay for as long as all
// who hold a writable descriptor mean well. A block with a hole does not match its checksum: a miss for who verifies.
//
// Huge pages come in two ways. A memory of Pages::kHuge2M takes them from those that the administrator has set aside
// (vm.nr_hugepages) or is refused. Any other can have its pages gathered into huge ones (populate_gathered, gather), which
// asks nothing of the administrator, and of which the kernel gives what it has. Mappings of 2 MiB and more begin at a
// multiple of 2 MiB, so that a huge page is one entry of each page table.
//
// Mappings are left out of core files (MADV_DONTDUMP) and are not inherited by fork (MADV_DONTFORK).
//
// Threads: the object belongs to one thread at a time; the memory is anybody's. Lifetime: the mapping lives as long as
// the Mapping object, whatever happens to the descriptor or to the process that made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist {

class Gatherer;

// An open file descriptor, closed with its owner.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

enum class Access : uint8_t { kRead, kReadWrite };

// A shared mapping of a descriptor, or of a range of it. Movable; unmapped when destroyed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Maps `bytes` bytes of fd, map_all() as many as it has. kFailedPrecondition when the memory is smaller or its size is not
  // sealed (a peer could then take pages away under us); kResourceExhausted when the address space or RLIMIT_AS does not
  // hold it.
  static StatusOr<Mapping> map(int fd, uint64_t bytes, Access access);
  static StatusOr<Mapping> map_all(int fd, Access access);

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

  // Makes the range's pages present in this mapping, so that later accesses do not fault: MADV_POPULATE_WRITE or _READ.
  // Best effort: false when the kernel has no such call (before 5.14).
  bool prefault(uint64_t offset, uint64_t bytes, Access access) const;

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// mmap of a shared descriptor, at a multiple of 2 MiB where that leaves the kernel a choice of pages. Nothing but system
// calls. MAP_FAILED with errno.
void* map_shared(int fd, uint64_t offset, uint64_t bytes, int protection);

// Which memory backs a pool.
enum class Pages : uint8_t { kNormal, kHuge2M };

// The size of the pages behind a memfd: of hugetlbfs or of ordinary shared memory.
uint64_t page_bytes_of(int memfd);

class SharedMemory {
 public:
  SharedMemory() = default;

  // A memfd of `bytes` bytes (rounded up to whole pages), mode 0600, its size sealed, mapped for reading and writing here.
  // Nothing is allocated yet. kResourceExhausted with the limit that was met.
  static StatusOr<SharedMemory> create(const std::string& name, uint64_t bytes, Pages pages = Pages::kNormal);

  // The memory behind a descriptor that was made by create() in a process that has ended, whole, mapped for reading and
  // writing. kFailedPrecondition: it is not sealed as a node's is.
  static StatusOr<SharedMemory> take_over(FileDescriptor fd);

  // Forbids writable mappings from now on; those that exist go on.
  Status seal_future_write();

  // Allocates the pages of a range now (fallocate): a lack of memory or a cgroup limit is an error here, not a signal
  // later in whoever touches it. kResourceExhausted.
  Status populate(uint64_t offset, uint64_t bytes);

  // Gathers the pages of a range, of which each 2 MiB must have one at least, into huge pages (MADV_COLLAPSE, for shared
  // memory since Linux 6.1; the settings in /sys for transparent huge pages do not matter to it). What bytes there are
  // stay, and whoever reads or writes them meanwhile waits for a page at most; all mappings of the memory profit. The parts
  // of a range that lie in no whole 2 MiB are left as they are. by: the process that does it, until the deadline; its
  // statuses. Without one this process does, and its other threads may have to wait for seconds (gatherer.h says why).
  Status gather(uint64_t offset, uint64_t bytes, Gatherer* by = nullptr, Deadline deadline = {});

  // populate(), in huge pages as far as they can be had: *gathered says whether all of it was. Faster than populate()
  // where the system has huge pages at hand; where it must make them first, several times slower: what is not gathered by
  // the deadline comes in small pages.
  Status populate_gathered(uint64_t offset, uint64_t bytes, bool* gathered, Gatherer* by = nullptr, Deadline deadline = {});

  // Makes populated pages present in the own mapping, so that later accesses do not fault. Best effort.
  bool prefault(uint64_t offset, uint64_t bytes) const { return mapping_.prefault(offset, bytes, Access::kRead); }

  // A second descriptor that can only be mapped for reading.
  StatusOr<FileDescriptor> read_only_descriptor() const;

  int fd() const { return fd_.get(); }
  std::byte* data() const { return mapping_.data(); }
  uint64_t size() const { return mapping_.size(); }

 private:
  FileDescriptor fd_;
  Mapping mapping_;
};

}  // namespace kvist
