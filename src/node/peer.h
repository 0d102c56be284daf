// node/peer.h: which process is at the other end of a client's socket, and how its death is noticed.
//
// A closed socket says nothing: a forked child keeps it open, and a living process can lose it while its threads still read
// in place. So the node holds a pidfd of each client, which becomes readable when the process is dead, and which cannot
// come to mean another process. The kernel hands it out for a socket (SO_PEERPIDFD, Linux 6.5); before that it is opened by
// number, and the start time that the client told proves that the number was not used again in between.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "kvist/status.h"
#include "memory/shared_memory.h"

namespace kvist {

// As the kernel recorded it when the process called connect().
struct Peer {
  pid_t pid = 0;  // in this node's PID namespace; 0: the process is not visible from here
  uid_t uid = 0;
  gid_t gid = 0;
};

StatusOr<Peer> peer_of(int socket);

// Not valid: there is no such process. The number may be another process's than it was.
FileDescriptor pidfd_of_number(pid_t pid);

enum class PidfdSource : uint8_t {
  kSocket,  // SO_PEERPIDFD, else kNumber
  kNumber,  // pidfd_open
};

// A pidfd of the peer. `claimed_pid` and `claimed_start_time` are what the process says of itself: they must be the peer's,
// or a child that inherited the socket would be taken for its parent. kPermissionDenied with the reason.
StatusOr<FileDescriptor> open_pidfd(int socket, const Peer& peer, uint32_t claimed_pid, uint64_t claimed_start_time,
                                    PidfdSource source = PidfdSource::kSocket);

// Whether this kernel has SO_PEERPIDFD.
bool has_peer_pidfd();

}  // namespace kvist
