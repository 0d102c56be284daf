// kvist snapshot and kvist load, from one node to another.
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/random.h"
#include "base/seed.h"
#include "cli/progress.h"
#include "cli/snapshot_stream.h"
#include "command.h"
#include "kvist/client.h"
#include "node/harness.h"

namespace kvist::cli {
namespace {

using test::Json;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Place {
  uint32_t size, depth;
  Digest parent;
  friend bool operator==(const Place&, const Place&) = default;
};
using Content = std::map<std::pair<Digest, uint16_t>, Place>;

// `kvist` as a process, with pipes; its standard error may be a terminal.
class Process {
 public:
  enum class Errors { kPipe, kTerminal };
  explicit Process(std::vector<std::string> words, Errors errors = Errors::kPipe) {
    int in[2], out[2], err[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return;
    if (errors == Errors::kTerminal ? ::openpty(&err[0], &err[1], nullptr, nullptr, nullptr) != 0
                                    : ::pipe2(err, O_CLOEXEC) != 0) {
      return;
    }
    words.insert(words.begin(), test::kCommand);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(in[0], STDIN_FILENO), ::dup2(out[1], STDOUT_FILENO), ::dup2(err[1], STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]), ::close(out[1]), ::close(err[1]);
    in_.reset(in[1]), out_.reset(out[0]), err_.reset(err[0]);
  }
  ~Process() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool begins_to_write() const {
    pollfd waiting = {out_.get(), POLLIN, 0};
    return ::poll(&waiting, 1, test::kWaitSeconds * 1000) == 1;
  }
  bool write(const std::string& bytes) const {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::write(in_.get(), bytes.data() + done, bytes.size() - done);
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }
  void end_input() { in_.reset(); }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  // Everything up to its end. What goes to standard error fits a pipe.
  Outcome finish() {
    end_input();
    Outcome outcome;
    outcome.out = read_all(out_.get());
    outcome.err = read_all(err_.get());
    const int status = wait();
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return outcome;
  }

 private:
  int wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  static std::string read_all(int fd) {
    std::string text;
    std::array<char, 65536> piece;
    pollfd waiting = {fd, POLLIN, 0};
    while (::poll(&waiting, 1, test::kWaitSeconds * 1000) > 0) {
      const ssize_t n = ::read(fd, piece.data(), piece.size());
      if (n <= 0) break;
      text.append(piece.data(), static_cast<size_t>(n));
    }
    return text;
  }

  pid_t pid_ = -1;
  FileDescriptor in_, out_, err_;
};

class Snapshots : public testing::Test {
 protected:
  static constexpr uint64_t kSeed = 11;

