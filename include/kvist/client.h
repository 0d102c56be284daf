// kvist/client.h: reading and writing KV blocks from an engine process.
//
//   kvist::StatusOr<kvist::Client> client = kvist::Client::connect({});
//   kvist::StatusOr<kvist::Space> space = client->open(identity);               // what makes blocks interchangeable
//
//   std::vector<kvist::Digest> chain = space->digests(keys);                    // names, once per key
//   kvist::Prefix prefix = space->longest_prefix({.positions = chain});         // pinned, no RPC
//   for (const kvist::Block& block : prefix.blocks()) copy_to_device(block.data, block.size);   // in place
//
//   space->put({.positions = chain}, sources, results);                         // one copy, one message a batch
//
// A client talks only to the node of its own host (or to a pool embedded in its own process). Reads of blocks in DRAM make
// no system call; writing is one message a batch, bounded by its deadline. A node with a disk tier has blocks below DRAM as
// well: reads bring them up and wait for them until their deadline, unless they are told to leave them. Losing the node
// never throws and never crashes: calls return kUnavailable until the client has reconnected by itself, and blocks read in
// place stay readable.
//
// Results are per block: one bad key does not fail its batch. Codes:
//   kOk               done
//   kNotFound         a miss: never put, evicted, being put, or on a disk that is not read at the moment
//   kAlreadyExists    put of a block that is there: nothing was written
//   kDataLoss         the bytes failed verification; they were not handed out, and the node was told
//   kInvalidArgument  a length or a part that cannot be
//   kOutOfRange       get of a block that is longer or shorter than its destination
//   kAborted          put: the node took the slot back before the block was committed
//   kResourceExhausted a bound was reached: pool full of pinned blocks (so that a put has no room, or a block on disk none
//   to
//                     come to), or this client over its quota
//   kFailedPrecondition the namespace was flushed (open it again), an absent parent under `strict`, or a handle after fork
//   kDeadlineExceeded the call's time was up before this block's turn, or before it came from disk; a commit already sent
//   may
//                     still take effect
//   kUnavailable      no node, or it went away before it answered
//
// Threads: Client and Space may be used from any thread at once, and are handles: copies mean the same client. Prefix,
// Pinned and Batch belong to one thread at a time. Fork: handles do not survive it: a child's calls return
// kFailedPrecondition, "reopen after fork", and its memory of the pool is not mapped.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvist/identity.h"
#include "kvist/regions.h"
#include "kvist/status.h"
#include "kvist/types.h"

