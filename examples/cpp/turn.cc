// A turn of a conversation, as an engine would run it: look up what is known of the context, read that in place, compute
// the rest straight into the pool, and read one block back by copying it.
//
//   turn              with the node that is found by KVIST_SOCKET or in the usual places
//   turn --embedded   with a pool in this process
//
// Run it twice: the second time everything is there already. docs/cpp.md walks through it.
#include <kvist/client.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kBlocks = 32, kBlockBytes = 65536;

// Stands for the model: the bytes of the KV block for position i of the context.
void compute(size_t i, std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(i * 131 + at * 7);
}

bool right(size_t i, std::span<const std::byte> bytes) {
  std::vector<std::byte> expected(kBlockBytes);
  compute(i, expected);
  return std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end());
}

[[noreturn]] void die(const char* what, const kvist::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.to_string().c_str());
  std::exit(1);
}

// [connect]
kvist::Client connect(bool embedded) {
  kvist::StatusOr<kvist::Client> client = embedded ? kvist::Client::embedded({.memory_bytes = 64 << 20})
                                                   : kvist::Client::connect({.name = "example"});
  if (!client.ok()) die("connect", client.status());
  return *std::move(client);
}
// [/connect]

// [open]
kvist::Space open(kvist::Client& client) {
  kvist::Identity identity;
  identity.alias = "example-cpp";
  identity.model = "example/model";
  identity.kv_dtype = "bfloat16";
  identity.block_tokens = 16;
  identity.parts = {{.name = "kv", .block_bytes = kBlockBytes}};
  kvist::StatusOr<kvist::Space> space = client.open(identity);
  if (!space.ok()) die("open", space.status());
  return *std::move(space);
}
// [/open]

// [prefix]
uint32_t read_prefix(const kvist::Space& space, std::span<const kvist::Digest> chain) {
  const kvist::Prefix prefix = space.longest_prefix({.positions = chain});
  if (!prefix.status().ok()) {  // what was found before that is good
    std::fprintf(stderr, "the prefix ends early: %s\n", prefix.status().to_string().c_str());
  }
  for (const kvist::Block& block : prefix.blocks()) {
    // An engine would copy block.data to its device here.
    if (!right(block.position, {block.data, block.size})) std::abort();
  }
  return prefix.size();
}  // unpins: the pointers end here
// [/prefix]

// [put]
size_t put_rest(const kvist::Space& space, std::span<const kvist::Digest> chain, uint32_t known) {
  const kvist::Chain rest{.positions = chain.subspan(known),
                          .first = known,
                          .parent = known > 0 ? chain[known - 1] : kvist::Digest()};
  const uint32_t length = kBlockBytes;  // one for all
  kvist::StatusOr<kvist::Batch> batch = space.reserve(rest, {&length, 1}, {.session = "conversation-1"});
  if (!batch.ok()) die("reserve", batch.status());
  for (size_t i = 0; i < batch->size(); ++i) {
    compute(known + i, (*batch)[i]);  // room in the pool itself; empty where somebody was faster
  }
  const size_t stored = batch->commit();
  for (size_t i = 0; i < batch->size(); ++i) {
    const kvist::StatusCode code = batch->result(i);
    if (code != kvist::StatusCode::kOk && code != kvist::StatusCode::kAlreadyExists) {
      std::fprintf(stderr, "block %zu: %s\n", known + i, std::string(kvist::status_code_name(code)).c_str());
    }
  }
  return stored;
}
// [/put]

// [get]
void get_last(const kvist::Space& space, const kvist::Digest& last) {
  std::vector<std::byte> bytes(kBlockBytes);
  const kvist::Range halves[] = {{bytes.data(), kBlockBytes / 2}, {bytes.data() + kBlockBytes / 2, kBlockBytes / 2}};
  const kvist::Scatter destination = halves;
  kvist::StatusCode result = kvist::StatusCode::kUnknown;
  space.get({&last, 1}, {&destination, 1}, {&result, 1}, 0, kvist::within(std::chrono::milliseconds(100)));
  if (result != kvist::StatusCode::kOk || !right(kBlocks - 1, bytes)) {
    die("get", kvist::Status(result, "the last block"));
  }
}
// [/get]

}  // namespace

// [main]
int main(int argc, char** argv) {
  kvist::Client client = connect(argc > 1 && std::string(argv[1]) == "--embedded");
  const kvist::Space space = open(client);

  std::vector<std::string> keys;  // an engine has block hashes, each of which covers the whole prefix
  for (uint32_t i = 0; i < kBlocks; ++i) keys.push_back("system prompt, block " + std::to_string(i));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const std::vector<kvist::Digest> chain = space.digests(views);

  const uint32_t known = read_prefix(space, chain);
  const size_t stored = put_rest(space, chain, known);
  get_last(space, chain.back());
  std::printf("%u of %u blocks were there, %zu stored, %u now\n", known, kBlocks, stored, read_prefix(space, chain));
}
// [/main]
