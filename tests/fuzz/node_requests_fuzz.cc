// Any sequence of requests by two clients of a node, with anything written into their shared tables in between, against a
// real pool: whatever it was, the pool agrees with itself afterwards, and everything held comes back when the clients go.
//
// Input: records of {kind 1 byte, size 2 bytes little-endian, body}. Kinds below 0x80 are requests of that type by client
// kind & 1 (the type is kind >> 1); 0x80 writes the body's words into a pin table, 0x81 into touch words, 0x82 into the
// arena, 0x83 lets time pass.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "node/domain.h"
#include "node/requests.h"
#include "node/scrubber.h"
#include "wire/local.h"

namespace kvist {
namespace {

constexpr SessionId kFirst = 11;
constexpr uint32_t kPins = 64;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

class Fuzzed {
 public:
  Fuzzed() : requests_(options_, counters_, [](Report, const Domain&) { return std::string(200'000, 'r'); }) {
    options_.pool.memory_bytes = 1 << 20;
    options_.pool.max_blocks = 512;
    options_.limits.granted_bytes = 512 << 10;
    options_.recheck_one_in = 2;
    StatusOr<std::unique_ptr<Domain>> domain = Domain::create(options_.pool, options_);
    require(domain.ok(), "no domain");
    domain_ = *std::move(domain);
    for (uint32_t extent = 0; extent < domain_->pool().extents(); ++extent) domain_->pool().add_extent(extent);
    for (size_t i = 0; i < sessions_.size(); ++i) {
      pins_[i] = std::make_unique<PrivatePins>(kPins);
      sessions_[i].id = kFirst + i;
      sessions_[i].domain = domain_.get();
      require(pool().add_session(kFirst + i, options_.limits, pins_[i]->table(), kPins).ok(), "no session");
    }
  }

  void record(uint8_t kind, std::span<const std::byte> body) {
    if (kind < 0x80) return request(sessions_[kind & 1], static_cast<uint16_t>(kind >> 1), body);
    if (kind == 0x83) {
      pool().set_time(now_ms_ += 700);
      requests_.tick();
      for (int step = 0; step < 64 && pool().maintain(); ++step) continue;
    }
    write(kind, body);
  }

  void finish() {
    require(pool().self_check().empty(), pool().self_check().c_str());
    for (const Session& session : sessions_) pool().release_session(session.id);
    pool().set_time(now_ms_ += 5000);
    for (int step = 0; step < 1000 && pool().maintain(); ++step) continue;
    require(pool().self_check().empty(), pool().self_check().c_str());
    require(pool().stats().granted_slots == 0, "grants are left");
  }

 private:
  Pool& pool() { return domain_->pool(); }

  void request(Session& session, uint16_t type, std::span<const std::byte> body) {
    wire::Header header;
    header.type = type;
    header.request = 77;
    if (!requests_.handle(session, header, body, answer_)) return;
    const std::span<const std::byte> packet = answer_.finish();
    wire::Header answered;
    std::span<const std::byte> rest;
    require(wire::open_packet(packet, &answered, &rest), "an answer that is no packet");
    require(answered.request == 77 && answered.type == (type | 0x8000), "an answer to something else");
  }

  // What a client can do to memory that it shares.
  void write(uint8_t kind, std::span<const std::byte> body) {
    for (size_t at = 0; at + 10 <= body.size(); at += 10) {
      uint16_t where = 0;
      uint64_t word = 0;
      std::memcpy(&where, &body[at], sizeof(where));
      std::memcpy(&word, &body[at + 2], sizeof(word));
      PinTable& table = *pins_[where & 1]->table();
      if (kind == 0x80 && where / 2 == kPins) table.high_water.store(static_cast<uint32_t>(word));
      if (kind == 0x80) table.pins[where / 2 % kPins].store(word);
      if (kind == 0x81) domain_->memory().touch()[where % 513].store(static_cast<uint32_t>(word));
      if (kind == 0x82) std::memcpy(domain_->memory().arena() + uint64_t{where} * 16, &word, sizeof(word));
    }
  }

  NodeOptions options_;
  NodeCounters counters_;
  std::unique_ptr<Domain> domain_;
  std::array<std::unique_ptr<PrivatePins>, 2> pins_;
  std::array<Session, 2> sessions_;
  Requests requests_;
  wire::Builder answer_;
  uint64_t now_ms_ = 0;
};

}  // namespace
}  // namespace kvist

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvist::Fuzzed fuzzed;
  std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data), size);
  while (rest.size() >= 3) {
    const auto kind = static_cast<uint8_t>(rest[0]);
    const size_t wanted = static_cast<size_t>(rest[1]) | static_cast<size_t>(rest[2]) << 8;
    rest = rest.subspan(3);
    const std::span<const std::byte> body = rest.first(std::min(wanted, rest.size()));
    rest = rest.subspan(body.size());
    fuzzed.record(kind, body);
  }
  fuzzed.finish();
  return 0;
}
