// tests/client/lying_node.h: stands between a client and a node of this process, and changes what the node says.
//
//   LyingNode liar(node.socket());
//   liar.change(MessageType::kRemove, [](LyingNode::Packet& packet) { packet.header().status = 256; });
//   ClientOptions options{.socket = liar.socket()};
//
// Packets pass unchanged, with their descriptors, but for requests and answers of the kinds that are changed. One client at
// a time.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "node/harness.h"
#include "node/raw_client.h"
#include "wire/local.h"

namespace kvist::test {

class LyingNode {
 public:
  struct Packet {
    std::vector<std::byte> bytes;

    wire::Header& header() { return *reinterpret_cast<wire::Header*>(bytes.data()); }
    std::span<std::byte> body() { return std::span(bytes).subspan(sizeof(wire::Header)); }
    void resize_body(size_t size) {
      bytes.resize(sizeof(wire::Header) + size);
      header().body_bytes = static_cast<uint32_t>(size);
    }
  };
  // Changes an answer; one that is left empty is not passed on.
  using Change = std::function<void(Packet&)>;

  explicit LyingNode(std::string honest)
      : honest_(std::move(honest)), end_(::eventfd(0, EFD_CLOEXEC)), listener_(listen(socket())) {
    thread_ = std::thread([this] { run(); });
  }
  ~LyingNode() {
    const uint64_t one = 1;
    EXPECT_EQ(::write(end_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    thread_.join();
  }
  LyingNode(const LyingNode&) = delete;
  LyingNode& operator=(const LyingNode&) = delete;

  std::string socket() const { return folder_.file("liar.sock"); }

  // From now on; an empty function: such answers pass.
  void change(wire::MessageType type, Change change) {
    const std::lock_guard lock(mutex_);
    changes_[static_cast<uint16_t>(type)] = std::move(change);
  }
  // The same for requests on their way to the node.
  void change_request(wire::MessageType type, Change change) {
    const std::lock_guard lock(mutex_);
    request_changes_[static_cast<uint16_t>(type)] = std::move(change);
  }
  // Requests of this kind that were passed on.
  uint32_t asked(wire::MessageType type) {
    const std::lock_guard lock(mutex_);
    return asked_[static_cast<uint16_t>(type)];
  }

 private:
  static FileDescriptor listen(const std::string& path) {
    FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd.get(), 8), 0);
    return fd;
  }

  void run() {
    while (true) {
      pollfd wanted[2] = {{end_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      if (::poll(wanted, 2, -1) < 0) continue;
      if (wanted[0].revents != 0) return;
      const FileDescriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const FileDescriptor node = connect_to(honest_);
      if (client.valid() && node.valid() && !stand_between(client.get(), node.get())) return;
    }
  }

  // Until one of them hangs up. False: the test is over.
  bool stand_between(int client, int node) {
    while (true) {
      pollfd wanted[3] = {{end_.get(), POLLIN, 0}, {client, POLLIN, 0}, {node, POLLIN, 0}};
      if (::poll(wanted, 3, -1) < 0) continue;
      if (wanted[0].revents != 0) return false;
      if (wanted[1].revents != 0 && !pass(client, node, false)) return true;
      if (wanted[2].revents != 0 && !pass(node, client, true)) return true;
    }
  }

  bool pass(int from, int to, bool answer) {
    Packet packet;
    packet.bytes.resize(wire::kMaxPacket);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control = {};
    iovec range = {packet.bytes.data(), packet.bytes.size()};
    msghdr message = {};
    message.msg_iov = &range;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    if (size < static_cast<ssize_t>(sizeof(wire::Header))) return false;
    std::vector<FileDescriptor> descriptors;
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      for (size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
        descriptors.emplace_back(fd);
      }
    }
    packet.bytes.resize(static_cast<size_t>(size));
    {
      const std::lock_guard lock(mutex_);
      const auto type = static_cast<uint16_t>(packet.header().type & ~static_cast<uint16_t>(wire::MessageType::kAnswer));
      if (!answer) ++asked_[type];
      const Change& change = answer ? changes_[type] : request_changes_[type];
      if (change) change(packet);
    }
    if (packet.bytes.empty()) return true;
    range = {packet.bytes.data(), packet.bytes.size()};
    if (descriptors.empty()) message.msg_control = nullptr, message.msg_controllen = 0;
    return ::sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.bytes.size());
  }

  Folder folder_;
  const std::string honest_;
  FileDescriptor end_, listener_;
  std::mutex mutex_;
  std::map<uint16_t, Change> changes_, request_changes_;
  std::map<uint16_t, uint32_t> asked_;
  std::thread thread_;
};

}  // namespace kvist::test
