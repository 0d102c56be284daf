#include "wire/local.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "wire/messages.h"

namespace kvist::wire {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  char two[3];
  for (const std::byte byte : bytes) {
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned>(byte));
    text += two;
  }
  return text;
}

// A copy in an allocation of exactly its size, so that AddressSanitizer sees every read past the end.
class Exact {
 public:
  explicit Exact(std::span<const std::byte> bytes) : bytes_(new std::byte[bytes.size()]), size_(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), bytes_.get());
  }
  std::span<const std::byte> get() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_;
};

std::span<const std::byte> body_of(const Sample& sample) { return std::span(sample.packet).subspan(sizeof(Header)); }

template <typename T>
std::vector<std::byte> with_fixed(const T& fixed, size_t more = 0) {
  std::vector<std::byte> body(sizeof(T) + more);
  std::memcpy(body.data(), &fixed, sizeof(T));
  return body;
}

// The bytes on the wire are a promise to every client that is deployed: they change with kLocalVersion only.
const std::map<std::string, std::string>& golden() {
  static const std::map<std::string, std::string> packets = {
#include "wire/golden.inc"
  };
  return packets;
}

TEST(LocalWire, PacketsAreByteForByteWhatTheyWere) {
  const std::vector<Sample> samples = all_samples();
  for (const Sample& sample : samples) {
    const auto expected = golden().find(sample.name);
    ASSERT_NE(expected, golden().end()) << sample.name << " has no golden packet; it is\n" << hex(sample.packet);
    EXPECT_EQ(hex(sample.packet), expected->second) << sample.name;
  }
  EXPECT_EQ(golden().size(), samples.size());
}

TEST(LocalWire, EveryMessageIsAccepted) {
  for (const Sample& sample : all_samples()) {
    Header header;
    std::span<const std::byte> body;
    const Exact packet(sample.packet);
    ASSERT_TRUE(open_packet(packet.get(), &header, &body)) << sample.name;
    EXPECT_EQ(header.request, 0x51525354u) << sample.name;
    EXPECT_TRUE(sample.decode(body)) << sample.name;
  }
}

TEST(LocalWire, EveryTruncatedPacketIsRefused) {
  for (const Sample& sample : all_samples()) {
    for (size_t size = 0; size < sample.packet.size(); ++size) {
      Header header;
      std::span<const std::byte> body;
      const Exact packet(std::span(sample.packet).first(size));
      EXPECT_FALSE(open_packet(packet.get(), &header, &body)) << sample.name << " cut to " << size;
    }
  }
}

TEST(LocalWire, EveryTruncatedBodyIsRefused) {
  for (const Sample& sample : all_samples()) {
    if (sample.name == "bye" || sample.name == "failure") continue;  // any body will do
    const std::span<const std::byte> whole = body_of(sample);
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(sample.decode(Exact(whole.first(size)).get())) << sample.name << " cut to " << size;
    }
  }
}

TEST(LocalWire, AppendedBytesAreIgnored) {
  for (const Sample& sample : all_samples()) {
    std::vector<std::byte> longer(body_of(sample).begin(), body_of(sample).end());
    longer.resize(longer.size() + 7, std::byte{0xff});
    EXPECT_TRUE(sample.decode(Exact(longer).get())) << sample.name;
  }
}

TEST(LocalWire, AnyPacketIsRefusedWithForeignMagicOrLength) {
  const Sample sample = all_samples().front();
  for (const size_t byte : {offsetof(Header, magic), offsetof(Header, magic) + 3, offsetof(Header, body_bytes)}) {
    std::vector<std::byte> packet = sample.packet;
    packet[byte] ^= std::byte{1};
    Header header;
    std::span<const std::byte> body;
    EXPECT_FALSE(open_packet(packet, &header, &body)) << "byte " << byte;
  }
}

TEST(LocalWire, PacketsLongerThanTheLimitAreRefused) {
  for (const size_t size : {kMaxPacket, kMaxPacket + 1}) {
    Builder builder;
    builder.start(MessageType::kBye, 1);
    builder.add_text(std::string(size - sizeof(Header), 'x'));
    Header header;
    std::span<const std::byte> body;
    EXPECT_EQ(open_packet(builder.finish(), &header, &body), size <= kMaxPacket);
  }
}

