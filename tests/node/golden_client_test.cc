// A client of an earlier release at today's node: the packets that it sent, byte for byte (tests/golden/), are sent again,
// and each has to be answered as it was.
//
// The files are recordings of real clients at real nodes. What a node chooses anew in each run (sessions, cookies, epochs,
// entries) is looked up in the recorded answer and replaced by what today's node answered in its place; pid and start time
// are this process's. Everything else stays as it was. Offsets and sizes are those of the version that was recorded, written
// out here, so that a change of the structs in wire/local.h does not change them.
//
// A file is never recorded again: a new version of the protocol gets a new one. To make it:
//   KVIST_RECORD_GOLDEN=tests/golden/local_vN.txt build/test_node --gtest_filter=GoldenRecorderSlow.*
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "base/bytes.h"
#include "base/random.h"
#include "kvist/client.h"
#include "node/harness.h"
#include "support/paths.h"

namespace kvist::test {
namespace {

using Packet = std::vector<std::byte>;

template <typename T>
T load(const Packet& packet, size_t at) {
  T value{};
  EXPECT_LE(at + sizeof(T), packet.size());
  if (at + sizeof(T) <= packet.size()) std::memcpy(&value, packet.data() + at, sizeof(T));
  return value;
}
template <typename T>
void store(Packet& packet, size_t at, T value) {
  ASSERT_LE(at + sizeof(T), packet.size());
  std::memcpy(packet.data() + at, &value, sizeof(T));
}

enum Type : uint16_t {
  kHello = 1,
  kOpenSpace,
  kReserve,
  kCommit,
  kGiveBack,
  kRemove,
  kFlush,
  kNoteUse,
  kReportBad,
  kStat,
  kList,
  kRelease,
  kBye
};
constexpr const char* kTypeNames[] = {"?",     "HELLO",    "OPEN_SPACE", "RESERVE", "COMMIT", "GIVE_BACK", "REMOVE",
                                      "FLUSH", "NOTE_USE", "REPORT_BAD", "STAT",    "LIST",   "RELEASE",   "BYE"};
uint16_t type_of(const Packet& packet) { return load<uint16_t>(packet, 4) & 0x7fff; }

// The first 16 bytes of each item of an array.
struct GrantAt {
  uint32_t entry = 0, generation = 0;
  uint64_t offset = 0;
};
std::vector<GrantAt> grants_in(const Packet& answer) {
  const bool commit = type_of(answer) == kCommit;
  const auto count = load<uint32_t>(answer, commit ? 20 : 16);
  std::vector<GrantAt> grants;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = (commit ? 32 : 24) + i * 24;
    grants.push_back({load<uint32_t>(answer, at), load<uint32_t>(answer, at + 4), load<uint64_t>(answer, at + 8)});
  }
  return grants;
}

struct Step {
  enum class What { kConnect, kCut, kSend, kReceive } what;
  Packet packet;
};

// ---- replaying ----------------------------------------------------------------------------------------------------

std::vector<Step> read_golden(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<Step> steps;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what, name, hex;
    words >> what >> name >> hex;
    if (what.empty() || what == "#") continue;
    Packet packet;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      packet.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    steps.push_back({what == "connect" ? Step::What::kConnect
                     : what == "cut"   ? Step::What::kCut
                     : what == ">"     ? Step::What::kSend
                                       : Step::What::kReceive,
                     packet});
  }
  return steps;
}

class Replay {
 public:
  explicit Replay(const std::string& socket) : socket_path_(socket) {}

