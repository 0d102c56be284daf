// wire/local.h: what a client and the node of its host say to each other over a Unix SOCK_SEQPACKET socket.
//
// One packet is one message: a header, a fixed part, then arrays whose counts the fixed part gives. All little-endian,
// naturally aligned, without holes. Byte tables and golden packets: docs/formats.md.
//
// The client speaks first (HELLO) and every request is answered once, in the order of the requests. Up to
// kMaxInFlight requests may be unanswered. Either side may end the conversation at any time; what that means for pins and
// grants is decided by the client process's death, not by the socket (pool sessions).
//
// Everything that arrives is untrusted: decoding goes through Cursor, which never reads past the packet, and every count
// is checked against what is left of it before anything is allocated.
//
// Versions: HELLO carries the range that the client speaks, WELCOME the one that is used. Bytes behind the last field or
// array described here are ignored, so that a newer peer can append; a message type that is not known is answered with
// kUnimplemented.
//
// A packet that is none of ours (magic, length, a count that the packet does not hold) is answered with kInvalidArgument
// and ends the connection. A request that is well formed but cannot be fulfilled is answered with its reason as text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kvist/identity.h"
#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist::wire {

inline constexpr uint32_t kLocalMagic = 0x3154534b;  // "KST1"
inline constexpr uint16_t kLocalVersion = 1;
inline constexpr uint16_t kLocalVersionMin = 1;
inline constexpr size_t kMaxPacket = 128 << 10;  // bytes; below the default socket buffer of 208 KiB
inline constexpr uint32_t kMaxInFlight = 8;      // unanswered requests of a session
inline constexpr size_t kMaxText = 4096;         // any one string but an identity record
inline constexpr size_t kMaxRecord = 64 << 10;   // an identity record
inline constexpr uint32_t kMaxGrants = 4096;     // slots asked for in one message; what is beyond is not granted
inline constexpr uint32_t kMaxListed = 2048;     // blocks in one answer to kList

enum class MessageType : uint16_t {
  // Client to node, each with its answer (type | kAnswer).
  kHello = 1,       // who I am, what I speak -> sizes, limits, descriptors of the memory
  kOpenSpace = 2,   // alias and identity record -> slot, epoch, id
  kReserve = 3,     // slots for blocks of a length -> grants
  kCommit = 4,      // filled slots, and how many new ones are wanted -> results, grants
  kGiveBack = 5,    // slots that are not needed
  kRemove = 6,      // names -> results
  kFlush = 7,       // alias -> number of blocks hidden
  kNoteUse = 8,     // a use with session id and stop reason
  kReportBad = 9,   // an entry whose bytes failed verification -> whether the node agrees
  kStat = 10,       // -> statistics as JSON text, in pieces
  kList = 11,       // blocks of a namespace from a cursor -> entries
  kRelease = 12,    // an earlier session of this process has let go of all pins and slots
  kBye = 13,        // this session has; the node may free them at once
  kConfigure = 14,  // a setting's name and value -> what holds now
  kFetch = 15,      // blocks that are on disk are wanted in DRAM -> for each whether it comes
  kAnswer = 0x8000,
};

struct Header {
  uint32_t magic = kLocalMagic;
  uint16_t type = 0;        // MessageType
  uint16_t status = 0;      // answers: StatusCode; a failure carries its text as the body
  uint32_t request = 0;     // the client's number for it
  uint32_t body_bytes = 0;  // packet length without this header
};
static_assert(sizeof(Header) == 16);

// The code that a peer's number means; kUnknown for one that this version does not know. Only 0 is kOk.
inline StatusCode status_code_of(uint16_t number) {
  return number <= static_cast<uint16_t>(StatusCode::kUnauthenticated) ? static_cast<StatusCode>(number)
                                                                       : StatusCode::kUnknown;
}

