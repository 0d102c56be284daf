// tests/node/raw_client.h: a client that speaks the local wire by hand, as well or as badly as a test wants.
//
// Blocking, with a deadline on every wait; everything in the calling process. It needs nothing of src/client, so that what
// is tested is the node.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/process.h"
#include "kvist/identity.h"
#include "memory/shared_memory.h"
#include "node/peer.h"
#include "pool/layout.h"
#include "pool/pool.h"
#include "pool/reader.h"
#include "wire/local.h"

namespace kvist::test {

constexpr int kWaitSeconds = 20;

inline FileDescriptor connect_to(const std::string& path, int send_buffer = 0, int receive_buffer = 0) {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval limit = {kWaitSeconds, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (send_buffer > 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof(send_buffer));
  if (receive_buffer > 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return {};
  return fd;
}

struct Answer {
  wire::Header header;
  std::vector<std::byte> body;

  StatusCode code() const { return static_cast<StatusCode>(header.status); }
  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
};

struct HelloFields {
  uint16_t version_min = wire::kLocalVersionMin, version_max = wire::kLocalVersion;
  std::string token = {}, domain = {}, name = "test";
  uint32_t pins = 64;
  uint16_t features = wire::kFollowsRestart;  // read_right() compares the bytes
  std::optional<uint32_t> pid = {};
  std::optional<uint64_t> start_time = {};
};

class RawClient {
 public:
  RawClient() = default;
  explicit RawClient(FileDescriptor socket) : socket_(std::move(socket)) {}
  explicit RawClient(const std::string& path) : socket_(connect_to(path)) { EXPECT_TRUE(socket_.valid()) << path; }

  int fd() const { return socket_.get(); }
  void hang_up() { socket_.reset(); }
  int release_fd() { return socket_.release(); }

  // ---- packets ----

  bool send_bytes(std::span<const std::byte> bytes, int flags = 0) {
    return ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | flags) == static_cast<ssize_t>(bytes.size());
  }
  template <typename Fill>
  bool send_message(wire::MessageType type, Fill&& fill, int flags = 0) {
    builder_.start(type, ++request_);
    fill(builder_);
    return send_bytes(builder_.finish(), flags);
  }
  // Nothing: the node closed the connection, or said nothing in time.
  std::optional<Answer> receive() {
    std::vector<std::byte> packet(wire::kMaxPacket);
    iovec range = {packet.data(), packet.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control = {};
    msghdr message = {};
    message.msg_iov = &range;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
    if (size <= 0) return std::nullopt;
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      const size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
        descriptors_.emplace_back(descriptor);
      }
    }
    Answer answer;
    std::span<const std::byte> body;
    if (!wire::open_packet(std::span(packet).first(static_cast<size_t>(size)), &answer.header, &body)) return std::nullopt;
    answer.body.assign(body.begin(), body.end());
    return answer;
  }
  template <typename Fill>
  std::optional<Answer> ask(wire::MessageType type, Fill&& fill) {
    if (!send_message(type, std::forward<Fill>(fill))) return std::nullopt;
    return receive();
  }
  // Whether the node has closed the connection; packets before that are dropped.
  bool closed_by_node() {
    std::vector<std::byte> packet(wire::kMaxPacket);
    while (true) {
      const ssize_t size = ::recv(fd(), packet.data(), packet.size(), 0);
      if (size == 0) return true;
      if (size < 0) return errno == ECONNRESET;
    }
  }

  // ---- what a well-behaved client does ----

  bool send_hello(const HelloFields& fields = {}) {
    return send_message(wire::MessageType::kHello, [&](wire::Builder& b) {
      b.add(wire::Hello{.version_min = fields.version_min,
                        .version_max = fields.version_max,
                        .pid = fields.pid.value_or(static_cast<uint32_t>(::getpid())),
                        .start_time = fields.start_time.value_or(process_start_time(::getpid())),
                        .pins_wanted = fields.pins,
                        .token_bytes = static_cast<uint16_t>(fields.token.size()),
                        .domain_bytes = static_cast<uint16_t>(fields.domain.size()),
                        .name_bytes = static_cast<uint16_t>(fields.name.size()),
                        .features = fields.features,
                        .unused = 0});
      b.add_text(fields.token + fields.domain + fields.name);
    });
  }
  std::optional<Answer> hello(const HelloFields& fields = {}) {
    if (!send_hello(fields)) return std::nullopt;
    std::optional<Answer> answer = receive();
    if (answer && answer->code() == StatusCode::kOk) {
      if (answer->body.size() < sizeof(welcome)) return std::nullopt;
      std::memcpy(&welcome, answer->body.data(), sizeof(welcome));
    }
    return answer;
  }
  // HELLO, and the memory mapped.
  bool join(const HelloFields& fields = {}) {
    const std::optional<Answer> answer = hello(fields);
    if (!answer || answer->code() != StatusCode::kOk) {
      ADD_FAILURE() << "HELLO: " << (answer ? answer->text() : "no answer");
      return false;
    }
    return map_memory();
  }
  bool map_memory() {
    if (descriptors_.size() != 4) return false;
    const auto map = [&](size_t i, uint64_t bytes, Access access, Mapping* out) {
      StatusOr<Mapping> mapping = Mapping::map(descriptors_[i].get(), bytes, access);
      if (!mapping.ok()) ADD_FAILURE() << "mapping " << i << ": " << mapping.status().to_string();
      if (mapping.ok()) *out = *std::move(mapping);
      return out->data() != nullptr;
    };
    if (!map(0, welcome.control_bytes, Access::kRead, &control_) ||
        !map(1, welcome.touch_bytes, Access::kReadWrite, &touch_) ||
        !map(2, welcome.arena_bytes, Access::kReadWrite, &arena_) ||
        !map(3, welcome.pins_bytes, Access::kReadWrite, &pins_)) {
      return false;
    }
    ControlLayout layout;
    if (ControlView::check(control_.data(), control_.size(), &layout) != nullptr) return false;
    reader = Reader(ControlView::over(control_.data(), layout), reinterpret_cast<std::atomic<uint32_t>*>(touch_.data()),
                    arena_.data(), welcome.arena_bytes);
    return true;
  }
  const std::vector<FileDescriptor>& descriptors() const { return descriptors_; }
  std::byte* arena() const { return arena_.data(); }
  PinTable* table() const { return reinterpret_cast<PinTable*>(pins_.data()); }
  std::atomic<uint64_t>& pin_word(uint32_t i) {
    if (table()->high_water.load() <= i) table()->high_water.store(i + 1);
    return table()->pins[i];
  }

  static Identity identity(const std::string& alias = "test") {
    Identity identity;
    identity.alias = alias;
    identity.model = "model";
    return identity;
  }
  std::optional<Answer> ask_open(const Identity& identity) {
    const StatusOr<std::string> record = encode_identity(identity);
    EXPECT_TRUE(record.ok());
    const std::string bytes = *record;
    return ask(wire::MessageType::kOpenSpace, [&](wire::Builder& b) {
      b.add(wire::OpenSpace{.alias_bytes = static_cast<uint16_t>(identity.alias.size()),
                            .unused = 0,
                            .record_bytes = static_cast<uint32_t>(bytes.size()),
                            .id = namespace_id(bytes, identity.tenant_secret)});
      b.add_text(identity.alias + bytes);
    });
  }
  bool open(const std::string& alias = "test") {
    const std::optional<Answer> answer = ask_open(identity(alias));
    wire::SpaceOpened opened;
    if (!answer || answer->code() != StatusCode::kOk || !wire::Cursor(answer->body).read(&opened)) {
      ADD_FAILURE() << "open: " << (answer ? answer->text() : "no answer");
      return false;
    }
    space = {opened.slot, opened.epoch};
    return true;
  }
  // Grants; asks again while the node says that more will come, for a while.
  std::vector<wire::GrantItem> reserve(uint32_t length, uint32_t count, GrantStop* stop = nullptr) {
    std::vector<wire::GrantItem> grants;
    const Deadline deadline = within(std::chrono::seconds(kWaitSeconds));
    while (true) {
      const std::optional<Answer> answer = ask(wire::MessageType::kReserve, [&](wire::Builder& b) {
        b.add(wire::Reserve{.length = length, .count = count - static_cast<uint32_t>(grants.size())});
      });
      std::vector<wire::GrantItem> more;
      uint8_t why = 0;
      if (!answer || answer->code() != StatusCode::kOk || !wire::decode_granted(answer->body, &more, &why)) return {};
      grants.insert(grants.end(), more.begin(), more.end());
      if (stop != nullptr) *stop = static_cast<GrantStop>(why);
      const bool soon =
          why == static_cast<uint8_t>(GrantStop::kNoMemoryYet) || why == static_cast<uint8_t>(GrantStop::kEvicting);
      if (grants.size() >= count || !soon || deadline.passed()) return grants;
      ::poll(nullptr, 0, 1);
    }
  }
  static void fill(const Digest& digest, std::byte* out, size_t size) {
    uint64_t x = digest.lo ^ size;
    for (size_t i = 0; i < size; ++i) {
      x = x * 6364136223846793005ull + 1442695040888963407ull;
      out[i] = static_cast<std::byte>(x >> 56);
    }
  }
  wire::CommitItem filled(const wire::GrantItem& grant, const Digest& digest, uint32_t length, Digest parent = {},
                          uint32_t depth = 0) {
    fill(digest, arena() + grant.offset, length);
    return {.digest = digest,
            .parent = parent,
            .checksum = checksum({arena() + grant.offset, length}),
            .entry = grant.entry,
            .generation = grant.generation,
            .length = length,
            .depth = depth,
            .part = 0,
            .flags = 0,
            .unused = 0,
            .unused2 = 0};
  }
  bool send_commit(std::span<const wire::CommitItem> items, uint32_t refill_length = 0, uint32_t refill_count = 0) {
    return send_message(wire::MessageType::kCommit, [&](wire::Builder& b) {
      b.add(wire::Commit{.slot = space.slot,
                         .session_bytes = 0,
                         .stop_bytes = 0,
                         .count = static_cast<uint32_t>(items.size()),
                         .epoch = space.epoch,
                         .refill_length = refill_length,
                         .refill_count = refill_count});
      b.add_array(items);
    });
  }
  std::optional<wire::CommittedMessage> commit(std::span<const wire::CommitItem> items, uint32_t refill_length = 0,
                                               uint32_t refill_count = 0) {
    if (!send_commit(items, refill_length, refill_count)) return std::nullopt;
    const std::optional<Answer> answer = receive();
    wire::CommittedMessage message;
    if (!answer || answer->code() != StatusCode::kOk || !wire::decode(answer->body, &message)) return std::nullopt;
    return message;
  }
  // Stores one block; true if it is there afterwards by this call.
  bool put(const Digest& digest, uint32_t length = 4096, Digest parent = {}, uint32_t depth = 0) {
    const std::vector<wire::GrantItem> grants = reserve(length, 1);
    if (grants.empty()) return false;
    const wire::CommitItem item = filled(grants[0], digest, length, parent, depth);
    const auto committed = commit({&item, 1});
    return committed && committed->codes.size() == 1 && committed->codes[0] == static_cast<uint8_t>(CommitCode::kStored);
  }
  // Pins the block in `word` and compares its bytes.
  bool read_right(const Digest& digest, uint32_t word = 0) {
    BlockView view;
    if (reader.find_and_pin(space, digest, 0, pin_word(word), &view) != PinResult::kPinned) return false;
    std::vector<std::byte> expected(view.length);
    fill(digest, expected.data(), expected.size());
    return std::equal(expected.begin(), expected.end(), view.data);
  }
  void unpin(uint32_t word = 0) { Reader::unpin(pin_word(word)); }
  std::optional<Answer> bye() {
    return ask(wire::MessageType::kBye, [](wire::Builder&) {});
  }
  std::optional<Answer> release(uint64_t session, uint64_t cookie) {
    return ask(wire::MessageType::kRelease,
               [&](wire::Builder& b) { b.add(wire::Release{.session = session, .cookie = cookie}); });
  }
  // A report's whole text.
  std::string report(uint32_t what) {
    std::string text;
    while (true) {
      const std::optional<Answer> answer = ask(wire::MessageType::kStat, [&](wire::Builder& b) {
        b.add(wire::Stat{.what = what, .offset = static_cast<uint32_t>(text.size())});
      });
      uint32_t total = 0;
      if (!answer || answer->code() != StatusCode::kOk || !wire::Cursor(answer->body).read(&total)) return {};
      text += answer->text().substr(8);
      if (text.size() >= total || answer->body.size() <= 8) return text;
    }
  }

  wire::Welcome welcome;
  SpaceRef space;
  Reader reader;

 private:
  FileDescriptor socket_;
  std::vector<FileDescriptor> descriptors_;
  Mapping control_, touch_, arena_, pins_;
  wire::Builder builder_;
  uint32_t request_ = 0;
};

}  // namespace kvist::test
