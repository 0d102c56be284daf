// kvist snapshot: chosen chains of a namespace as a file.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/units.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/progress.h"
#include "cli/snapshot_choice.h"
#include "cli/snapshot_stream.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

constexpr uint32_t kPage = 1000;
// Blocks are read in batches: what the node is asked at once has to be done within a deadline, and the memory for it
// bounded.
constexpr size_t kBatchBytes = size_t{16} << 20;
constexpr size_t kBatchBlocks = 256;

struct Options {
  SpaceArguments space;
  std::string file;
  std::vector<std::string> tips;
  uint64_t positions = 0;
  bool force = false, json = false;
};

// What became of the blocks that were chosen.
struct Written {
  std::map<StatusCode, uint64_t> left_out;  // by reason
  uint64_t detached = 0;                    // in the file, without the block before it
  uint32_t positions = 0;                   // of the longest chain

  uint64_t all_left_out() const {
    uint64_t sum = 0;
    for (const auto& [code, count] : left_out) sum += count;
    return sum;
  }
};

class Copying {
 public:
  Copying(const Options& options, const Space& space, std::span<const ChosenBlock> blocks, SnapshotWriter& writer)
      : options_(options), space_(space), blocks_(blocks), writer_(writer), written_flags_(blocks.size()) {}

  Status run(Interrupt& interrupt, Progress& progress) {
    for (size_t begin = 0; begin < blocks_.size();) {
      size_t end = begin, bytes = 0;
      do {
        bytes += blocks_[end++].size;
      } while (end < blocks_.size() && end - begin < kBatchBlocks && bytes + blocks_[end].size <= kBatchBytes);
      if (interrupt.seen()) return cancelled("interrupted");
      if (Status status = read(begin, end, bytes); !status.ok()) return status;
      if (Status status = write(begin, end); !status.ok()) return status;
      progress.show(writer_.tally().block_bytes(), format_count(writer_.tally().records()) + " blocks");
      begin = end;
    }
    return ok_status();
  }
  const Written& written() const { return written_; }

 private:
  // Results and bytes of a batch. Blocks whose time did not come, or for which there was no room to come from disk, are
  // asked for again as long as any come.
  Status read(size_t begin, size_t end, size_t bytes) {
    buffer_.resize(std::max(buffer_.size(), bytes));
    ranges_.clear();
    std::byte* at = buffer_.data();
    for (size_t i = begin; i < end; at += blocks_[i++].size) ranges_.push_back({at, blocks_[i].size});
    results_.assign(end - begin, StatusCode::kDeadlineExceeded);
    for (size_t waiting = end - begin; waiting > 0;) {
      for (size_t part = 0; part < space_.identity().parts.size(); ++part) {
        read_part(begin, end, static_cast<uint16_t>(part));
      }
      const auto left = static_cast<size_t>(std::count_if(results_.begin(), results_.end(), may_come));
      const bool late = std::count(results_.begin(), results_.end(), StatusCode::kDeadlineExceeded) > 0;
      if (left == waiting && late) return deadline_exceeded("the node did not answer in time: try a longer --timeout");
      if (left == waiting) break;
      waiting = left;
    }
    return ok_status();
  }
  static bool may_come(StatusCode code) {
    return code == StatusCode::kDeadlineExceeded || code == StatusCode::kResourceExhausted;
  }

  void read_part(size_t begin, size_t end, uint16_t part) {
    std::vector<size_t> mine;
    std::vector<Digest> names;
    std::vector<Scatter> places;
    for (size_t i = 0; i < end - begin; ++i) {
      if (blocks_[begin + i].part != part || !may_come(results_[i])) continue;
      mine.push_back(i);
      names.push_back(blocks_[begin + i].digest);
      places.push_back({&ranges_[i], 1});
    }
    if (mine.empty()) return;
    std::vector<StatusCode> results(mine.size());
    space_.get(names, places, results, part, options_.space.node.deadline());
    for (size_t k = 0; k < mine.size(); ++k) results_[mine[k]] = results[k];
  }

  Status write(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const StatusCode result = results_[i - begin];
      if (result == StatusCode::kUnavailable) return unavailable("the node went away");
      if (result == StatusCode::kFailedPrecondition) return failed_precondition("the namespace was flushed meanwhile");
      if (result != StatusCode::kOk) {
        ++written_.left_out[result];
        continue;
      }
      const ChosenBlock& block = blocks_[i];
      SnapshotRecord record;
      record.digest = block.digest, record.parent = block.parent, record.depth = block.depth, record.part = block.part;
      const Range& range = ranges_[i - begin];
      const std::span bytes(static_cast<const std::byte*>(range.data), range.size);
      if (Status status = writer_.add(record, bytes); !status.ok()) return status;
      written_flags_[i] = true;
      written_.positions = std::max(written_.positions, block.depth + 1);
      written_.detached += block.depth > 0 && (block.parent_at == ChosenBlock::kNone || !written_flags_[block.parent_at]);
    }
    return ok_status();
  }

  const Options& options_;
  const Space& space_;
  const std::span<const ChosenBlock> blocks_;
  SnapshotWriter& writer_;
  std::vector<bool> written_flags_;
  Written written_;
  std::vector<std::byte> buffer_;
  std::vector<Range> ranges_;
  std::vector<StatusCode> results_;
};

StatusOr<std::vector<ChosenBlock>> choose(Client& client, const Space& space, const Options& options, Interrupt& interrupt) {
  ChoiceOptions how;
  how.positions = static_cast<uint32_t>(options.positions);
  if (!options.tips.empty()) {
    StatusOr<std::vector<Digest>> tips = options.space.names(space, options.tips);
    if (!tips.ok()) return tips.status();
    how.tips = *std::move(tips);
  }
  SnapshotChoice choice;
  uint64_t cursor = 0;
  do {
    const StatusOr<std::vector<Client::Listing>> page = client.list(space, &cursor, kPage, options.space.node.deadline());
    if (!page.ok()) return page.status();
    choice.saw(*page);
    if (interrupt.seen()) return cancelled("interrupted");
  } while (cursor != 0);
  return choice.choose(how);
}