// Bits of Hello::features, what the client can, and of Welcome::features, what is done of it.
//
// kRoomBell: WELCOME carries a fifth descriptor, an eventfd. The node raises it when another client finds no room while this
// one holds slots that it has not filled: those that it only keeps ready should go back (kGiveBack). It need not answer, and
// nothing is taken from it.
inline constexpr uint16_t kRoomBell = 1 << 0;
// kClientCounts (WELCOME): behind the pin table there is room for what the client counts (pool/client_counts.h).
inline constexpr uint16_t kClientCounts = 1 << 1;
// kFollowsRestart (HELLO): after it has pinned, the client looks whether its pin table is closed; and it compares what is
// marked as unverified, whatever its policy. Both are needed of those who use memory that outlives a node: where such a
// client of a node that has ended lives on, or one without this connects while there are blocks that nobody has compared,
// the memory is not taken over, or the client refused.
inline constexpr uint16_t kFollowsRestart = 1 << 2;

struct Hello {
  uint16_t version_min = kLocalVersionMin;
  uint16_t version_max = kLocalVersion;
  uint32_t pid = 0;          // as the client sees itself; compared with the peer credentials
  uint64_t start_time = 0;   // field 22 of /proc/self/stat: a pid that was used again is noticed
  uint32_t pins_wanted = 0;  // words of the pin table; 0: the node's default
  uint16_t token_bytes = 0, domain_bytes = 0, name_bytes = 0;
  uint16_t features = 0;
  uint32_t unused = 0;
  // then: token, domain, client name
};
static_assert(sizeof(Hello) == 32);

// Carries four descriptors, in this order: control, touch, arena, pins; and the bell, if that is a feature.
struct Welcome {
  uint16_t version = 0;
  uint16_t features = 0;
  uint32_t node_pid = 0;
  uint64_t session = 0;
  uint64_t cookie = 0;  // proves in kRelease that the session was this client's
  uint64_t incarnation[2] = {};
  uint64_t control_bytes = 0, touch_bytes = 0, arena_bytes = 0, pins_bytes = 0;
  uint64_t extent_bytes = 0;
  uint64_t granted_bytes_limit = 0;
  uint64_t pinned_bytes_limit = 0;
  uint32_t pin_capacity = 0;
  uint32_t granted_slots_limit = 0;
  uint32_t max_in_flight = kMaxInFlight;
  uint32_t max_packet = kMaxPacket;
};
static_assert(sizeof(Welcome) == 112);

struct OpenSpace {
  uint16_t alias_bytes = 0;
  uint16_t unused = 0;
  uint32_t record_bytes = 0;
  NamespaceId id{};  // computed by the client, which alone knows the tenant secret
  // then: alias, record
};
static_assert(sizeof(OpenSpace) == 40);
struct SpaceOpened {
  uint64_t epoch = 0;
  uint16_t slot = 0;
  uint16_t unused = 0;
  uint32_t epochs = 0;
};
static_assert(sizeof(SpaceOpened) == 16);

struct Reserve {
  uint32_t length = 0;  // bytes a block
  uint32_t count = 0;
};
struct GrantItem {
  uint32_t entry = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;  // in the arena
  uint32_t slot_bytes = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(GrantItem) == 24);
struct Granted {
  uint32_t count = 0;
  uint8_t stop = 0;  // GrantStop: why not more
  uint8_t unused[3] = {};
  // then: GrantItem[count]
};
static_assert(sizeof(Granted) == 8);

struct Commit {
  uint16_t slot = 0;  // of the namespace
  uint8_t session_bytes = 0, stop_bytes = 0;
  uint32_t count = 0;
  uint64_t epoch = 0;
  uint32_t refill_length = 0;  // grants wanted with the answer
  uint32_t refill_count = 0;
  // then: CommitItem[count], session id, stop reason
};
static_assert(sizeof(Commit) == 24);
struct CommitItem {
  Digest digest;
  Digest parent;
  uint64_t checksum = 0;
  uint32_t entry = 0;
  uint32_t generation = 0;
  uint32_t length = 0;
  uint32_t depth = 0;
  uint16_t part = 0;
  uint8_t flags = 0;  // CommitFlags
  uint8_t unused = 0;
  uint32_t unused2 = 0;
};
static_assert(sizeof(CommitItem) == 64);
struct Committed {
  uint32_t count = 0;
  Granted grants;
  uint32_t unused = 0;
  // then: GrantItem[grants.count], CommitCode (one byte) [count]
};
static_assert(sizeof(Committed) == 16);