  void run(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      if (testing::Test::HasFatalFailure()) return;
      switch (step.what) {
        case Step::What::kConnect: connections_.emplace_back(socket_path_); break;
        case Step::What::kCut: connections_.back().hang_up(); break;
        case Step::What::kSend: send(step.packet); break;
        case Step::What::kReceive: receive(step.packet); break;
      }
    }
  }
  std::map<uint16_t, int> answered;  // by type

 private:
  RawClient& client() { return connections_.back(); }

  void put_space(Packet& packet, size_t slot_at, size_t epoch_at) {
    const auto found = spaces_.find(load<uint64_t>(packet, epoch_at));
    ASSERT_TRUE(found != spaces_.end());
    store(packet, slot_at, found->second.slot);
    store(packet, epoch_at, found->second.epoch);
  }
  void put_grant(Packet& packet, size_t at) {
    const auto found = grants_.find({load<uint32_t>(packet, at), load<uint32_t>(packet, at + 4)});
    ASSERT_TRUE(found != grants_.end());
    store(packet, at, found->second.entry);
    store(packet, at + 4, found->second.generation);
  }
  std::span<std::byte> slot(const Packet& packet, size_t at, uint32_t length) {
    const GrantAt& grant = grants_.at({load<uint32_t>(packet, at), load<uint32_t>(packet, at + 4)});
    return {client().arena() + grant.offset, length};
  }

  void send(Packet packet) {
    const uint16_t type = type_of(packet);
    SCOPED_TRACE(kTypeNames[type]);
    switch (type) {
      case kHello:
        store(packet, 20, static_cast<uint32_t>(::getpid()));
        store(packet, 24, process_start_time(::getpid()));
        break;
      case kCommit:
        for (size_t i = 0; i < load<uint32_t>(packet, 20); ++i) {
          const size_t item = 40 + i * 64;
          const Digest digest{load<uint64_t>(packet, item), load<uint64_t>(packet, item + 8)};
          const std::span<std::byte> bytes = slot(packet, item + 40, load<uint32_t>(packet, item + 48));
          fill_pattern(load<uint16_t>(packet, item + 56), digest, 0, bytes);
          put_grant(packet, item + 40);
        }
        put_space(packet, 16, 24);
        break;
      case kGiveBack:
        for (size_t i = 0; i < load<uint32_t>(packet, 16); ++i) put_grant(packet, 24 + i * 8);
        break;
      case kRemove: put_space(packet, 24, 16); break;
      case kNoteUse: put_space(packet, 40, 16); break;
      case kReportBad:
        slot(packet, 16, 1)[0] ^= std::byte{1};  // as it was when the client noticed
        put_grant(packet, 16);
        break;
      case kList: put_space(packet, 32, 24); break;
      case kRelease: {
        const auto found = sessions_.find(load<uint64_t>(packet, 16));
        ASSERT_TRUE(found != sessions_.end());
        store(packet, 16, found->second.first);
        store(packet, 24, found->second.second);
        break;
      }
      default: break;
    }
    ASSERT_TRUE(client().send_bytes(packet));
  }

  void receive(const Packet& recorded) {
    const uint16_t type = type_of(recorded);
    SCOPED_TRACE(std::string("answer to ") + kTypeNames[type]);
    std::optional<Answer> got = client().receive();
    ASSERT_TRUE(got);
    Packet answer(16 + got->body.size());
    std::memcpy(answer.data(), &got->header, 16);
    std::copy(got->body.begin(), got->body.end(), answer.begin() + 16);
    EXPECT_EQ(got->header.status, load<uint16_t>(recorded, 6)) << got->text();
    EXPECT_EQ(got->header.type, load<uint16_t>(recorded, 4));
    EXPECT_EQ(got->header.request, load<uint32_t>(recorded, 8));
    // A later node may append to an answer, never take away.
    if (type != kStat) {
      EXPECT_GE(answer.size(), recorded.size());
    }
    ++answered[type];
    compare(type, recorded, answer);
  }

  void compare(uint16_t type, const Packet& recorded, const Packet& answer) {
    switch (type) {
      case kHello:
        EXPECT_EQ(load<uint16_t>(answer, 16), load<uint16_t>(recorded, 16)) << "the version that was asked for";
        EXPECT_EQ(load<uint64_t>(answer, 72), load<uint64_t>(recorded, 72)) << "the arena";
        EXPECT_EQ(load<uint32_t>(answer, 112), load<uint32_t>(recorded, 112)) << "the pins";
        sessions_[load<uint64_t>(recorded, 24)] = {load<uint64_t>(answer, 24), load<uint64_t>(answer, 32)};
        std::memcpy(&client().welcome, answer.data() + 16, sizeof(client().welcome));
        ASSERT_TRUE(client().map_memory());
        break;
      case kOpenSpace:
        spaces_[load<uint64_t>(recorded, 16)] = {load<uint16_t>(answer, 24), load<uint64_t>(answer, 16)};
        break;
      case kCommit: {
        const size_t count = load<uint32_t>(recorded, 16);
        ASSERT_EQ(load<uint32_t>(answer, 16), count);
        const size_t codes = 32 + grants_in(recorded).size() * 24, codes_now = 32 + grants_in(answer).size() * 24;
        for (size_t i = 0; i < count; ++i) EXPECT_EQ(answer[codes_now + i], recorded[codes + i]) << i;
        [[fallthrough]];
      }
      case kReserve: {
        const std::vector<GrantAt> then = grants_in(recorded), now = grants_in(answer);
        ASSERT_GE(now.size(), then.size());
        for (size_t i = 0; i < then.size(); ++i) grants_[{then[i].entry, then[i].generation}] = now[i];
        break;
      }
      case kRemove:
      case kFlush:
      case kReportBad:
        EXPECT_EQ(Packet(answer.begin() + 16, answer.end()), Packet(recorded.begin() + 16, recorded.end()));
        break;
      case kList: {
        EXPECT_EQ(load<uint64_t>(answer, 16), load<uint64_t>(recorded, 16));
        ASSERT_EQ(load<uint32_t>(answer, 24), load<uint32_t>(recorded, 24));
        for (size_t i = 0; i < load<uint32_t>(answer, 24); ++i) {  // all but flags and children
          EXPECT_TRUE(
              std::equal(answer.begin() + 32 + i * 48, answer.begin() + 32 + i * 48 + 43, recorded.begin() + 32 + i * 48));
        }
        break;
      }
      case kStat:
        EXPECT_TRUE(
            Json::parse(std::string(reinterpret_cast<const char*>(answer.data()) + 24, answer.size() - 24), nullptr, false)
                .is_object());
        break;
      default: break;
    }
  }

  const std::string socket_path_;
  std::vector<RawClient> connections_;
  // What was recorded -> what it is now.
  std::map<uint64_t, SpaceRef> spaces_;                         // by epoch
  std::map<std::pair<uint32_t, uint32_t>, GrantAt> grants_;     // by entry and generation
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> sessions_;  // to session and cookie
};