  Outcome run_at(const test::ThreadNode& node, std::vector<std::string> words) {
    words.insert(words.begin() + 1, {"--socket", node.socket()});
    return run_command(std::move(words));
  }
  Outcome snapshot(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"snapshot", file()};
    words.insert(words.end(), more.begin(), more.end());
    return run_at(from_, words);
  }
  Outcome load(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"load", file()};
    words.insert(words.end(), more.begin(), more.end());
    return run_at(to_, words);
  }
  std::string file() const { return folder_.file("s.kvs"); }
  std::string small_file(const std::string& name) const {
    std::ofstream(folder_.file(name)) << name << "\n";
    return folder_.file(name);
  }
  std::string content() const {
    std::ifstream stream(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void replace_by(const std::string& bytes) const { std::ofstream(file(), std::ios::binary | std::ios::trunc) << bytes; }
  static Json json(const Outcome& outcome) { return Json::parse(outcome.out, nullptr, false); }

  static Client connect(const test::ThreadNode& node) {
    ClientOptions options;
    options.socket = node.socket();
    options.verify = Verify::kAlways;
    StatusOr<Client> client = Client::connect(options);
    EXPECT_TRUE(client.ok()) << client.status().to_string();
    return *std::move(client);
  }
  static Identity identity() {
    Identity identity;
    identity.alias = "llama";
    identity.model = "m";
    identity.parts = {{.name = "k"}, {.name = "v"}};
    return identity;
  }
  static Digest name(uint64_t number) { return {splitmix64(number + 1), number + 1}; }

  // Blocks first, first + 1, ... of a chain of so many positions, of a part; their bytes follow from name and part.
  static size_t put(const Space& space, const std::vector<Digest>& positions, uint32_t first, Digest parent, uint16_t part,
                    uint32_t size) {
    std::vector<std::vector<std::byte>> bytes(positions.size(), std::vector<std::byte>(size));
    std::vector<ConstRange> ranges;
    std::vector<Gather> sources;
    ranges.reserve(positions.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      fill_pattern(kSeed, positions[i], part, bytes[i]);
      ranges.push_back({bytes[i].data(), size});
      sources.push_back({&ranges.back(), 1});
    }
    std::vector<StatusCode> results(positions.size());
    return space.put({.positions = positions, .first = first, .parent = parent}, sources, results, {.part = part});
  }
  static std::vector<Digest> chain(uint64_t from, uint64_t count) {
    std::vector<Digest> names;
    for (uint64_t i = 0; i < count; ++i) names.push_back(name(from + i));
    return names;
  }
  // What the namespace holds; each block's bytes are those that follow from its name.
  static Content held(Client& client, const std::string& alias = "llama") {
    Identity wanted = identity();
    wanted.alias = alias;
    const StatusOr<Space> space = client.open(wanted);
    EXPECT_TRUE(space.ok()) << space.status().to_string();
    Content content;
    if (!space.ok()) return content;
    uint64_t cursor = 0;
    do {
      const auto page = client.list(*space, &cursor);
      EXPECT_TRUE(page.ok()) << page.status().to_string();
      if (!page.ok()) return content;
      for (const Client::Listing& block : *page) {
        if (!block.resident && !block.on_disk) continue;
        content[{block.position, block.part}] = {block.size, block.depth, block.parent};
        const Pinned pinned = space->pin({&block.position, 1}, block.part);
        EXPECT_NE(pinned[0], nullptr);
        if (pinned[0] == nullptr) continue;
        EXPECT_EQ(check_pattern(kSeed, block.position, block.part, {pinned[0]->data, pinned[0]->size}), 0u);
      }
    } while (cursor != 0);
    return content;
  }
  // Both parts of a chain of so many positions.
  void fill(uint64_t positions, uint32_t size = 1000) {
    const StatusOr<Space> space = source_.open(identity());
    ASSERT_TRUE(space.ok()) << space.status().to_string();
    for (uint16_t part = 0; part < 2; ++part) {
      ASSERT_EQ(put(*space, chain(0, positions), 0, {}, part, size), positions);
    }
  }
  bool has_namespace(const std::string& alias) { return contains(run_at(to_, {"ls"}).out, alias); }

  test::Folder folder_;
  test::ThreadNode from_{[](NodeOptions& options) { options.pool.memory_bytes = uint64_t{64} << 20; }};
  test::ThreadNode to_;
  Client source_ = connect(from_), target_ = connect(to_);
};

TEST_F(Snapshots, EverythingArrives) {
  constexpr uint32_t kSizes[] = {1, 64, 1000, 4096, 5000};  // few: a pool of 32 MiB has extents for sixteen sizes of slots
  Random random(test_seed());
  const Space space = *source_.open(identity());
  uint64_t next = 0;
  std::vector<std::pair<Digest, uint32_t>> ends = {{Digest{}, 0}};  // where a chain may go on, and at which depth
  for (int i = 0; i < 60; ++i) {
    const auto [parent, depth] = ends[random.below(ends.size())];
    const std::vector<Digest> positions = chain(next, random.between(1, 40));
    next += positions.size();
    const uint32_t size = kSizes[random.below(std::size(kSizes))];
    for (uint16_t part = 0; part < 2; ++part) {
      if (part == 1 && random.chance(0.3)) continue;  // not all parts are everywhere
      ASSERT_EQ(put(space, positions, depth, parent, part, size), positions.size());
    }
    for (uint32_t k = 0; k < positions.size(); ++k) ends.emplace_back(positions[k], depth + k + 1);
  }
  ASSERT_EQ(put(space, chain(5000, 3), 7, name(4999), 0, 100), 3u) << "behind a block that is not there";
  ASSERT_EQ(put(space, {name(6000)}, 5, {}, 1, 100), 1u) << "of an unknown parent";
  const Content before = held(source_);

  Outcome outcome = snapshot({"--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json(outcome)["blocks"], before.size());
  EXPECT_EQ(json(outcome)["file_bytes"], content().size());
  EXPECT_EQ(json(outcome)["left_out"], 0);
  outcome = load({"--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json(outcome)["loaded"], before.size());
  EXPECT_EQ(json(outcome)["complete"], true);
  EXPECT_EQ(held(target_), before);
  // And back: the same bytes, but for the time.
  const std::string first = content();
  ASSERT_EQ(run_at(to_, {"snapshot", file(), "--force"}).code, 0);
  EXPECT_EQ(content().substr(kSnapshotHeaderBytes), first.substr(kSnapshotHeaderBytes));
}

// A file that another program wrote need not be in the order of `kvist snapshot`. A block of depth 4 that follows one of
// depth 3 need not be its child.
TEST_F(Snapshots, BlocksArriveInAnyOrder) {
  Random random(test_seed());
  fill(4, 100);
  const Space space = *source_.open(identity());
  ASSERT_EQ(put(space, chain(100, 20), 4, name(99), 0, 100), 20u);
  ASSERT_EQ(put(space, chain(200, 20), 2, name(1), 0, 100), 20u);
  const Content before = held(source_);
  std::vector<std::pair<std::pair<Digest, uint16_t>, Place>> blocks(before.begin(), before.end());
  Interrupt interrupt;
  for (int round = 0; round < 20; ++round) {
    for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(i)]);
    // By depth: the beginnings of runs follow the ends of others.
    if (round == 0) {
      std::stable_sort(blocks.begin(), blocks.end(),
                       [](const auto& a, const auto& b) { return a.second.depth < b.second.depth; });
    }
    const SnapshotHeader header{0, space.id(), "llama", *encode_identity(identity())};
    const auto writer = SnapshotWriter::create({.path = file(), .replace = true}, header, interrupt);
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    for (const auto& [block, place] : blocks) {
      SnapshotRecord record;
      record.digest = block.first, record.part = block.second, record.parent = place.parent, record.depth = place.depth;
      std::vector<std::byte> bytes(place.size);
      fill_pattern(kSeed, block.first, block.second, bytes);
      ASSERT_TRUE((*writer)->add(record, bytes).ok());
    }
    ASSERT_TRUE((*writer)->finish(0).ok());
    const std::string alias = "round" + std::to_string(round);
    const Outcome outcome = load({"--as", alias});
    ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
    ASSERT_EQ(held(target_, alias), before);
  }
}

TEST_F(Snapshots, MoreThanABatch) {
  fill(2500, 4000);
  ASSERT_EQ(snapshot().code, 0);
  const Outcome outcome = load();
  EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "loaded 5,000 blocks (19.1MiB) into llama; 0 were there already")) << outcome.out;
  EXPECT_EQ(held(target_), held(source_));
}

TEST_F(Snapshots, LoadingAgainPutsWhatIsMissing) {
  fill(10);
  const Outcome written = snapshot();
  EXPECT_TRUE(contains(written.out, "wrote 20 blocks of llama (19.5KiB), chains of up to 10 positions, to ")) << written.out;
  ASSERT_EQ(load().code, 0);
  std::vector<StatusCode> results(2);
  const Space space = *target_.open(identity());
  ASSERT_EQ(space.remove(chain(4, 2), results, 1), 2u);
  const Outcome outcome = load({"--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json(outcome)["loaded"], 2);
  EXPECT_EQ(json(outcome)["loaded_bytes"], 2000);
  EXPECT_EQ(json(outcome)["already_there"], 18);
  EXPECT_EQ(held(target_), held(source_));
}

TEST_F(Snapshots, OnlyWhatIsChosen) {
  fill(10);
  const Space space = *source_.open(identity());
  ASSERT_EQ(put(space, chain(100, 5), 4, name(3), 0, 500), 5u);  // branches off behind position 3
  const std::string tip = to_hex(name(104));
  ASSERT_EQ(run_at(from_, {"snapshot", "--digest", "--tip", tip, file()}).code, 0) << "the file may stand behind it";
  ASSERT_EQ(load().code, 0);
  EXPECT_EQ(held(target_).size(), 4u * 2 + 5);
  ASSERT_EQ(snapshot({"--digest", "--tip", tip, "--depth", "5", "--force"}).code, 0);
  EXPECT_EQ(json(load({"--as", "five", "--json"}))["loaded"], 4 * 2 + 1);
  EXPECT_EQ(held(target_, "five").size(), 4u * 2 + 1);
  ASSERT_EQ(snapshot({"--digest", "--tip", to_hex(name(1)), "--tip", to_hex(name(3)), "--force"}).code, 0);
  EXPECT_EQ(json(load({"--as", "two", "--json"}))["loaded"], 4 * 2);

  Outcome outcome = snapshot({"--digest", "--tip", to_hex(name(999)), "--force"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, to_hex(name(999)))) << outcome.err;
  EXPECT_EQ(snapshot({"--digest", "--tip", "xyz", "--force"}).code, 2);
  // By key.
  ASSERT_EQ(run_at(from_, {"put", "-n", "keys", "a", small_file("block")}).code, 0);
  outcome = snapshot({"-n", "keys", "--tip", "a", "--force"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "wrote 1 blocks of keys")) << outcome.out;
}

TEST_F(Snapshots, NothingIsNoFile) {
  ASSERT_TRUE(source_.open(identity()).ok());
  const Outcome outcome = snapshot();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "nothing to write")) << outcome.err;
  EXPECT_EQ(snapshot({"-n", "nobody"}).code, 1);
  EXPECT_FALSE(std::filesystem::exists(file()) || std::filesystem::exists(file() + ".tmp"));
}

TEST_F(Snapshots, AnExistingFileStays) {
  fill(1);
  replace_by("precious");
  EXPECT_EQ(snapshot().code, 1);
  EXPECT_EQ(content(), "precious");
  EXPECT_EQ(snapshot({"--force"}).code, 0);
  EXPECT_EQ(load().code, 0);
}

TEST_F(Snapshots, ThroughAPipe) {
  fill(300, 3000);
  Process writer({"snapshot", "-", "--socket", from_.socket()});
  const Outcome written = writer.finish();
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_TRUE(contains(written.err, "wrote 600 blocks of llama")) << written.err;
  Process reader({"load", "-", "--socket", to_.socket(), "--json"});
  ASSERT_TRUE(reader.write(written.out));
  const Outcome read = reader.finish();
  EXPECT_EQ(read.code, 0) << read.err;
  EXPECT_EQ(json(read)["loaded"], 600);
  EXPECT_EQ(held(target_), held(source_));
  EXPECT_EQ(run_at(from_, {"snapshot", "-", "--json"}).code, 2) << "both cannot go there";
  // Cut short: what came is loaded, and that it was not all is said.
  Process half({"load", "-", "--socket", to_.socket(), "--as", "half", "--json"});
  ASSERT_TRUE(half.write(written.out.substr(0, written.out.size() / 2)));
  const Outcome cut = half.finish();
  EXPECT_EQ(cut.code, 1);
  EXPECT_TRUE(contains(cut.err, "cut short")) << cut.err;
  EXPECT_EQ(json(cut)["complete"], false);
  EXPECT_EQ(json(cut)["loaded"], held(target_, "half").size());
  EXPECT_GT(held(target_, "half").size(), 200u);
}

// ---- identities ---------------------------------------------------------------------------------------------------

TEST_F(Snapshots, AnotherIdentityUnderTheNameIsRefusedByTheNode) {
  fill(3);
  ASSERT_EQ(snapshot().code, 0);
  Identity other = identity();
  other.revision = "another";
  ASSERT_TRUE(target_.open(other).ok());
  for (const std::vector<std::string>& how : {std::vector<std::string>{}, {"--dry-run"}}) {
    const Outcome outcome = load(how);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(contains(outcome.err, "in use for another identity: revision")) << outcome.err;
  }
  EXPECT_EQ(load({"--as", "second"}).code, 0);
  EXPECT_EQ(held(target_, "second").size(), 6u);
}

TEST_F(Snapshots, ASecretIsNeededWhereThereIsOne) {
  const std::string secret = small_file("secret"), other = small_file("other");
  ASSERT_EQ(run_at(from_, {"put", "-n", "mine", "a", small_file("block"), "--secret-file", secret}).code, 0);
  ASSERT_EQ(snapshot({"--secret-file", secret}).code, 0);
  Outcome outcome = load();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "give that by --secret-file")) << outcome.err;
  EXPECT_EQ(load({"--secret-file", other}).code, 1);
  EXPECT_FALSE(has_namespace("mine")) << "a namespace that none of its blocks belongs to";
  EXPECT_EQ(load({"--secret-file", secret}).code, 0);
  EXPECT_EQ(run_at(to_, {"exists", "a", "--secret-file", secret}).code, 0);
}