namespace kvist {

namespace client {
class Connection;  // what all handles of one client share
class SpaceState;
class PinSet;
class BatchState;
struct ReturnPins {
  void operator()(PinSet* set) const noexcept;
};
struct EndBatch {
  void operator()(BatchState* state) const noexcept;
};
}  // namespace client

// Whether copied and in-place reads compare the block's checksum before they hand it out.
enum class Verify : uint8_t { kNever, kSampled, kAlways };  // sampled: one read in 64

struct ClientOptions {
  // Where the node listens. Empty: $KVIST_SOCKET, else the first that exists of $XDG_RUNTIME_DIR/kvist.sock and
  // /run/kvist/node.sock.
  std::string socket{};
  std::string domain{};  // the tenant's pool; empty: the node's default one
  std::string token{};   // where the node asks for one
  std::string name{};    // shown by `kvist clients`; empty: the program's name
  Verify verify = Verify::kSampled;
  uint32_t pins = 16384;                      // blocks to hold pinned at once; a node with many clients may grant fewer
  uint64_t stock_bytes = uint64_t{64} << 20;  // empty slots kept ready for puts, at most
  // Without a node: true returns a client that connects by itself when one appears, and open() works before that; false
  // returns kUnavailable.
  bool wait_for_node = false;
};

// A pool of one's own, in this process: the same code without a socket. For tests, tools and single-process engines.
struct EmbeddedOptions {
  uint64_t memory_bytes = uint64_t{1} << 30;
  uint32_t max_blocks = 0;  // 0: one for each 16 KiB
  Verify verify = Verify::kSampled;
  uint32_t pins = 16384;
};

// A block in place: `data` points into the pool. Valid as long as the Prefix or Pinned that it came from. Read-only: a
// store is a crash.
struct Block {
  const std::byte* data = nullptr;
  uint32_t size = 0;      // bytes
  uint32_t position = 0;  // index into the call's positions
  uint16_t part = 0;
};

// The blocks of a chain that a call is about. positions[i] is the digest of chain position first + i. A chain has each
// position once, at one depth: a block that says otherwise is refused with kInvalidArgument.
struct Chain {
  std::span<const Digest> positions{};
  uint32_t first = 0;  // depth of positions[0]; the engine itself holds what lies before
  Digest parent{};     // of positions[0]; zero: none known. Needed to link a chain that does not begin at 0
};

// A stretch of positions that a look-up found in one place.
struct Run {
  uint32_t begin = 0, end = 0;                                          // indices into the call's positions
  uint64_t part_mask = 0;                                               // bit p: part p is there at each of them
  enum class Source : uint8_t { kDram, kDisk } source = Source::kDram;  // kDisk: some of it is on disk only
  // Time to have the bytes, from now: to copy them, and where they are on disk to read them and what lies on disk before
  // them in this chain, behind what the node has to read already. Who can have them sooner otherwise may do so.
  uint32_t predicted_us = 0;
};

// What becomes of blocks that are on disk only.
enum class OnDisk : uint8_t {
  kBring,  // they are wanted in DRAM
  kLeave,  // they stay where they are
};

struct PrefixOptions {
  uint32_t from = 0;    // index into positions from which blocks are wanted; the engine has the ones before
  bool promise = true;  // pin what was found, so that it stays; false: a hint, which pins and touches nothing
  uint64_t parts = 0;   // bit p: part p is wanted; 0: all that the namespace declares
  // What was not looked at, not verified, or not read from disk by then does not count, and status() says kDeadlineExceeded.
  // Without one: 2 s from the call, which then looks at the clock only if it is not done with a few hundred positions or a
  // MiB.
  std::optional<Deadline> deadline{};
  // Blocks on disk. A promise waits for them until its deadline (kBring), or ends before the first of them (kLeave). A hint
  // counts them either way, and never waits: with kBring it has the node begin to read the first of them, up to 64 MiB or
  // 256 blocks, so that they are there, or on their way, when they are read.
  OnDisk on_disk = OnDisk::kBring;
};

// The longest usable prefix of a chain from `from` on. Movable. While it lives (and was a promise), its blocks cannot be
// evicted or overwritten: destroying it is what gives the room back. Do not keep one longer than the copy it is for (an
// asynchronous device copy: until its event).
class Prefix {
 public:
  Prefix();
  Prefix(Prefix&&) noexcept;
  Prefix& operator=(Prefix&&) noexcept;
  ~Prefix();

  // Why there is no more than there is: OK (an ordinary hole, or the end), kFailedPrecondition (flushed; after fork),
  // kUnavailable, kResourceExhausted (no more pins; or no room for what is on disk, which is waited for a tenth of a second
  // when all that comes is there, because this prefix itself may be what takes it), kDataLoss (the next block failed its
  // verification), kDeadlineExceeded, kInvalidArgument.
  const Status& status() const;
  uint32_t size() const;     // positions usable, counted from `from`
  uint32_t on_disk() const;  // of their blocks, how many came from disk (a promise) or are there (a hint)
  // The usable ones first, then what lies behind holes (a hint), or the last block that was left on disk and without which
  // there is no more (a promise with OnDisk::kLeave).
  std::span<const Run> runs() const;
  std::span<const Block> blocks() const;  // of a promise: position by position, part by part within one
  void reset();                           // unpins now