TEST(GoldenClient, Version1IsServed) {
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  ASSERT_TRUE(eventually([&] { return node.report()["ready_bytes"] == node.report()["capacity_bytes"]; }));
  Replay replay(node.socket());
  replay.run(read_golden(std::string(kSourceFolder) + "/tests/golden/local_v1.txt"));
  for (uint16_t type = kHello; type <= kBye; ++type) EXPECT_GE(replay.answered[type], 1) << kTypeNames[type];
  // All that it held was let go: a client that was served is not quarantined.
  const Json report = node.report();
  EXPECT_EQ(report["clients"], 1);  // the reporter
  EXPECT_EQ(report["reserved"], 0);
  EXPECT_EQ(report["pools"][0]["bad_blocks"], 1);
}

// ---- recording ----------------------------------------------------------------------------------------------------

// Stands between a client and a node of this process, hands packets and descriptors on, and writes down what it saw.
class Recorder {
 public:
  Recorder(const std::string& at, const std::string& node) : node_(node), listener_(::socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    at.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_.get(), 4), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~Recorder() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void cut() { cut_ = true; }
  const std::string& text() const { return text_; }  // after stop()

 private:
  void run() {
    while (!stop_) {
      pollfd polls[3] = {{listener_.get(), POLLIN, 0}, {client_.get(), POLLIN, 0}, {server_.get(), POLLIN, 0}};
      ::poll(polls, 3, 5);
      if (cut_.exchange(false)) {
        text_ += "cut\n";
        client_.reset();
        server_.reset();
      } else if (!client_.valid()) {
        if ((polls[0].revents & POLLIN) == 0) continue;
        client_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        server_ = connect_to(node_);
        text_ += "connect\n";
      } else if (((polls[2].revents & POLLIN) != 0 && !pass(server_, client_, '<')) ||
                 ((polls[1].revents & POLLIN) != 0 && !pass(client_, server_, '>'))) {
        client_.reset();
        server_.reset();
      }
    }
  }
  bool pass(const FileDescriptor& from, const FileDescriptor& to, char direction) {
    Packet packet(wire::kMaxPacket);
    iovec range = {packet.data(), packet.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control = {};
    msghdr message = {};
    message.msg_iov = &range;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(from.get(), &message, MSG_CMSG_CLOEXEC);
    if (size <= 0) return false;
    range.iov_len = static_cast<size_t>(size);
    packet.resize(range.iov_len);
    if (message.msg_controllen == 0) message.msg_control = nullptr;
    if (::sendmsg(to.get(), &message, MSG_NOSIGNAL) != size) return false;
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      for (size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
        ::close(fd);
      }
    }
    text_ += std::string(1, direction) + " " + kTypeNames[type_of(packet)] + " " +
             to_hex(std::span<const std::byte>(packet)) + "\n";
    return true;
  }

  const std::string node_;
  FileDescriptor listener_, client_, server_;
  std::atomic<bool> stop_{false}, cut_{false};
  std::string text_;
  std::thread thread_;
};