// A count that would overflow `count * sizeof(item)`, or ask for memory that the packet cannot fill.
TEST(LocalWire, HugeCountsAreRefusedBeforeAnythingIsAllocated) {
  for (const uint32_t count : {0xffffffffu, 0x80000000u, 0x10000001u, 0x04000000u, 2u}) {
    CommitMessage commit;
    EXPECT_FALSE(decode(with_fixed(Commit{.count = count}, sizeof(CommitItem)), &commit));
    EXPECT_LE(commit.items.capacity(), 1u);
    GiveBackMessage give_back;
    EXPECT_FALSE(decode(with_fixed(GiveBack{.count = count}, 8), &give_back));
    RemoveMessage remove;
    EXPECT_FALSE(decode(with_fixed(Remove{.count = count}, sizeof(Digest)), &remove));
    FetchMessage fetch;
    EXPECT_FALSE(decode(with_fixed(Fetch{.count = count}, sizeof(Digest)), &fetch));
    EXPECT_LE(fetch.digests.capacity(), 1u);
    CommittedMessage committed;
    EXPECT_FALSE(decode(with_fixed(Committed{.count = count, .grants = {}}, 1), &committed));
    EXPECT_FALSE(decode(with_fixed(Committed{.count = 0, .grants = {.count = count}}, sizeof(GrantItem)), &committed));
    std::vector<GrantItem> grants;
    uint8_t stop = 0;
    EXPECT_FALSE(decode_granted(with_fixed(Granted{.count = count}, sizeof(GrantItem)), &grants, &stop));
    std::vector<uint8_t> codes;
    EXPECT_FALSE(decode_codes(with_fixed(std::array<uint32_t, 2>{count, 0}, 1), &codes));
    Listed listed;
    std::vector<ListItem> items;
    EXPECT_FALSE(decode_listed(with_fixed(Listed{.count = count}, sizeof(ListItem)), &listed, &items));
  }
}

TEST(LocalWire, TextsOverTheirLimitAreRefused) {
  const size_t most = kMaxText;
  for (const size_t size : {most, most + 1}) {
    const auto bytes = static_cast<uint16_t>(size);
    HelloMessage hello;
    EXPECT_EQ(decode(with_fixed(Hello{.token_bytes = bytes}, size), &hello), size <= most);
    EXPECT_EQ(decode(with_fixed(Hello{.domain_bytes = bytes}, size), &hello), size <= most);
    EXPECT_EQ(decode(with_fixed(Hello{.name_bytes = bytes}, size), &hello), size <= most);
    OpenSpaceMessage open;
    EXPECT_EQ(decode(with_fixed(OpenSpace{.alias_bytes = bytes}, size), &open), size <= most);
    std::string_view alias;
    EXPECT_EQ(decode_flush(with_fixed(Flush{.alias_bytes = bytes}, size), &alias), size <= most);
  }
  OpenSpaceMessage open;
  EXPECT_TRUE(decode(with_fixed(OpenSpace{.record_bytes = kMaxRecord}, kMaxRecord), &open));
  EXPECT_FALSE(decode(with_fixed(OpenSpace{.record_bytes = kMaxRecord + 1}, kMaxRecord + 1), &open));
}

const Sample& sample(const std::vector<Sample>& samples, const std::string& name) {
  for (const Sample& s : samples) {
    if (s.name == name) return s;
  }
  ADD_FAILURE() << "no sample " << name;
  return samples.front();
}

TEST(LocalWire, HelloSaysWhatWasSent) {
  const std::vector<Sample> samples = all_samples();
  HelloMessage hello;
  ASSERT_TRUE(decode(body_of(sample(samples, "hello")), &hello));
  EXPECT_EQ(hello.fixed.version_min, 0x0102);
  EXPECT_EQ(hello.fixed.version_max, 0x0304);
  EXPECT_EQ(hello.fixed.pid, 0x05060708u);
  EXPECT_EQ(hello.fixed.start_time, 0x090a0b0c0d0e0f10u);
  EXPECT_EQ(hello.fixed.pins_wanted, 0x11121314u);
  EXPECT_EQ(hello.token, "tok");
  EXPECT_EQ(hello.domain, "do");
  EXPECT_EQ(hello.name, "name");
}

TEST(LocalWire, CommitSaysWhatWasSent) {
  const std::vector<Sample> samples = all_samples();
  CommitMessage commit;
  ASSERT_TRUE(decode(body_of(sample(samples, "commit")), &commit));
  EXPECT_EQ(commit.fixed.slot, 0x0102);
  EXPECT_EQ(commit.fixed.epoch, 0x05060708090a0b0cu);
  EXPECT_EQ(commit.fixed.refill_length, 0x0d0e0f10u);
  EXPECT_EQ(commit.fixed.refill_count, 0x11121314u);
  ASSERT_EQ(commit.items.size(), 1u);
  const CommitItem& item = commit.items[0];
  EXPECT_EQ(item.digest, kSampleDigest);
  EXPECT_EQ(item.parent, kSampleParent);
  EXPECT_EQ(item.checksum, 0x2122232425262728u);
  EXPECT_EQ(item.entry, 0x31323334u);
  EXPECT_EQ(item.generation, 0x35363738u);
  EXPECT_EQ(item.length, 0x393a3b3cu);
  EXPECT_EQ(item.depth, 0x3d3e3f40u);
  EXPECT_EQ(item.part, 0x4142);
  EXPECT_EQ(item.flags, 0x43);
  EXPECT_EQ(commit.session, "talk");
  EXPECT_EQ(commit.stop, "end");
}

