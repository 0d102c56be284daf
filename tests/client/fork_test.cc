// A forked child has copies of the handles, but not what they stand for.
#include <sys/wait.h>
#include <unistd.h>

#include "client/doors.h"

namespace kvist::test {
namespace {

class Fork : public DoorTest {
 protected:
  void SetUp() override { start(); }
  Random random{test_seed()};
};
DOORS(Fork);

// Runs `body` in a child; its value becomes the exit code, which must be 0. The child ends without destructors or handlers
// of the test program.
template <typename Body>
void in_child(Body body) {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::alarm(20);
    ::_exit(body());
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the check of this number failed in the child";
}

TEST_P(Fork, EveryCallIsRefusedInTheChild) {
  const Identity who = identity("a");
  Space space = open(who);
  const std::vector<Digest> chain = random_digests(random, 4);
  put_all(space, chain, 1000);
  Pinned pinned = space.pin(chain);
  Prefix prefix = space.longest_prefix({.positions = chain});
  const uint32_t length = 100;
  const std::vector<Digest> more = random_digests(random, 1);
  StatusOr<Batch> reserved = space.reserve({.positions = more}, {&length, 1});
  ASSERT_TRUE(reserved.ok());
  Batch batch = *std::move(reserved);
  Sources sources(chain, 1000);
  Destinations got(4, 1000);
  constexpr StatusCode kRefused = StatusCode::kFailedPrecondition;
  in_child([&] {
    int check = 0;
    const auto refused = [&check](bool as_expected) { return ++check, as_expected; };
    uint64_t cursor = 0;
    Completion completion;
    const std::byte byte{};
    const ConstRange one{&byte, 1};
    if (!refused(client.open(who).status().code() == kRefused)) return check;
    if (!refused(client.report(Client::Report::kNode).status().code() == kRefused)) return check;
    if (!refused(client.list(space, &cursor).status().code() == kRefused)) return check;
    if (!refused(!client.connected())) return check;
    if (!refused(client.completion_fd() == -1)) return check;
    if (!refused(client.poll({&completion, 1}) == 0)) return check;
    if (!refused(client.stats().hits == 0)) return check;
    const Prefix none = space.longest_prefix({.positions = chain});
    if (!refused(none.status().code() == kRefused && none.status().message().find("fork") != std::string_view::npos))
      return check;
    if (!refused(space.pin(chain).result(3) == kRefused)) return check;
    if (!refused(space.contains(chain, got.results) == 0 && got.results[0] == kRefused)) return check;
    if (!refused(space.get(chain, got.scatters(), got.results) == 0 && got.results[3] == kRefused)) return check;
    if (!refused(space.put({.positions = chain}, sources.gathers(), sources.results) == 0 && sources.results[0] == kRefused))
      return check;
    if (!refused(space.reserve({.positions = chain}, {&length, 1}).status().code() == kRefused)) return check;
    if (!refused(space.submit_put({.positions = chain}, sources.gathers(), sources.results).status().code() == kRefused))
      return check;
    if (!refused(space.submit_get(chain, got.scatters(), got.results).status().code() == kRefused)) return check;
    if (!refused(space.touch(chain).code() == kRefused)) return check;
    if (!refused(space.remove(chain, got.results) == 0 && got.results[0] == kRefused)) return check;
    if (!refused(space.flush().status().code() == kRefused)) return check;
    if (!refused(batch[0].empty() && batch.commit() == 0)) return check;
    if (!refused(batch.copy(0, {&one, 1}).code() == kRefused)) return check;
    // Letting go of everything says nothing to the node, unmaps nothing, waits for no thread.
    batch = Batch();
    pinned = Pinned();
    prefix = Prefix();
    space = Space();
    client = Client();
    return 0;
  });
  // The parent's handles are as they were.
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(right(*pinned[i], chain[i]));
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 4u);
  EXPECT_EQ(stat("pinned"), 8u);
  std::fill(batch[0].begin(), batch[0].end(), std::byte{7});
  EXPECT_EQ(batch.commit(), 1u);
  put_all(space, random_digests(random, 10), 100);
}

// The child's copies are the last it has, and nothing that the client handed out is left: what the parent has goes on.
TEST_P(Fork, AChildThatLetsGoSaysNothing) {
  Space space = open(identity("a"));
  put_all(space, random_digests(random, 4), 1000);
  in_child([&] {
    space = Space();
    client = Client();
    return 0;
  });
  EXPECT_TRUE(client.connected());
  put_all(space, random_digests(random, 4), 1000);
  EXPECT_EQ(client.stats().reconnects, 0u);
}

#if !defined(__SANITIZE_THREAD__)  // that tool allows no threads in the child of a process with threads
TEST_P(Fork, AChildMayConnectAnew) {
  const Space space = open(identity("a"));
  const std::vector<Digest> chain = random_digests(random, 4);
  put_all(space, chain, 1000);
  in_child([&] {
    StatusOr<Client> own = GetParam() == Door::kNode ? Client::connect(client_options) : Client::embedded(embedded_options);
    if (!own.ok()) return 1;
    StatusOr<Space> mine = own->open(identity("a"));
    if (!mine.ok()) return 2;
    const Prefix prefix = mine->longest_prefix({.positions = chain});
    if (prefix.size() != (GetParam() == Door::kNode ? 4u : 0u)) return 3;
    const std::vector<Digest> more = random_digests(random, 4);
    Sources sources(more, 1000);
    if (mine->put({.positions = more}, sources.gathers(), sources.results) != 4) return 4;
    return mine->pin(more).hits() == 4 ? 0 : 5;
  });
  EXPECT_EQ(space.longest_prefix({.positions = chain}).size(), 4u);
}
#endif

}  // namespace
}  // namespace kvist::test
