// disk/store_state.h: the parts of a Store, private to its files.
#pragma once

#include <array>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "disk/store.h"

namespace kvist::disk {

// What one write gathers, and one read asks of the device at most. A write has room for a block of a MiB and its header.
inline constexpr uint32_t kGroupFull = 1 << 20;
inline constexpr uint32_t kGroupBytes = kGroupFull + (64 << 10);
inline constexpr uint32_t kReadPiece = 1 << 20;

struct Store::Segment {
  enum class State : uint8_t { kFree, kOpen, kSealing, kSealed, kCollecting };
  Directory* directory = nullptr;
  FileDescriptor fd;
  uint32_t file = 0;   // number of its file
  uint64_t bytes = 0;  // as its header says; less if the file is shorter
  uint64_t file_bytes = 0;
  uint64_t sequence = 0;  // 0: free
  State state = State::kFree;
  uint64_t live_bytes = 0, live_records = 0;
  uint32_t users = 0;  // reads that have not ended
  bool has_footer = false;
  Footer footer;
  bool header_done = false;  // what is told before a restart would not find
  int header_error = 0;
  // While it is open, and for as long as it has no footer.
  uint64_t end = kPage;         // where the next group begins
  uint32_t accepted = 0;        // records that want room in the footer
  uint32_t writes_pending = 0;  // groups under way
  std::vector<Record> records;  // that were written
};

// Writes out of one buffer that end together.
struct Store::Group {
  enum class Kind : uint8_t { kHeader, kRecords, kFooter, kClear };
  struct Item {
    Record record;
    uint64_t tag = 0;
    Directory* moved_for = nullptr;  // whose collection moves it; null: a user's
  };
  Kind kind = Kind::kRecords;
  Segment* segment = nullptr;
  std::unique_ptr<Segment> cleared;  // kClear: it, until it is free
  uint64_t offset = 0;               // in the segment
  std::span<std::byte> buffer;
  uint32_t header_bytes = 0, slots = 0;
  uint64_t used = 0;
  uint64_t opened_ns = 0;
  std::vector<Item> items;
  Footer footer;
  uint32_t writes_left = 0;
  int error = 0;
  uint64_t needs_change = 0;  // of the table: its namespaces' numbers are in no earlier one
};

struct Store::ReadOp {
  struct Piece {
    uint64_t offset = 0;  // in the segment
    uint32_t bytes = 0;   // whole pages
    uint32_t skip = 0, use = 0;
    std::span<std::byte> buffer;
    bool ready = false;
  };
  uint64_t arrival = 0, tag = 0, deadline_ns = 0;
  uint32_t need = 0;
  Location at;
  uint32_t length = 0;
  uint64_t checksum = 0;
  Segment* segment = nullptr;
  std::vector<Range> to;
  std::function<void(StatusCode)> then;  // instead of the owner, for reads of the store's own
  std::vector<Piece> pieces;
  size_t issued = 0, absorbed = 0, in_flight = 0;  // pieces
  std::optional<Checksum> sum;                     // of several pieces
  size_t range = 0, range_used = 0;                // where the next byte goes
  bool queued = false, ended = false;

  using Key = std::tuple<uint64_t, uint32_t, uint64_t>;
  Key key() const { return {deadline_ns, need, arrival}; }
};

struct Store::Io {
  IoRequest request;
  Directory* directory = nullptr;
  Group* group = nullptr;  // a write; null: a read
  uint64_t read = 0;       // its arrival
  size_t piece = 0;
  uint64_t started_ns = 0;
};

struct Store::Directory {
  Directory(const DirectoryOptions& options_in, const HealthOptions& health_in) : options(options_in), health(health_in) {}

  DirectoryOptions options;
  std::shared_ptr<const Folder> folder;  // a worker that hangs keeps it
  Health health;
  std::unique_ptr<Workers> workers;

  std::vector<std::unique_ptr<Segment>> free;
  uint32_t clearing = 0;  // free as soon as their headers are gone
  uint64_t file_bytes = 0;
  uint32_t next_file = 0;
  bool making = false;
  uint64_t no_room_until_ns = 0;

  Segment* open = nullptr;
  std::unique_ptr<Group> group;
  std::deque<std::unique_ptr<Io>> writes;  // that wait for the depth
  uint64_t write_bytes = 0;                // waiting and under way
  uint64_t accepted_bytes = 0;             // of records, ever
  double share_written() const { return static_cast<double>(accepted_bytes) / static_cast<double>(options.capacity_bytes); }
  uint32_t writes_in_flight = 0, reads_in_flight = 0;

  std::map<ReadOp::Key, ReadOp*> queue;  // with pieces that were not issued
  std::unordered_set<ReadOp*> active;    // all pieces issued
  uint64_t read_bytes = 0;               // queued and under way
  uint64_t last_read_ns = 0;

  struct Move {
    enum class Step : uint8_t { kNone, kReading, kRead, kWriting };
    Step step = Step::kNone;
    Record record;
    std::vector<std::byte> bytes;
  };
  struct Collection {
    Segment* victim = nullptr;
    bool reading = false;  // its footer
    std::vector<std::byte> entries;
    std::vector<Record> keep;
    size_t next = 0;
    std::array<Move, 4> moves;
  } collection;
};

}  // namespace kvist::disk
