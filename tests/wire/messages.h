// One filled-in packet of every local message, and how it is decoded: what the tests, the fuzz target and its corpus share.
//
// Field values differ from each other in every byte, so that a field that is read from the wrong place shows.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "wire/local.h"

namespace kvist::wire {

struct Sample {
  std::string name;
  std::vector<std::byte> packet;
  // Whether the body is accepted.
  std::function<bool(std::span<const std::byte>)> decode;
};

inline constexpr Digest kSampleDigest{0x0102030405060708, 0x090a0b0c0d0e0f10};
inline constexpr Digest kSampleParent{0x1112131415161718, 0x191a1b1c1d1e1f20};

template <typename T>
bool decode_fixed(std::span<const std::byte> body) {
  T value;
  return Cursor(body).read(&value);
}

template <typename T>
bool decode_message(std::span<const std::byte> body) {
  T value;
  return decode(body, &value);
}

inline MessageType answer_to(MessageType type) {
  return static_cast<MessageType>(static_cast<uint16_t>(type) | static_cast<uint16_t>(MessageType::kAnswer));
}

class SampleMaker {
 public:
  template <typename Fill>
  void add(std::string name, MessageType type, std::function<bool(std::span<const std::byte>)> decode, Fill&& fill,
           StatusCode status = StatusCode::kOk) {
    Builder builder;
    builder.start(type, 0x51525354, status);
    fill(builder);
    const std::span<const std::byte> bytes = builder.finish();
    samples_.push_back({std::move(name), {bytes.begin(), bytes.end()}, std::move(decode)});
  }
  std::vector<Sample> take() { return std::move(samples_); }