 private:
  friend class Space;
  Status why_empty_;
  std::unique_ptr<client::PinSet, client::ReturnPins> set_;
};

// Blocks pinned one by one. Movable; unpinned when destroyed.
class Pinned {
 public:
  Pinned();
  Pinned(Pinned&&) noexcept;
  Pinned& operator=(Pinned&&) noexcept;
  ~Pinned();

  size_t size() const;  // as many as were asked for
  // nullptr when it missed; result(i) says why.
  const Block* operator[](size_t i) const;
  StatusCode result(size_t i) const;
  size_t hits() const;
  void reset();

 private:
  friend class Space;
  size_t size_ = 0;
  StatusCode why_empty_ = StatusCode::kNotFound;
  std::unique_ptr<client::PinSet, client::ReturnPins> set_;
};

// One block's bytes as pieces of the caller's memory, in order; the lengths add up to the block's.
using Gather = std::span<const ConstRange>;
using Scatter = std::span<const Range>;

struct PutOptions {
  uint16_t part = 0;
  bool strict = false;         // refuse blocks whose parent is not in the pool, instead of remembering it as absent
  bool unchained = false;      // the positions are independent blocks, not a chain (opaque keys)
  std::string_view session{};  // the conversation this belongs to, at most 255 bytes; kept for retention
  std::string_view stop{};     // why the engine stopped ("tool_use", ...), at most 255 bytes
};

// Room for blocks that are not there yet, in the pool's own memory. Fill it, then commit(). Movable; what was not
// committed goes back when it is destroyed.
class Batch {
 public:
  Batch();
  Batch(Batch&&) noexcept;
  Batch& operator=(Batch&&) noexcept;
  ~Batch();

  size_t size() const;
  // Writable room of lengths[i] bytes, or empty when block i needs none: see result(i).
  std::span<std::byte> operator[](size_t i) const;
  // kOk: has room (or, after commit, is stored); else why it has none.
  StatusCode result(size_t i) const;
  // Copies the pieces into block i's room and keeps their checksum. kInvalidArgument when the lengths do not add up.
  Status copy(size_t i, Gather source);
  // Makes all filled blocks readable, and returns how many were stored. Blocks filled through operator[] are checksummed
  // now. result(i) afterwards: kOk, kAlreadyExists (somebody else was first), kDataLoss, ...
  size_t commit(Deadline deadline = {});
  void abort();

 private:
  friend class Space;
  std::unique_ptr<client::BatchState, client::EndBatch> state_;
};

// A finished submitted call.
struct Completion {
  uint64_t ticket = 0;
  StatusCode code = StatusCode::kOk;  // kOk when the call ran; the results it was given say what of each block
  uint32_t done = 0;                  // blocks read or stored
};

// A namespace as this client opened it: bound to the epoch of that moment. After a flush every call answers
// kFailedPrecondition until the namespace is opened again.
class Space {
 public:
  Space();
  ~Space();
  Space(const Space&);
  Space& operator=(const Space&);
  Space(Space&&) noexcept;
  Space& operator=(Space&&) noexcept;

  const Identity& identity() const;
  const NamespaceId& id() const;

  // Names. Keys are any bytes (KeyForm says which); a key that cannot be a name gives the zero digest, which every call
  // answers with kInvalidArgument.
  Digest digest(std::string_view key) const;
  std::vector<Digest> digests(std::span<const std::string_view> keys) const;
  void digests(std::span<const std::string_view> keys, std::span<Digest> out) const;

  // The longest run of positions, from `options.from` on, that can be read now: a position counts only with all the parts
  // that the namespace declares, each where its PartNeed wants it. A hole ends the run, whatever lies behind it. About 60 ns
  // a block, and no RPC where all blocks are in DRAM; for those on disk see PrefixOptions.
  Prefix longest_prefix(const Chain& chain, const PrefixOptions& options = {}) const;

