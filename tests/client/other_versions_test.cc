// Today's client at nodes of other versions, played by the test: it is refused with a status that names both versions, or
// refuses so itself, and comes back when a node of its own version does.
#include <sys/socket.h>
#include <sys/un.h>

#include <thread>

#include "client/doors.h"
#include "memory/shared_memory.h"
#include "pool/pool_memory.h"
#include "wire/local.h"

namespace kvist::test {
namespace {

// Answers one HELLO, and hangs up.
class OtherNode {
 public:
  using Reply = std::function<void(int socket, const wire::Header& hello)>;

  explicit OtherNode(const std::string& path, Reply reply) : listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_.get(), 4), 0);
    thread_ = std::thread([this, reply = std::move(reply)] { serve(reply); });
  }
  ~OtherNode() { thread_.join(); }

 private:
  void serve(const Reply& reply) {
    pollfd poll = {listener_.get(), POLLIN, 0};
    if (::poll(&poll, 1, kWaitSeconds * 1000) <= 0) return;
    const FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::vector<std::byte> packet(wire::kMaxPacket);
    const ssize_t size = ::recv(socket.get(), packet.data(), packet.size(), 0);
    wire::Header header;
    std::span<const std::byte> body;
    if (size > 0 && wire::open_packet({packet.data(), static_cast<size_t>(size)}, &header, &body))
      reply(socket.get(), header);
  }

  const FileDescriptor listener_;
  std::thread thread_;
};

void answer(int socket, const wire::Header& hello, StatusCode status, const std::function<void(wire::Builder&)>& fill,
            std::vector<int> descriptors = {}) {
  wire::Builder builder;
  builder.start(static_cast<wire::MessageType>(hello.type | 0x8000), hello.request, status);
  fill(builder);
  const std::span<std::byte> packet = builder.finish();
  iovec range = {packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size() * sizeof(int));
  }
  EXPECT_EQ(::sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(packet.size()));
}

// The memory of a domain that nobody serves, and a welcome to it.
struct Memory {
  Memory() {
    StatusOr<std::unique_ptr<PoolMemory>> made =
        PoolMemory::create({.arena_bytes = 4 << 20, .extent_bytes = 1 << 20, .max_entries = 1024});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    pool = *std::move(made);
    StatusOr<SharedMemory> table = SharedMemory::create("pins", PinTable::bytes_for(64));
    EXPECT_TRUE(table.ok());
    pins = *std::move(table);
    auto* words = reinterpret_cast<PinTable*>(pins.data());
    words->magic = kPinsMagic;
    words->capacity = 64;
    const ControlHeader& header = *pool->control().header;
    welcome.version = wire::kLocalVersion;
    welcome.session = 1;
    welcome.incarnation[0] = header.incarnation[0];
    welcome.incarnation[1] = header.incarnation[1];
    welcome.control_bytes = pool->control_memory().size();
    welcome.touch_bytes = pool->touch_memory().size();
    welcome.arena_bytes = pool->arena_bytes();
    welcome.pins_bytes = pins.size();
    welcome.extent_bytes = 1 << 20;
    welcome.pin_capacity = 64;
    welcome.granted_slots_limit = 64;
    welcome.granted_bytes_limit = 1 << 20;
    control = *pool->control_memory().read_only_descriptor();
  }
  void welcome_client(int socket, const wire::Header& hello) {
    answer(socket, hello, StatusCode::kOk, [&](wire::Builder& b) { b.add(welcome); },
           {control.get(), pool->touch_memory().fd(), pool->arena_memory().fd(), pins.fd()});
  }
  std::unique_ptr<PoolMemory> pool;
  SharedMemory pins;
  FileDescriptor control;
  wire::Welcome welcome;
};

class OtherVersions : public testing::Test {
 protected:
  Status connect() {
    ClientOptions options;
    options.socket = socket_;
    return Client::connect(options, within(std::chrono::seconds(kWaitSeconds))).status();
  }
  void expect_both(const Status& status, const std::string& theirs, const std::string& ours) {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status.to_string();
    EXPECT_NE(status.message().find(theirs), std::string_view::npos) << status.to_string();
    EXPECT_NE(status.message().find(ours), std::string_view::npos) << status.to_string();
    EXPECT_NE(status.message().find("upgrade"), std::string_view::npos) << status.to_string();
  }

  const Folder folder_;
  const std::string socket_ = folder_.file("node.sock");
};

// What makes the test's own node a node: with the right versions the client takes it.
TEST_F(OtherVersions, TheSameIsTaken) {
  Memory memory;
  const OtherNode node(socket_, [&](int socket, const wire::Header& hello) { memory.welcome_client(socket, hello); });
  const Status status = connect();
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(OtherVersions, ANodeThatRefusesIsQuoted) {
  const OtherNode node(socket_, [](int socket, const wire::Header& hello) {
    answer(socket, hello, StatusCode::kUnimplemented, [](wire::Builder& b) {
      b.add_text("this node speaks versions 7 to 9 of the local protocol, the client 1 to 1: upgrade the older one");
    });
  });
  expect_both(connect(), "7 to 9", "1 to 1");
}

TEST_F(OtherVersions, ANodeThatChoosesAnotherIsRefused) {
  Memory memory;
  memory.welcome.version = 7;
  const OtherNode node(socket_, [&](int socket, const wire::Header& hello) { memory.welcome_client(socket, hello); });
  expect_both(connect(), "version 7", "1 to 1");
}

TEST_F(OtherVersions, AnotherLayoutOfTheMemoryIsRefused) {
  Memory memory;
  memory.pool->control().header->layout_version = 5;
  const OtherNode node(socket_, [&](int socket, const wire::Header& hello) { memory.welcome_client(socket, hello); });
  expect_both(connect(), "layout version 5", "version " + std::to_string(kLayoutVersion));
}

TEST_F(OtherVersions, AfterAnUpgradeOfTheNodeAClientSaysSoUntilItsOwnVersionIsBack) {
  ClientOptions options;
  options.socket = socket_;
  options.wait_for_node = true;
  StatusOr<Client> client = Client::connect(options, within(std::chrono::seconds(0)));
  ASSERT_TRUE(client.ok());
  const StatusOr<Space> space = client->open(identity("a"));
  ASSERT_TRUE(space.ok()) << space.status().to_string();
  {
    const OtherNode node(socket_, [](int socket, const wire::Header& hello) {
      answer(socket, hello, StatusCode::kUnimplemented,
             [](wire::Builder& b) { b.add_text("this node speaks versions 7 to 9"); });
    });
    EXPECT_TRUE(
        eventually([&] { return client->report(Client::Report::kNode).status().code() == StatusCode::kUnimplemented; }));
  }
  std::filesystem::remove(socket_);
  const ThreadNode node([&](NodeOptions& o) { o.socket = socket_; });
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  EXPECT_TRUE(eventually([&] { return client->connected(); }));
}

}  // namespace
}  // namespace kvist::test