 private:
  std::vector<Sample> samples_;
};

inline GrantItem sample_grant(uint32_t n) {
  return {.entry = 0xa0a1a200 + n,
          .generation = 0xb0b1b200 + n,
          .offset = 0xc0c1c2c3c4c5c600 + n,
          .slot_bytes = 0xd0d1d200 + n,
          .unused = 0};
}

inline CommitItem sample_commit_item() {
  return {.digest = kSampleDigest,
          .parent = kSampleParent,
          .checksum = 0x2122232425262728,
          .entry = 0x31323334,
          .generation = 0x35363738,
          .length = 0x393a3b3c,
          .depth = 0x3d3e3f40,
          .part = 0x4142,
          .flags = 0x43,
          .unused = 0,
          .unused2 = 0};
}

inline void add_requests(SampleMaker& make) {
  make.add("hello", MessageType::kHello, decode_message<HelloMessage>, [](Builder& b) {
    b.add(Hello{.version_min = 0x0102,
                .version_max = 0x0304,
                .pid = 0x05060708,
                .start_time = 0x090a0b0c0d0e0f10,
                .pins_wanted = 0x11121314,
                .token_bytes = 3,
                .domain_bytes = 2,
                .name_bytes = 4,
                .features = 0x1516,
                .unused = 0});
    b.add_text("tokdoname");
  });
  make.add("open_space", MessageType::kOpenSpace, decode_message<OpenSpaceMessage>, [](Builder& b) {
    OpenSpace fixed{.alias_bytes = 5, .unused = 0, .record_bytes = 6, .id = {}};
    for (size_t i = 0; i < fixed.id.size(); ++i) fixed.id[i] = static_cast<uint8_t>(i + 1);
    b.add(fixed);
    b.add_text("aliasrecord");
  });
  make.add("reserve", MessageType::kReserve, decode_fixed<Reserve>,
           [](Builder& b) { b.add(Reserve{.length = 0x01020304, .count = 0x05060708}); });
  make.add("commit", MessageType::kCommit, decode_message<CommitMessage>, [](Builder& b) {
    b.add(Commit{.slot = 0x0102,
                 .session_bytes = 4,
                 .stop_bytes = 3,
                 .count = 1,
                 .epoch = 0x05060708090a0b0c,
                 .refill_length = 0x0d0e0f10,
                 .refill_count = 0x11121314});
    b.add(sample_commit_item());
    b.add_text("talkend");
  });
  make.add("give_back", MessageType::kGiveBack, decode_message<GiveBackMessage>, [](Builder& b) {
    b.add(GiveBack{.count = 2, .unused = 0});
    for (const uint32_t word : {0x01020304u, 0x05060708u, 0x090a0b0cu, 0x0d0e0f10u}) b.add(word);
  });
  make.add("remove", MessageType::kRemove, decode_message<RemoveMessage>, [](Builder& b) {
    b.add(Remove{.epoch = 0x0102030405060708, .slot = 0x090a, .part = 0x0b0c, .count = 2});
    b.add(kSampleDigest);
    b.add(kSampleParent);
  });
  make.add(
      "flush", MessageType::kFlush,
      [](std::span<const std::byte> body) {
        std::string_view alias;
        return decode_flush(body, &alias);
      },
      [](Builder& b) {
        b.add(Flush{.alias_bytes = 5, .unused = 0});
        b.add_text("alias");
      });
  make.add("note_use", MessageType::kNoteUse, decode_message<NoteUseMessage>, [](Builder& b) {
    b.add(NoteUse{.epoch = 0x0102030405060708,
                  .tip = kSampleDigest,
                  .slot = 0x1112,
                  .session_bytes = 4,
                  .stop_bytes = 3,
                  .unused = 0});
    b.add_text("talkend");
  });
  make.add("report_bad", MessageType::kReportBad, decode_fixed<ReportBad>,
           [](Builder& b) { b.add(ReportBad{.entry = 0x01020304, .generation = 0x05060708}); });
  make.add("stat", MessageType::kStat, decode_fixed<Stat>,
           [](Builder& b) { b.add(Stat{.what = 0x01020304, .offset = 0x05060708}); });
  make.add("list", MessageType::kList, decode_fixed<List>, [](Builder& b) {
    b.add(List{.cursor = 0x0102030405060708, .epoch = 0x1112131415161718, .slot = 0x090a, .unused = 0, .limit = 0x0b0c0d0e});
  });
  make.add("release", MessageType::kRelease, decode_fixed<Release>,
           [](Builder& b) { b.add(Release{.session = 0x0102030405060708, .cookie = 0x090a0b0c0d0e0f10}); });
  make.add(
      "bye", MessageType::kBye, [](std::span<const std::byte>) { return true; }, [](Builder&) {});
  make.add(
      "configure", MessageType::kConfigure,
      [](std::span<const std::byte> body) {
        std::string_view key, value;
        return decode_configure(body, &key, &value);
      },
      [](Builder& b) {
        b.add(Configure{.key_bytes = 3, .value_bytes = 5, .unused = 0});
        b.add_text("keyvalue");
      });
  make.add("fetch", MessageType::kFetch, decode_message<FetchMessage>, [](Builder& b) {
    b.add(Fetch{.epoch = 0x0102030405060708,
                .slot = 0x090a,
                .part = 0x0b0c,
                .count = 2,
                .budget_ms = 0x11121314,
                .first_need = 0x15161718});
    b.add(kSampleDigest);
    b.add(kSampleParent);
  });
}

inline void add_answers(SampleMaker& make) {
  make.add("welcome", answer_to(MessageType::kHello), decode_fixed<Welcome>, [](Builder& b) {
    b.add(Welcome{.version = 0x0102,
                  .features = 0x0304,
                  .node_pid = 0x05060708,
                  .session = 0x090a0b0c0d0e0f10,
                  .cookie = 0x1112131415161718,
                  .incarnation = {0x191a1b1c1d1e1f20, 0x2122232425262728},
                  .control_bytes = 0x292a2b2c2d2e2f30,
                  .touch_bytes = 0x3132333435363738,
                  .arena_bytes = 0x393a3b3c3d3e3f40,
                  .pins_bytes = 0x4142434445464748,
                  .extent_bytes = 0x494a4b4c4d4e4f50,
                  .granted_bytes_limit = 0x5152535455565758,
                  .pinned_bytes_limit = 0x595a5b5c5d5e5f60,
                  .pin_capacity = 0x61626364,
                  .granted_slots_limit = 0x65666768,
                  .max_in_flight = 0x696a6b6c,
                  .max_packet = 0x6d6e6f70});
  });
  make.add("space_opened", answer_to(MessageType::kOpenSpace), decode_fixed<SpaceOpened>, [](Builder& b) {
    b.add(SpaceOpened{.epoch = 0x0102030405060708, .slot = 0x090a, .unused = 0, .epochs = 0x0b0c0d0e});
  });
  make.add(
      "granted", answer_to(MessageType::kReserve),
      [](std::span<const std::byte> body) {
        std::vector<GrantItem> grants;
        uint8_t stop = 0;
        return decode_granted(body, &grants, &stop);
      },
      [](Builder& b) {
        b.add(Granted{.count = 2, .stop = 3, .unused = {}});
        b.add(sample_grant(1));
        b.add(sample_grant(2));
      });
  make.add("committed", answer_to(MessageType::kCommit), decode_message<CommittedMessage>, [](Builder& b) {
    b.add(Committed{.count = 3, .grants = {.count = 1, .stop = 2, .unused = {}}, .unused = 0});
    b.add(sample_grant(1));
    for (const uint8_t code : {uint8_t{0}, uint8_t{1}, uint8_t{7}}) b.add(code);
  });
  make.add(
      "removed", answer_to(MessageType::kRemove),
      [](std::span<const std::byte> body) {
        std::vector<uint8_t> codes;
        return decode_codes(body, &codes);
      },
      [](Builder& b) {
        b.add(uint32_t{2});
        b.add(uint32_t{0});
        b.add(uint8_t{0});
        b.add(uint8_t{5});
      });
  make.add(
      "fetched", answer_to(MessageType::kFetch),
      [](std::span<const std::byte> body) {
        std::vector<uint8_t> codes;
        return decode_codes(body, &codes);
      },
      [](Builder& b) {
        b.add(uint32_t{kFetchCodes});
        b.add(uint32_t{0});
        for (uint8_t code = 0; code < kFetchCodes; ++code) b.add(code);
      });
  make.add("flushed", answer_to(MessageType::kFlush), decode_fixed<uint64_t>,
           [](Builder& b) { b.add(uint64_t{0x0102030405060708}); });
  make.add("report_answered", answer_to(MessageType::kReportBad), decode_fixed<uint32_t>,
           [](Builder& b) { b.add(uint32_t{1}); });
  make.add(
      "listed", answer_to(MessageType::kList),
      [](std::span<const std::byte> body) {
        Listed fixed;
        std::vector<ListItem> items;
        return decode_listed(body, &fixed, &items);
      },
      [](Builder& b) {
        b.add(Listed{.cursor = 0x0102030405060708, .count = 1, .unused = 0});
        b.add(ListItem{.digest = kSampleDigest,
                       .parent = kSampleParent,
                       .length = 0x21222324,
                       .depth = 0x25262728,
                       .part = 0x292a,
                       .state = 0x2b,
                       .flags = 0x2c,
                       .children = 0x2d2e2f30});
      });
  make.add(
      "failure", answer_to(MessageType::kOpenSpace), [](std::span<const std::byte>) { return true; },
      [](Builder& b) { b.add_text("no"); }, StatusCode::kFailedPrecondition);
}

inline std::vector<Sample> all_samples() {
  SampleMaker make;
  add_requests(make);
  add_answers(make);
  return make.take();
}

}  // namespace kvist::wire
