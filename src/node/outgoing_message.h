// node/outgoing_message.h: bytes and the descriptors that go with them (SCM_RIGHTS), as one message of a Unix socket.
//
//   const OutgoingMessage message(bytes, descriptors);   // both outlive it
//   message.send(socket, MSG_NOSIGNAL);                  // as sendmsg(2) answers, errno with it
//
// Allocates nothing: it may be used in a forked process. Threads: one at a time.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cassert>
#include <cstddef>
#include <cstring>
#include <span>

namespace kvist {

class OutgoingMessage {
 public:
  static constexpr size_t kMostDescriptors = 5;

  OutgoingMessage(std::span<const std::byte> bytes, std::span<const int> descriptors)
      : piece_{const_cast<std::byte*>(bytes.data()), bytes.size()} {
    assert(descriptors.size() <= kMostDescriptors);
    header_.msg_iov = &piece_;
    header_.msg_iovlen = 1;
    if (descriptors.empty()) return;
    header_.msg_control = control_;
    header_.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&header_);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size_bytes());
  }
  OutgoingMessage(const OutgoingMessage&) = delete;
  OutgoingMessage& operator=(const OutgoingMessage&) = delete;

  ssize_t send(int socket, int flags) const { return ::sendmsg(socket, &header_, flags); }

 private:
  iovec piece_;
  alignas(cmsghdr) char control_[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr header_ = {};
};

}  // namespace kvist