// ---- damage -------------------------------------------------------------------------------------------------------

TEST_F(Snapshots, ACutFileIsRefusedBeforeAnythingIsPut) {
  fill(10);
  ASSERT_EQ(snapshot().code, 0);
  const std::string whole = content();
  const size_t header = whole.find("KVSTSNPR");
  for (const size_t bytes : {size_t{0}, size_t{50}, header - 1, header, header + 40, header + 500, header + 1072 * 5,
                             whole.size() - 64, whole.size() - 1}) {
    replace_by(whole.substr(0, bytes));
    const Outcome outcome = load();
    EXPECT_EQ(outcome.code, 1) << bytes;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_FALSE(has_namespace("llama")) << bytes;
    EXPECT_EQ(contains(outcome.err, "--partial"), bytes >= header) << outcome.err;
  }
  replace_by(whole.substr(0, header + 1072 * 5 + 300));
  const Outcome outcome = load({"--partial", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "cut short: it ends behind 5 whole blocks")) << outcome.err;
  EXPECT_EQ(json(outcome)["loaded"], 5);
  EXPECT_EQ(json(outcome)["complete"], false);
  const Content arrived = held(target_);
  EXPECT_EQ(arrived.size(), 5u);
  for (const auto& [block, place] : arrived) EXPECT_LE(place.depth, 2u) << "the beginning of the chain";
}