  // Pins positions[i] for each i, independent of each other. What was not looked at by the deadline (verifying reads all
  // bytes; without one, 2 s from the call), or did not come from disk by then, has the result kDeadlineExceeded. No RPC but
  // for what is on disk; where that is left, its result is kNotFound.
  Pinned pin(std::span<const Digest> positions, uint16_t part = 0, std::optional<Deadline> deadline = {},
             OnDisk on_disk = OnDisk::kBring) const;

  // Which are there now, in DRAM or on disk: a hint; touches nothing. results[i]: kOk or kNotFound. Returns how many are. No
  // RPC.
  size_t contains(std::span<const Digest> positions, std::span<StatusCode> results, uint16_t part = 0) const;

  // Copies block i into the pieces destinations[i]. A block longer or shorter than its pieces: kOutOfRange, nothing written.
  // On kDataLoss the pieces hold garbage. sizes (may be empty) receives the blocks' lengths. Returns how many were copied.
  // What is on disk is read ahead, in this order, and copied as it comes: a chain may be longer than DRAM. What has not come
  // by the deadline has the result kDeadlineExceeded.
  size_t get(std::span<const Digest> positions, std::span<const Scatter> destinations, std::span<StatusCode> results,
             uint16_t part = 0, Deadline deadline = {}, std::span<uint32_t> sizes = {}) const;

  // Stores block i from the pieces sources[i], unless it is there. Returns how many were stored. The sources may be
  // reused when it returns. Where the pool has no room because all of it is pinned or being filled, it waits for some until
  // the deadline (for what continues a chain a tenth of a second, because the longer a chain is waited for, the sooner its
  // own end is what makes room), and then says kResourceExhausted. Who would rather not wait gives it little time. kAborted:
  // the slot was taken back by the node (a defect, or a client that was long stopped).
  size_t put(const Chain& chain, std::span<const Gather> sources, std::span<StatusCode> results,
             const PutOptions& options = {}, Deadline deadline = {}) const;

  // Room for the blocks that are absent: lengths[i] bytes for positions[i] (or lengths[0] for all). Waits for room like
  // put().
  StatusOr<Batch> reserve(const Chain& chain, std::span<const uint32_t> lengths, const PutOptions& options = {},
                          Deadline deadline = {}) const;

  // put() and get() that return with a ticket before they are done. What they were given must stay as it is until the
  // ticket comes out of Client::poll(): results, positions and, for get, destinations.
  // submit_get() returns at once. submit_put() copies its sources first, and may have to wait for the node with that, at
  // most until its deadline: where the client has too few slots ready it asks for more, and while eight messages of this
  // client are unanswered it sends none. Room that is pinned or being filled is waited for some milliseconds only.
  // kResourceExhausted: kMaxSubmitted are under way; poll first.
  StatusOr<uint64_t> submit_put(const Chain& chain, std::span<const Gather> sources, std::span<StatusCode> results,
                                const PutOptions& options = {}, Deadline deadline = {}) const;
  StatusOr<uint64_t> submit_get(std::span<const Digest> positions, std::span<const Scatter> destinations,
                                std::span<StatusCode> results, uint16_t part = 0, Deadline deadline = {}) const;

  // Records a use of the chain whose last position is positions.back(): with a session id or stop reason one message, else
  // none.
  Status touch(std::span<const Digest> positions, uint16_t part = 0, std::string_view session = {},
               std::string_view stop = {}, Deadline deadline = {}) const;

  // Takes blocks away, for every client. results[i]: kOk or kNotFound. Readers that have one pinned finish in peace.
  size_t remove(std::span<const Digest> positions, std::span<StatusCode> results, uint16_t part = 0,
                Deadline deadline = {}) const;

  // Ends the namespace's epoch: all its blocks are unreachable when this returns, and commits that are under way anywhere
  // will be refused. Returns how many blocks went. This handle then needs to be opened again, like all others.
  StatusOr<uint64_t> flush(Deadline deadline = {}) const;