struct GiveBack {
  uint32_t count = 0;
  uint32_t unused = 0;
  // then: {u32 entry, u32 generation}[count]
};

struct Remove {
  uint64_t epoch = 0;
  uint16_t slot = 0;
  uint16_t part = 0;
  uint32_t count = 0;
  // then: Digest[count]; the answer is u32 count, u32 unused, then StatusCode (one byte) [count]
};
static_assert(sizeof(Remove) == 16);

struct Flush {
  uint32_t alias_bytes = 0;
  uint32_t unused = 0;
  // then: alias; the answer is u64 blocks hidden
};

struct NoteUse {
  uint64_t epoch = 0;
  Digest tip;
  uint16_t slot = 0;
  uint8_t session_bytes = 0, stop_bytes = 0;
  uint32_t unused = 0;
  // then: session id, stop reason
};
static_assert(sizeof(NoteUse) == 32);

struct ReportBad {
  uint32_t entry = 0;
  uint32_t generation = 0;
  // the answer is u32: 1 when the node found the bytes wrong too
};

struct Stat {
  uint32_t what = 0;    // 0: the node, 1: clients, 2: namespaces, 3: the configuration (as kConfigure)
  uint32_t offset = 0;  // of the text, which may need several packets
  // the answer is u32 total bytes, u32 unused, then text from offset
};

struct List {
  uint64_t cursor = 0;
  uint64_t epoch = 0;
  uint16_t slot = 0;
  uint16_t unused = 0;
  uint32_t limit = 0;
};
static_assert(sizeof(List) == 24);
struct ListItem {
  Digest digest;
  Digest parent;
  uint32_t length = 0;
  uint32_t depth = 0;
  uint16_t part = 0;
  uint8_t state = 0;
  uint8_t flags = 0;
  uint32_t children = 0;
};
static_assert(sizeof(ListItem) == 48);
struct Listed {
  uint64_t cursor = 0;  // 0: the end
  uint32_t count = 0;
  uint32_t unused = 0;
  // then: ListItem[count]
};
static_assert(sizeof(Listed) == 16);

struct Release {
  uint64_t session = 0;
  uint64_t cookie = 0;
};

// For root and the node's own user, in the default domain.
struct Configure {
  uint16_t key_bytes = 0, value_bytes = 0;
  uint32_t unused = 0;
  // then: key, value; the answer is text
};
static_assert(sizeof(Configure) == 8);

// Asks that blocks which are on disk only (EntryState::kBelow) come to DRAM. Answered at once; that a block has come, or has
// not, the client sees in shared memory, by its entry's state and by ControlHeader::fetch_bell.
inline constexpr uint32_t kMaxFetched = 4096;  // blocks in one message
struct Fetch {
  uint64_t epoch = 0;
  uint16_t slot = 0;
  uint16_t part = 0;
  uint32_t count = 0;
  uint32_t budget_ms = 0;   // what has not come by then need not
  uint32_t first_need = 0;  // of two with one budget the smaller comes first: block i has first_need + i
  // then: Digest[count]; the answer is u32 count, u32 unused, then FetchCode (one byte) [count]
};
static_assert(sizeof(Fetch) == 24);
enum class FetchCode : uint8_t {
  kThere = 0,    // it is in DRAM
  kComes = 1,    // it is on its way, for this request or another one's
  kAbsent = 2,   // it is nowhere here, or the namespace was flushed
  kBusy = 3,     // not now: too much is on its way, or waits to be written. Ask again when the bell rang
  kNoRoom = 4,   // not now: all of DRAM is pinned, granted or on its way
  kRefused = 5,  // the device is not read at the moment: a miss for now
};
inline constexpr int kFetchCodes = 6;