TEST(GoldenRecorderSlow, WritesWhatAClientSends) {
  const char* path = std::getenv("KVIST_RECORD_GOLDEN");
  if (path == nullptr) GTEST_SKIP() << "it records only if KVIST_RECORD_GOLDEN says where to";
  const Folder folder;
  ThreadNode node;
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  ASSERT_TRUE(eventually([&] { return node.report()["ready_bytes"] == node.report()["capacity_bytes"]; }));
  Recorder recorder(folder.file("recorder.sock"), node.socket());
  {
    ClientOptions options;
    options.socket = folder.file("recorder.sock");
    options.name = "golden";
    options.pins = 64;
    options.verify = Verify::kAlways;
    StatusOr<Client> client = Client::connect(options);
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    Identity identity = RawClient::identity("golden");
    identity.parts = {{.name = "k", .block_bytes = 4096}, {.name = "state", .need = PartNeed::kLast}};
    StatusOr<Space> space = client->open(identity);
    ASSERT_TRUE(space.ok());
    const auto put = [&](std::span<const Digest> digests, uint32_t first, Digest parent, const PutOptions& how,
                         uint32_t size) {
      std::vector<Packet> bytes;
      std::vector<ConstRange> ranges;
      std::vector<Gather> gathers;
      for (const Digest& digest : digests) fill_pattern(how.part, digest, 0, bytes.emplace_back(size));
      for (const Packet& each : bytes) ranges.push_back({each.data(), each.size()});
      for (const ConstRange& range : ranges) gathers.emplace_back(&range, 1);
      std::vector<StatusCode> results(digests.size());
      return space->put({digests, first, parent}, gathers, results, how);
    };
    std::vector<Digest> chain;
    for (uint64_t i = 1; i <= 6; ++i) chain.push_back({i * 0x9e3779b97f4a7c15, i});
    const std::span<const Digest> all = chain;
    EXPECT_EQ(put(all.first(4), 0, {}, {.session = "talk", .stop = "end"}, 4096), 4u);
    EXPECT_EQ(put(all.subspan(4, 1), 4, chain[3], {.strict = true}, 4096), 1u);
    EXPECT_EQ(put(all.subspan(4, 1), 4, chain[3], {.part = 1}, 100), 1u);
    EXPECT_EQ(put(all.subspan(5, 1), 9, {7, 7}, {.strict = true}, 4096), 0u);  // its parent is nowhere
    EXPECT_TRUE(space->touch(all.first(5), 0, "talk", "tool_use").ok());
    uint64_t cursor = 0;
    EXPECT_EQ(client->list(*space, &cursor)->size(), 7u);  // and the stub above the block of part 1
    for (const auto what : {Client::Report::kNode, Client::Report::kClients, Client::Report::kSpaces}) {
      EXPECT_TRUE(client->report(what).ok());
    }
    // A block that goes bad behind its checksum: through the room that it was filled in.
    const std::vector<Digest> bad = {{99, 99}};
    const uint32_t length = 4096;
    StatusOr<Batch> batch = space->reserve({.positions = bad}, {&length, 1}, {.unchained = true});
    ASSERT_TRUE(batch.ok());
    fill_pattern(0, bad[0], 0, (*batch)[0]);
    std::byte* room = (*batch)[0].data();
    EXPECT_EQ(batch->commit(), 1u);
    *room ^= std::byte{1};
    EXPECT_EQ(space->pin(bad).hits(), 0u);
    EXPECT_TRUE(eventually([&] { return node.report()["pools"][0]["bad_blocks"] == 1; }));
    ::poll(nullptr, 0, 11'000);  // until the client has given back slots that it does not need
    StatusCode removed = StatusCode::kUnknown;
    EXPECT_EQ(space->remove(all.subspan(4, 1), {&removed, 1}), 1u);
    // The socket goes, the process stays: the next connection says that the first session is over.
    Prefix held = space->longest_prefix({.positions = all.first(2)}, {.parts = 1});
    EXPECT_EQ(held.size(), 2u);
    recorder.cut();
    EXPECT_TRUE(eventually([&] { return client->stats().reconnects == 1; }));
    held.reset();
    EXPECT_EQ(put(all.subspan(4, 1), 4, chain[3], {}, 4096), 1u);
    EXPECT_TRUE(space->flush().ok());
  }
  recorder.stop();
  std::ofstream(path) << "# What a client of protocol version " << wire::kLocalVersion
                      << " sent (>) and was answered (<): see tests/node/golden_client_test.cc. Never to be changed.\n"
                      << recorder.text();
}

}  // namespace
}  // namespace kvist::test