TEST_F(Snapshots, DamagedBytesAreNotPut) {
  fill(10);
  ASSERT_EQ(snapshot().code, 0);
  std::string bytes = content();
  const size_t header = bytes.find("KVSTSNPR");
  bytes[header + 1072 * 7 + 500] ^= 1;  // of block 7, counted from 0
  replace_by(bytes);
  Outcome outcome = load({"--dry-run"});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_FALSE(has_namespace("llama"));
  outcome = load({"--json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "the bytes of block " + to_hex(name(3)))) << outcome.err;
  EXPECT_EQ(json(outcome)["loaded"], 7) << "what stands before it";
  EXPECT_EQ(json(outcome)["damaged"], 1);
  EXPECT_EQ(held(target_).size(), 7u);
  outcome = load({"--partial"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "damaged 1")) << outcome.out;
  EXPECT_EQ(held(target_).size(), 19u);
  EXPECT_FALSE(held(target_).contains({name(3), 1}));
  // A damaged record header: nothing behind it can be found.
  bytes[header + 1072 * 3 + 20] ^= 1;
  replace_by(bytes);
  outcome = load({"--as", "second", "--partial"});
  EXPECT_TRUE(contains(outcome.err, "behind 3 blocks")) << outcome.err;
  EXPECT_EQ(held(target_, "second").size(), 3u);
}

TEST_F(Snapshots, ANewerFileIsRefused) {
  fill(1);
  ASSERT_EQ(snapshot().code, 0);
  std::string bytes = content();
  bytes[8] = 9;
  replace_by(bytes);
  for (const std::vector<std::string>& how : {std::vector<std::string>{}, {"--partial"}, {"--dry-run"}}) {
    const Outcome outcome = load(how);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(contains(outcome.err, "format version 9")) << outcome.err;
  }
  EXPECT_EQ(load({"--as", ""}).code, 1);
  EXPECT_FALSE(has_namespace("llama"));
}

TEST_F(Snapshots, ADryRunPutsNothing) {
  fill(10);
  ASSERT_EQ(snapshot().code, 0);
  Outcome outcome = load({"--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "would load 20 blocks")) << outcome.out;
  EXPECT_FALSE(has_namespace("llama"));
  const Space space = *target_.open(identity());
  ASSERT_EQ(put(space, chain(0, 4), 0, {}, 0, 1000), 4u);
  outcome = load({"--dry-run", "--json"});
  EXPECT_EQ(json(outcome)["loaded"], 16);
  EXPECT_EQ(json(outcome)["already_there"], 4);
  EXPECT_EQ(json(outcome)["dry_run"], true);
  EXPECT_EQ(held(target_).size(), 4u);
}

// ---- what happens meanwhile ---------------------------------------------------------------------------------------

// The writer stands still with a first batch of 16 MiB read, since nobody reads its pipe; what goes then is not in the file.
TEST_F(Snapshots, BlocksThatGoMeanwhileAreLeftOut) {
  const Space space = *source_.open(identity());
  ASSERT_EQ(put(space, chain(0, 40), 0, {}, 0, 1 << 20), 40u);
  Process writer({"snapshot", "-", "--socket", from_.socket()});
  ASSERT_TRUE(writer.begins_to_write());
  std::vector<StatusCode> results(2);
  const std::vector<Digest> gone = {name(30), name(31)};
  ASSERT_EQ(space.remove(gone, results), 2u);
  const Outcome written = writer.finish();
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_TRUE(contains(written.err, "wrote 38 blocks")) << written.err;
  EXPECT_TRUE(contains(written.err, "left out 2: evicted or removed meanwhile")) << written.err;
  EXPECT_TRUE(contains(written.err, "1 have a block before them")) << written.err;
  replace_by(written.out);
  const Outcome outcome = load({"--json"});
  EXPECT_EQ(json(outcome)["complete"], true) << outcome.err;
  EXPECT_FALSE(held(target_).contains({name(30), 0}));
}

TEST_F(Snapshots, AFlushMeanwhileEndsIt) {
  const Space space = *source_.open(identity());
  ASSERT_EQ(put(space, chain(0, 40), 0, {}, 0, 1 << 20), 40u);
  Process writer({"snapshot", "-", "--socket", from_.socket()});
  ASSERT_TRUE(writer.begins_to_write());
  ASSERT_TRUE(space.flush().ok());
  const Outcome written = writer.finish();
  EXPECT_EQ(written.code, 1);
  EXPECT_TRUE(contains(written.err, "flushed")) << written.err;
  replace_by(written.out);
  EXPECT_EQ(load().code, 1) << "it has no end";
}

TEST_F(Snapshots, TheNodeGoesMeanwhile) {
  const Space space = *source_.open(identity());
  ASSERT_EQ(put(space, chain(0, 40), 0, {}, 0, 1 << 20), 40u);
  Process writer({"snapshot", "-", "--socket", from_.socket()});
  ASSERT_TRUE(writer.begins_to_write());
  from_.stop();
  const Outcome written = writer.finish();
  EXPECT_EQ(written.code, 1);
  EXPECT_TRUE(contains(written.err, "the node went away")) << written.err;
}

TEST_F(Snapshots, CtrlCEndsAWriterThatWaits) {
  const Space space = *source_.open(identity());
  ASSERT_EQ(put(space, chain(0, 4), 0, {}, 0, 1 << 20), 4u);
  Process writer({"snapshot", "-", "--socket", from_.socket()});
  ASSERT_TRUE(writer.begins_to_write());
  writer.signal(SIGINT);
  const Outcome written = writer.finish();
  EXPECT_EQ(written.code, 1) << "not killed by the signal";
  EXPECT_EQ(written.err, "kvist snapshot: interrupted\n");
}

TEST_F(Snapshots, CtrlCEndsALoadAndSaysWhatWasLoaded) {
  fill(1000, 100);
  ASSERT_EQ(snapshot().code, 0);
  const std::string bytes = content();
  Process reader({"load", "-", "--socket", to_.socket(), "--json"});
  ASSERT_TRUE(reader.write(bytes.substr(0, bytes.size() - 1000)));
  ASSERT_TRUE(test::eventually([&] { return to_.report()["blocks"].get<uint64_t>() >= 1024; })) << "a batch";
  reader.signal(SIGINT);
  const Outcome outcome = reader.finish();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "interrupted; loading again goes on")) << outcome.err;
  EXPECT_EQ(json(outcome)["loaded"], held(target_).size());
  EXPECT_EQ(json(load({"--json"}))["already_there"], json(outcome)["loaded"]);
  EXPECT_EQ(held(target_), held(source_));
}

// A pool of which everything is pinned takes nothing: counted, and not waited for block by block.
TEST_F(Snapshots, APoolThatTakesNothingEndsALoad) {
  fill(2000, 100);
  ASSERT_EQ(snapshot().code, 0);
  const Space space = *target_.open(identity());
  std::vector<Pinned> pins;
  for (uint64_t i = 0; i < 64; ++i) {
    const std::vector<Digest> one = {name(100'000 + i)};
    put(space, one, 0, {}, 0, 1 << 20);
    pins.push_back(space.pin(one));
    if (pins.back().hits() == 0) break;
  }
  const Outcome outcome = load({"--json", "--timeout", "200ms"});
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_GT(json(outcome)["refused_no_room"], 0) << outcome.out;
  EXPECT_TRUE(contains(outcome.err, "the pool takes nothing any more")) << outcome.err;
  EXPECT_EQ(json(outcome)["complete"], false);
  EXPECT_EQ(json(outcome)["loaded"],
            held(target_).size() - static_cast<size_t>(std::count_if(pins.begin(), pins.end(),
                                                                     [](const Pinned& pin) { return pin.hits() > 0; })));
  pins.clear();
  EXPECT_EQ(load().code, 0);
}

// What is only on disk is in the file like all else, though DRAM does not hold it at once.
TEST_F(Snapshots, OfTwoTiers) {
  constexpr uint64_t kPool = uint64_t{16} << 20;
  constexpr uint32_t kBlock = 64 << 10;
  const test::ThreadNode tiers([&](NodeOptions& options) {
    options.pool.memory_bytes = kPool;
    options.disk.directories = folder_.file("disk");
    options.disk.capacity_bytes = uint64_t{256} << 20;
    options.disk.buffer_bytes = uint64_t{16} << 20;
    options.disk.admit = DiskOptions::Admit::kAll;
    std::filesystem::create_directories(options.disk.directories);
  });
  ASSERT_TRUE(tiers.ok()) << tiers.status().to_string();
  Client client = connect(tiers);
  const Space space = *client.open(identity());
  // How many blocks there are, and how many of them only on disk.
  const auto count = [&] {
    std::pair<uint64_t, uint64_t> seen;
    uint64_t cursor = 0;
    do {
      const auto page = client.list(space, &cursor);
      EXPECT_TRUE(page.ok()) << page.status().to_string();
      if (!page.ok()) break;
      for (const Client::Listing& block : *page) {
        seen.first += block.resident || block.on_disk;
        seen.second += block.on_disk && !block.resident;
      }
    } while (cursor != 0);
    return seen;
  };
  uint64_t next = 0;
  const auto grow = [&] {
    put(space, chain(next, 8), 0, {}, 0, kBlock);
    next += 8;
    return count().first * kBlock > 2 * kPool;
  };
  ASSERT_TRUE(test::eventually(grow));
  const auto [all, only_on_disk] = count();
  EXPECT_GT(only_on_disk, 0u);
  const Outcome written = run_at(tiers, {"snapshot", file(), "--json", "--timeout", "20s"});
  ASSERT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(json(written)["blocks"].get<uint64_t>() + json(written)["left_out"].get<uint64_t>(), all);
  EXPECT_GT(json(written)["block_bytes"], kPool) << "more than DRAM holds";
  const Outcome outcome = run_at(from_, {"load", file(), "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json(outcome)["loaded"], json(written)["blocks"]);
  EXPECT_EQ(held(source_).size(), json(written)["blocks"]);
}

TEST_F(Snapshots, AFileLargerThanThePoolIsSaid) {
  const Space space = *source_.open(identity());
  ASSERT_EQ(put(space, chain(0, 40), 0, {}, 0, 1 << 20), 40u);
  ASSERT_EQ(snapshot().code, 0);
  const Outcome outcome = load();
  EXPECT_TRUE(contains(outcome.err, "the blocks have 40.0MiB, the pool has room for 32.0MiB")) << outcome.err;
}

// What is written over on a terminal is not in a log.
TEST_F(Snapshots, ABarIsForTerminals) {
  fill(10);
  Process to_terminal({"snapshot", file(), "--socket", from_.socket()}, Process::Errors::kTerminal);
  const Outcome shown = to_terminal.finish();
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_TRUE(contains(shown.err, "\r\033[Kkvist snapshot: waiting for the disk")) << shown.err;
  EXPECT_TRUE(shown.err.ends_with("\r\033[K")) << "the line is empty again";
  Process to_pipe({"snapshot", file(), "--socket", from_.socket(), "--force"});
  EXPECT_EQ(to_pipe.finish().err, "");
}

TEST(SnapshotProgress, Lines) {
  EXPECT_EQ(progress_line("kvist load", 0, 1 << 20, 0, ""), "kvist load: [>                   ]   0 %  0B of 1.00MiB");
  EXPECT_EQ(progress_line("kvist load", 1 << 19, 1 << 20, 2, "7 blocks"),
            "kvist load: [==========>         ]  50 %  512KiB of 1.00MiB  256KiB/s  2 s left  7 blocks");
  EXPECT_EQ(progress_line("x", 1 << 20, 1 << 20, 2, ""), "x: [====================] 100 %  1.00MiB of 1.00MiB  512KiB/s");
  EXPECT_EQ(progress_line("x", 2 << 20, 1 << 20, 0, ""), "x: [====================] 100 %  2.00MiB of 1.00MiB")
      << "more than said";
  EXPECT_EQ(progress_line("x", 1 << 20, 0, 1, "1 blocks"), "x: 1.00MiB  1.00MiB/s  1 blocks") << "how much is not known";
}

}  // namespace
}  // namespace kvist::cli
