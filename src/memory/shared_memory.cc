#include "memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "memory/gatherer.h"
#include "memory/memory_room.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace kvist {
namespace {

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace

void* map_shared(int fd, uint64_t offset, uint64_t bytes, int protection) {
  if (bytes >= kHugePageBytes && bytes < std::numeric_limits<uint64_t>::max() - 2 * kHugePageBytes) {
    // A reservation that is large enough to hold such a place, which is then mapped over.
    const uint64_t reserved = bytes + kHugePageBytes;
    void* room = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED) {
      const auto begin = reinterpret_cast<uintptr_t>(room);
      const uintptr_t at = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
      void* mapped =
          ::mmap(reinterpret_cast<void*>(at), bytes, protection, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset));
      if (mapped == MAP_FAILED) {
        const int error = errno;
        ::munmap(room, reserved);
        errno = error;
        return mapped;
      }
      const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
      const uintptr_t end = at + (bytes + page - 1) / page * page;
      if (at > begin) ::munmap(room, at - begin);
      if (begin + reserved > end) ::munmap(reinterpret_cast<void*>(end), begin + reserved - end);
      return mapped;
    }
  }
  return ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) reset(other.release());
  return *this;
}

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

StatusOr<Mapping> Mapping::map(int fd, uint64_t bytes, Access access) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return internal_error(errno_text("fstat of shared memory"));
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return failed_precondition("shared memory holds " + std::to_string(info.st_size) + " bytes where " +
                               std::to_string(bytes) + " were announced");
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return failed_precondition("shared memory is not sealed against shrinking; it is not a node's");
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* at = map_shared(fd, 0, bytes, protection);
  if (at == MAP_FAILED) {
    const std::string text = errno_text("cannot map " + std::to_string(bytes) + " bytes of shared memory");
    return errno == ENOMEM ? resource_exhausted(text + " (see `ulimit -v` and vm.max_map_count)") : internal_error(text);
  }
  ::madvise(at, bytes, MADV_DONTFORK);
  ::madvise(at, bytes, MADV_DONTDUMP);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(at);
  mapping.size_ = bytes;
  return mapping;
}

StatusOr<Mapping> Mapping::map_all(int fd, Access access) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return internal_error(errno_text("fstat of shared memory"));
  if (info.st_size <= 0) return failed_precondition("shared memory of no size");
  return map(fd, static_cast<uint64_t>(info.st_size), access);
}

bool Mapping::prefault(uint64_t offset, uint64_t bytes, Access access) const {
  const int advice = access == Access::kRead ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
  return ::madvise(data_ + offset, bytes, advice) == 0;
}

StatusOr<SharedMemory> SharedMemory::create(const std::string& name, uint64_t bytes, Pages pages) {
  const uint64_t page = pages == Pages::kHuge2M ? uint64_t{2} << 20 : static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > std::numeric_limits<uint64_t>::max() - page) return invalid_argument("shared memory of no size");
  bytes = (bytes + page - 1) / page * page;
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (pages == Pages::kHuge2M) flags |= MFD_HUGETLB | (21U << 26);
  SharedMemory memory;
  // Newer kernels want to be told that nothing here is to be executed; older ones refuse the flag.
  int fd = ::memfd_create(name.c_str(), flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name.c_str(), flags);
  if (fd < 0) return internal_error(errno_text("memfd_create"));
  memory.fd_.reset(fd);
  if (::fchmod(fd, 0600) != 0) return internal_error(errno_text("fchmod of shared memory"));
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return resource_exhausted(errno_text("cannot size shared memory to " + std::to_string(bytes) + " bytes"));
  }
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return internal_error(errno_text("sealing shared memory"));
  StatusOr<Mapping> mapping = Mapping::map(fd, bytes, Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  memory.mapping_ = *std::move(mapping);
  return memory;
}

uint64_t page_bytes_of(int memfd) {
  struct stat about = {};
  return static_cast<uint64_t>(::fstat(memfd, &about) == 0 ? about.st_blksize : ::sysconf(_SC_PAGESIZE));
}

StatusOr<SharedMemory> SharedMemory::take_over(FileDescriptor fd) {
  StatusOr<Mapping> mapping = Mapping::map_all(fd.get(), Access::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.mapping_ = *std::move(mapping);
  return memory;
}

Status SharedMemory::seal_future_write() {
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    return internal_error(errno_text("sealing shared memory against writers (Linux 5.1 or newer is needed)"));
  }
  return ok_status();
}

Status SharedMemory::populate(uint64_t offset, uint64_t bytes) {
  int result = 0;
  do {
    result = ::fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return ok_status();
  if (errno == ENOSPC || errno == ENOMEM) {
    const StatusOr<MemoryRoom> room = memory_room();
    const std::string left = room.ok() ? " (" + room->limited_by + " leaves " + std::to_string(room->bytes) + ")" : "";
    return resource_exhausted("the system has no memory for " + std::to_string(bytes) + " more bytes" + left +
                              "; give the pool less");
  }
  return internal_error(errno_text("fallocate of shared memory"));
}

Status SharedMemory::gather(uint64_t offset, uint64_t bytes, Gatherer* by, Deadline deadline) {
  const uint64_t begin = (offset + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uint64_t end = (offset + bytes) / kHugePageBytes * kHugePageBytes;
  if (begin >= end) return ok_status();
  if (by != nullptr) return by->gather(fd(), begin, end - begin, deadline);
  return gathering_status(collapse(data() + begin, end - begin));
}

Status SharedMemory::populate_gathered(uint64_t offset, uint64_t bytes, bool* gathered, Gatherer* by, Deadline deadline) {
  *gathered = false;
  for (uint64_t at = (offset + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes; at + kHugePageBytes <= offset + bytes;
       at += kHugePageBytes) {
    if (Status status = populate(at, 1); !status.ok()) return status;
  }
  *gathered = gather(offset, bytes, by, deadline).ok();
  return populate(offset, bytes);
}

StatusOr<FileDescriptor> SharedMemory::read_only_descriptor() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return internal_error(errno_text("reopening shared memory read-only through /proc"));
  return FileDescriptor(fd);
}

}  // namespace kvist