uint64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

StatusOr<SnapshotHeader> header_of(const Space& space) {
  StatusOr<std::string> record = encode_identity(space.identity());
  if (!record.ok()) return record.status();
  return SnapshotHeader{unix_ms(), space.id(), space.identity().alias, *std::move(record)};
}

void print(const Options& options, const Space& space, const SnapshotTally& tally, const Written& written) {
  const std::string& name = space.identity().alias;
  const uint64_t file_bytes = tally.file_bytes() + kSnapshotFooterBytes;
  if (options.json) {
    const auto damaged = written.left_out.find(StatusCode::kDataLoss);
    print_json({{"file", options.file},
                {"namespace", name},
                {"id", to_hex(std::as_bytes(std::span(space.id())))},
                {"blocks", tally.records()},
                {"block_bytes", tally.block_bytes()},
                {"file_bytes", file_bytes},
                {"positions", written.positions},
                {"left_out", written.all_left_out()},
                {"left_out_damaged", damaged == written.left_out.end() ? uint64_t{0} : damaged->second},
                {"detached", written.detached}});
    return;
  }
  // Where the file goes to standard output, words do not.
  std::FILE* out = options.file == "-" ? stderr : stdout;
  std::fprintf(out, "wrote %s blocks of %s (%s), chains of up to %s positions, to %s\n",
               format_count(tally.records()).c_str(), printable(name).c_str(),
               format_size_short(static_cast<double>(tally.block_bytes())).c_str(), format_count(written.positions).c_str(),
               options.file == "-" ? "standard output" : printable(options.file).c_str());
  for (const auto& [code, count] : written.left_out) {
    std::fprintf(out, "left out %s: %s\n", format_count(count).c_str(),
                 code == StatusCode::kNotFound ? "evicted or removed meanwhile, or on a disk that is not read now"
                                               : reason_of(code).c_str());
  }
  if (written.detached > 0) {
    std::fprintf(out, "%s have a block before them in their chain that is not in the file; they can be used where that is\n",
                 format_count(written.detached).c_str());
  }
}

StatusOr<int> snapshot(const Options& options) {
  if (options.file == "-" && options.json) {
    return invalid_argument("--json and the snapshot cannot both go to standard output; give a file");
  }
  Interrupt interrupt;
  StatusOr<Client> client = options.space.node.connect();
  if (!client.ok()) return client.status();
  const StatusOr<Space> space = options.space.open(*client);
  if (!space.ok()) return space.status();
  const StatusOr<std::vector<ChosenBlock>> blocks = choose(*client, *space, options, interrupt);
  if (!blocks.ok()) return blocks.status();
  if (blocks->empty()) return not_found("there is nothing to write: the namespace has no such blocks");
  const StatusOr<SnapshotHeader> header = header_of(*space);
  if (!header.ok()) return header.status();
  const StatusOr<std::unique_ptr<SnapshotWriter>> writer =
      SnapshotWriter::create({.path = options.file, .replace = options.force}, *header, interrupt);
  if (!writer.ok()) return writer.status();

  uint64_t bytes = 0;
  for (const ChosenBlock& block : *blocks) bytes += block.size;
  Progress progress("kvist snapshot", bytes, options.json);
  Copying copying(options, *space, *blocks, **writer);
  if (Status status = copying.run(interrupt, progress); !status.ok()) return status;
  if ((*writer)->tally().records() == 0) return not_found("every block went before it was read; nothing was written");
  progress.say("waiting for the disk");
  if (Status status = (*writer)->finish(copying.written().all_left_out()); !status.ok()) return status;
  progress.end();
  print(options, *space, (*writer)->tally(), copying.written());
  return 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.text("FILE", options->file, "Where to write it; - for standard output").required();
  options->space.declare(arguments);
  // Each takes one word: the file may stand behind it.
  const auto take_tip = [options](const std::string& key) { options->tips.push_back(key); };
  arguments.word("--tip", "Only the chain that ends at this block; may be repeated", take_tip, true).value_name("KEY");
  options->space.declare_key_form(arguments);
  arguments.number("--depth", options->positions, "Only so many positions of each chain, from its beginning; 0: all", 0,
                   kSnapshotDeepest);
  arguments.flag("--force", options->force, "Replace FILE if it is there");
  arguments.flag("--json", options->json, "Print one JSON object");
  return [options] { return snapshot(*options); };
}

}  // namespace

const Verb kSnapshotVerb = {
    "snapshot",
    VerbGroup::kPool,
    "Write chains of a namespace to a file, for `kvist load`",
    "All blocks of the namespace, unless --tip or --depth choose. Each is compared with its checksum on the way. Those "
    "that\n"
    "are evicted before their turn are left out, and counted. The namespace's identity is in the file.\n"
    "\n"
    "FILE appears when it is whole and on disk; until then it is FILE.tmp, which Ctrl-C takes away. It can be read by its\n"
    "owner only: from KV blocks the prompts can be had back. Reading counts as a use of the blocks.\n",
    "kvist snapshot warm.kvs --namespace llama\n"
    "kvist snapshot prompts.kvs -n llama --digest --tip 0b77259c7826c4a8b2dc51541e6f65f9\n"
    "kvist snapshot - -n llama --depth 512 | ssh other-host kvist load -\n",
    declare,
};

}  // namespace kvist::cli
