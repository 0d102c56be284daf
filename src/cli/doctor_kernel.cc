// What the kernel and the processor offer.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/cpu.h"
#include "cli/doctor_checks.h"
#include "memory/shared_memory.h"

// Newer than the C library of Debian 12; the numbers are the kernel's.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace kvist::cli {
namespace {

std::string reason() { return std::strerror(errno); }

constexpr size_t kProbeBytes = 1 << 20;

}  // namespace

Check check_kernel(std::string_view release) {
  unsigned major = 0, minor = 0;
  const char* const end = release.data() + release.size();
  auto [next, error] = std::from_chars(release.data(), end, major);
  if (error == std::errc() && next != end && *next == '.') error = std::from_chars(next + 1, end, minor).ec;
  const std::string found = "Linux " + std::string(release);
  if (error != std::errc())
    return {"kernel", Verdict::kWarn, found, "This release cannot be read; 5.14 or newer is expected."};
  const auto at_least = [&](unsigned a, unsigned b) { return major > a || (major == a && minor >= b); };
  if (!at_least(5, 3)) {
    return {"kernel", Verdict::kFail, found,
            "Kvist needs 5.3 (pidfd, memory seals): boot a newer kernel; Debian 12 has 6.1."};
  }
  if (!at_least(5, 14)) {
    return {"kernel", Verdict::kWarn, found,
            "From 5.14 on memory is populated ahead of use; before, first accesses are slower."};
  }
  return {"kernel", Verdict::kOk, found, ""};
}

Check check_processor() {
  const CpuFeatures& cpu = this_cpu();
#if defined(__x86_64__)
  if (!cpu.avx2) {
    return {
        "processor", Verdict::kWarn, describe_cpu(cpu),
        "Without AVX2 copies and checksums run at their plain speed. If KVIST_CPU is set, unset it; in a virtual machine, "
        "pass the host's processor through."};
  }
#endif
  return {"processor", Verdict::kOk, describe_cpu(cpu), ""};
}

Check check_memfd_seals() {
  const FileDescriptor file(memfd_create("kvist-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) {
    return {"memfd_seals", Verdict::kFail, "memfd_create: " + reason(),
            "Allow memfd_create in the container's seccomp profile."};
  }
  if (ftruncate(file.get(), kProbeBytes) != 0) {
    return {"memfd_seals", Verdict::kFail, "ftruncate: " + reason(), "Raise the file size limit (ulimit -f unlimited)."};
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) != 0) {
    return {
        "memfd_seals", Verdict::kFail, "F_ADD_SEALS: " + reason(),
        "Use a kernel from 5.1 on that seals memory files: without seals a client could take memory away from the others."};
  }
  void* later = mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (later != MAP_FAILED) {
    munmap(later, kProbeBytes);
    return {"memfd_seals", Verdict::kFail, "a sealed file could still be mapped for writing",
            "This kernel (or the sandbox that plays one) does not enforce F_SEAL_FUTURE_WRITE: use another."};
  }
  return {"memfd_seals", Verdict::kOk, "memory files can be sealed against shrinking and later writers", ""};
}

Check check_pidfd() {
  const FileDescriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const char* const advice =
      "Allow pidfd_open (Linux 5.3) in the container's seccomp profile: only a pidfd says for sure that a client is dead.";
  if (!self.valid()) return {"pidfd", Verdict::kFail, "pidfd_open: " + reason(), advice};
  pollfd poller = {self.get(), POLLIN, 0};
  if (poll(&poller, 1, 0) != 0) return {"pidfd", Verdict::kFail, "poll says that a living process has ended", advice};
  return {"pidfd", Verdict::kOk, "the death of a client is seen at once", ""};
}

Check check_peer_pidfd() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return {"peer_pidfd", Verdict::kFail, "socketpair: " + reason(), "Allow Unix sockets of type SOCK_SEQPACKET here."};
  }
  const FileDescriptor one(ends[0]), other(ends[1]);
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  if (getsockopt(one.get(), SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0) {
    return {"peer_pidfd", Verdict::kWarn, "SO_PEERPIDFD: " + reason(),
            "Linux has it from 6.5 on. Kvist opens the pidfd by number instead and compares the process's start time; this "
            "works "
            "where node and clients share a PID namespace."};
  }
  const FileDescriptor held(pidfd);
  return {"peer_pidfd", Verdict::kOk, "the socket names the client's process itself", ""};
}

Check check_populate() {
  void* memory = mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return {"populate", Verdict::kFail, "mmap: " + reason(),
            "Free memory, or raise the limit on address space (ulimit -v unlimited)."};
  const bool reads = madvise(memory, kProbeBytes, MADV_POPULATE_READ) == 0;
  const bool writes = madvise(memory, kProbeBytes, MADV_POPULATE_WRITE) == 0;
  const std::string why = reason();
  munmap(memory, kProbeBytes);
  if (!reads || !writes) {
    return {"populate", Verdict::kWarn, "MADV_POPULATE: " + why,
            "Linux has it from 5.14 on. Until then the first access to each page of the pool costs a fault."};
  }
  return {"populate", Verdict::kOk, "pages can be populated ahead of use", ""};
}

}  // namespace kvist::cli