 private:
  friend class Client;
  std::shared_ptr<client::SpaceState> state_;
};

struct ClientStats {
  uint64_t hits = 0, misses = 0, bytes_got = 0, bytes_put = 0, blocks_put = 0, already_there = 0;
  uint64_t verified = 0, corrupt = 0, pins_refused = 0, put_refused = 0, unavailable = 0, deadline_exceeded = 0,
           reconnects = 0;
  uint64_t reports_dropped = 0;  // blocks that failed their verification, and of which the node was not told
  uint64_t brought = 0;          // blocks that a read waited for while they came from disk
  uint64_t bring_failed = 0;     // and that it did not get: lost, late, no room, or a disk that is not read
};

class Client {
 public:
  static constexpr uint32_t kMaxSubmitted = 64;

  Client();
  ~Client();  // the last copy says goodbye to the node; Prefix, Pinned and Batch objects may outlive it
  Client(const Client&);
  Client& operator=(const Client&);
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // kUnavailable: nobody listens there (the message says where was looked and how to start a node);
  // kUnauthenticated, kPermissionDenied: token or credentials; kNotFound: the node has no such domain; kUnimplemented: no
  // common version; kResourceExhausted: the node has all the clients that it takes, or this process no descriptors or
  // address space left.
  static StatusOr<Client> connect(const ClientOptions& options, Deadline deadline = {});
  static StatusOr<Client> embedded(const EmbeddedOptions& options);

  // kFailedPrecondition: the alias is in use for another identity; the message names the differing field.
  StatusOr<Space> open(const Identity& identity, Deadline deadline = {});

  // Finished submitted calls, at most out.size(); waits for the first until the deadline (within(0) does not wait).
  size_t poll(std::span<Completion> out, Deadline deadline = within(std::chrono::nanoseconds(0)));
  // Readable while poll() has something to give. Owned by the client; made at the first call. -1 when none can be made.
  int completion_fd();

  // Whether there is a node. Where there is none, and the client has let go of the last one, every call but those on what is
  // held answers kUnavailable.
  bool connected() const;
  ClientStats stats() const;

  // The regions that there are now (regions.h): the one in use, if there is a node, and those of which something is held.
  std::vector<Region> regions() const;
  // Calls `watcher` with kAdded for each of these (and kRetired where that is so) before it returns, then with every
  // change, until another one takes its place: when that call returns, the old one is not running and will not run again
  // (unless the call came from the old one itself). An empty function: nobody watches. One watcher a client.
  Status watch_regions(RegionWatcher watcher);

  // What the node says of itself, of its clients, of its namespaces, of its settings, as JSON text. Settings are for root
  // and the node's own user: kPermissionDenied. Pins are those of its last count, which is at most a tick (a second) ago.
  enum class Report : uint8_t { kNode = 0, kClients = 1, kSpaces = 2, kConfig = 3 };
  StatusOr<std::string> report(Report what, Deadline deadline = {});

  // For tools of the operator: changes a setting of the node ("verify.scrub", "16MiB") until it ends. Returns what holds
  // then. kPermissionDenied: another user's node; kNotFound, kInvalidArgument, kFailedPrecondition (only at the start) say
  // which setting and why; kUnimplemented: an older node.
  StatusOr<std::string> configure(std::string_view key, std::string_view value, Deadline deadline = {});

  // Blocks of a namespace, a page at a time: *cursor 0 to begin, 0 again at the end.
  struct Listing {
    Digest position, parent;
    uint32_t size = 0, depth = 0, children = 0;
    uint16_t part = 0;
    bool resident = false;  // has its bytes in DRAM
    bool on_disk = false;   // a copy of them is on disk. Neither: a stub, known only as somebody's parent
  };
  StatusOr<std::vector<Listing>> list(const Space& space, uint64_t* cursor, uint32_t limit = 1000, Deadline deadline = {});

 private:
  std::shared_ptr<client::Connection> connection_;
};

}  // namespace kvist