TEST(LocalWire, OtherRequestsSayWhatWasSent) {
  const std::vector<Sample> samples = all_samples();
  OpenSpaceMessage open;
  ASSERT_TRUE(decode(body_of(sample(samples, "open_space")), &open));
  EXPECT_EQ(open.alias, "alias");
  EXPECT_EQ(open.record, "record");
  EXPECT_EQ(open.fixed.id[31], 32);
  GiveBackMessage give_back;
  ASSERT_TRUE(decode(body_of(sample(samples, "give_back")), &give_back));
  ASSERT_EQ(give_back.items.size(), 2u);
  EXPECT_EQ(give_back.items[1], (std::pair<uint32_t, uint32_t>(0x090a0b0c, 0x0d0e0f10)));
  RemoveMessage remove;
  ASSERT_TRUE(decode(body_of(sample(samples, "remove")), &remove));
  EXPECT_EQ(remove.fixed.part, 0x0b0c);
  ASSERT_EQ(remove.digests.size(), 2u);
  EXPECT_EQ(remove.digests[1], kSampleParent);
  NoteUseMessage note;
  ASSERT_TRUE(decode(body_of(sample(samples, "note_use")), &note));
  EXPECT_EQ(note.fixed.tip, kSampleDigest);
  EXPECT_EQ(note.session, "talk");
  EXPECT_EQ(note.stop, "end");
  std::string_view alias;
  ASSERT_TRUE(decode_flush(body_of(sample(samples, "flush")), &alias));
  EXPECT_EQ(alias, "alias");
  std::string_view key, value;
  ASSERT_TRUE(decode_configure(body_of(sample(samples, "configure")), &key, &value));
  EXPECT_EQ(key, "key");
  EXPECT_EQ(value, "value");
  FetchMessage fetch;
  ASSERT_TRUE(decode(body_of(sample(samples, "fetch")), &fetch));
  EXPECT_EQ(fetch.fixed.part, 0x0b0c);
  EXPECT_EQ(fetch.fixed.budget_ms, 0x11121314u);
  EXPECT_EQ(fetch.fixed.first_need, 0x15161718u);
  ASSERT_EQ(fetch.digests.size(), 2u);
  EXPECT_EQ(fetch.digests[1], kSampleParent);
}

TEST(LocalWire, OneFetchAsksForABoundedNumberOfBlocks) {
  FetchMessage fetch;
  EXPECT_TRUE(decode(with_fixed(Fetch{.count = kMaxFetched}, kMaxFetched * sizeof(Digest)), &fetch));
  EXPECT_EQ(fetch.digests.size(), kMaxFetched);
  EXPECT_FALSE(decode(with_fixed(Fetch{.count = kMaxFetched + 1}, (kMaxFetched + 1) * sizeof(Digest)), &fetch));
}

TEST(LocalWire, AnswersSayWhatWasSent) {
  const std::vector<Sample> samples = all_samples();
  CommittedMessage committed;
  ASSERT_TRUE(decode(body_of(sample(samples, "committed")), &committed));
  ASSERT_EQ(committed.grants.size(), 1u);
  EXPECT_EQ(committed.grants[0].offset, 0xc0c1c2c3c4c5c601u);
  EXPECT_EQ(committed.stop, 2);
  EXPECT_EQ(committed.codes, (std::vector<uint8_t>{0, 1, 7}));
  std::vector<GrantItem> grants;
  uint8_t stop = 0;
  ASSERT_TRUE(decode_granted(body_of(sample(samples, "granted")), &grants, &stop));
  ASSERT_EQ(grants.size(), 2u);
  EXPECT_EQ(grants[1].slot_bytes, 0xd0d1d202u);
  EXPECT_EQ(stop, 3);
  std::vector<uint8_t> codes;
  ASSERT_TRUE(decode_codes(body_of(sample(samples, "removed")), &codes));
  EXPECT_EQ(codes, (std::vector<uint8_t>{0, 5}));
  Listed listed;
  std::vector<ListItem> items;
  ASSERT_TRUE(decode_listed(body_of(sample(samples, "listed")), &listed, &items));
  EXPECT_EQ(listed.cursor, 0x0102030405060708u);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].children, 0x2d2e2f30u);
}

// After one failed read a cursor gives nothing any more, so that a decoder may look once at its end.
TEST(LocalWire, CursorStaysFailed) {
  const std::vector<std::byte> bytes(8);
  Cursor cursor(bytes);
  uint64_t eight = 0;
  std::array<uint64_t, 2> sixteen{};
  EXPECT_FALSE(cursor.read(&sixteen));
  EXPECT_FALSE(cursor.read(&eight));
  EXPECT_FALSE(cursor.ok());
}

TEST(LocalWire, BuilderIsUsedAgain) {
  Builder builder;
  builder.start(MessageType::kReserve, 1);
  builder.add(Reserve{.length = 1, .count = 2});
  const size_t first = builder.finish().size();
  builder.start(MessageType::kBye, 2);
  const std::span<const std::byte> second = builder.finish();
  EXPECT_EQ(first, sizeof(Header) + sizeof(Reserve));
  EXPECT_EQ(second.size(), sizeof(Header));
  Header header;
  std::span<const std::byte> body;
  ASSERT_TRUE(open_packet(second, &header, &body));
  EXPECT_EQ(header.request, 2u);
}

}  // namespace
}  // namespace kvist::wire