// Reads a packet from front to back. After a failed read every further one fails too, so that a decoder may check once
// at its end. Copies, because a packet's bytes have no alignment to rely on.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  bool read(T* out) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) return fail();
    std::memcpy(out, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  template <typename T>
  bool read_array(size_t count, std::vector<T>* out) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > rest_.size() / sizeof(T)) return fail();
    out->resize(count);
    if (count > 0) std::memcpy(out->data(), rest_.data(), count * sizeof(T));
    rest_ = rest_.subspan(count * sizeof(T));
    return true;
  }
  // A view into the packet.
  bool read_text(size_t bytes, std::string_view* out) {
    if (rest_.size() < bytes) return fail();
    *out = {reinterpret_cast<const char*>(rest_.data()), bytes};
    rest_ = rest_.subspan(bytes);
    return true;
  }
  bool ok() const { return ok_; }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  bool fail() {
    ok_ = false;
    rest_ = {};
    return false;
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

// Builds a packet: the header first, its length filled in by finish(). Reusable, so that a hot path allocates once.
class Builder {
 public:
  void start(MessageType type, uint32_t request, StatusCode status = StatusCode::kOk) {
    bytes_.resize(sizeof(Header));
    Header header;
    header.type = static_cast<uint16_t>(type);
    header.status = static_cast<uint16_t>(status);
    header.request = request;
    std::memcpy(bytes_.data(), &header, sizeof(header));
  }
  template <typename T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(T));
  }
  template <typename T>
  void add_array(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(values.data(), values.size_bytes());
  }
  void add_text(std::string_view text) { append(text.data(), text.size()); }
  size_t size() const { return bytes_.size(); }
  std::span<std::byte> finish() {
    const uint32_t body = static_cast<uint32_t>(bytes_.size() - sizeof(Header));
    std::memcpy(bytes_.data() + offsetof(Header, body_bytes), &body, sizeof(body));
    return bytes_;
  }

 private:
  void append(const void* data, size_t size) {
    const size_t at = bytes_.size();
    bytes_.resize(at + size);
    if (size > 0) std::memcpy(bytes_.data() + at, data, size);
  }
  std::vector<std::byte> bytes_;
};

// Splits a packet into header and body. False: not a message of ours (magic or length wrong).
bool open_packet(std::span<const std::byte> packet, Header* header, std::span<const std::byte>* body);

// Decoders of what a client sends, for the node: fixed part and arrays, bounds checked. False: malformed.
struct HelloMessage {
  Hello fixed;
  std::string_view token, domain, name;
};
struct OpenSpaceMessage {
  OpenSpace fixed;
  std::string_view alias, record;
};
struct CommitMessage {
  Commit fixed;
  std::vector<CommitItem> items;
  std::string_view session, stop;
};
struct GiveBackMessage {
  std::vector<std::pair<uint32_t, uint32_t>> items;
};
struct RemoveMessage {
  Remove fixed;
  std::vector<Digest> digests;
};
struct FetchMessage {
  Fetch fixed;
  std::vector<Digest> digests;
};
struct NoteUseMessage {
  NoteUse fixed;
  std::string_view session, stop;
};
bool decode(std::span<const std::byte> body, HelloMessage* out);
bool decode(std::span<const std::byte> body, OpenSpaceMessage* out);
bool decode(std::span<const std::byte> body, CommitMessage* out);
bool decode(std::span<const std::byte> body, GiveBackMessage* out);
bool decode(std::span<const std::byte> body, RemoveMessage* out);
bool decode(std::span<const std::byte> body, NoteUseMessage* out);
bool decode(std::span<const std::byte> body, FetchMessage* out);
bool decode_flush(std::span<const std::byte> body, std::string_view* alias);
bool decode_configure(std::span<const std::byte> body, std::string_view* key, std::string_view* value);

// Decoders of answers, for the client.
struct CommittedMessage {
  std::vector<GrantItem> grants;
  uint8_t stop = 0;
  std::vector<uint8_t> codes;  // CommitCode
};
bool decode(std::span<const std::byte> body, CommittedMessage* out);
bool decode_granted(std::span<const std::byte> body, std::vector<GrantItem>* grants, uint8_t* stop);
bool decode_codes(std::span<const std::byte> body, std::vector<uint8_t>* codes);
bool decode_listed(std::span<const std::byte> body, Listed* fixed, std::vector<ListItem>* items);

}  // namespace kvist::wire
