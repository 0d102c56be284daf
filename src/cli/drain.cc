// kvist drain: brings what is only in DRAM to disk, so that the node can be ended without losing it.
#include <poll.h>

#include <cstdio>

#include "base/units.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/pool_access.h"
#include "cli/progress.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  std::chrono::nanoseconds patience = std::chrono::seconds(10);
  bool json = false;
};

struct State {
  bool disk = false;
  uint64_t only_in_dram = 0, being_written = 0, blocks = 0, block_bytes = 0, on_disk = 0;
  uint64_t left() const { return only_in_dram + being_written; }
};

StatusOr<State> look(Client& client, const Options& options) {
  const StatusOr<std::string> text = client.report(Client::Report::kNode, options.node.deadline());
  if (!text.ok()) return text.status();
  const StatusOr<JsonView> report = JsonView::parse(*text);
  if (!report.ok()) return report.status();
  State state;
  for (const JsonView& pool : report->rows("pools")) {
    const JsonView disk = pool.member("disk");
    if (!pool.text("domain").empty() || disk.number("capacity_bytes") == 0) continue;
    state.disk = true;
    state.only_in_dram = disk.number("only_in_dram"), state.being_written = disk.number("being_written");
    state.blocks = pool.number("blocks"), state.block_bytes = pool.number("block_bytes");
    state.on_disk = disk.number("blocks");
  }
  return state;
}

StatusOr<int> finish(const Options& options, const State& state, bool whole) {
  if (options.json) {
    print_json({{"drained", whole}, {"blocks", state.blocks + state.on_disk}, {"only_in_dram", state.left()}});
  } else if (whole) {
    std::printf("drained: all %s blocks are on disk; the node can be stopped\n",
                format_count(state.blocks + state.on_disk).c_str());
  }
  return whole ? 0 : 1;
}

StatusOr<int> drain(const Options& options) {
  Interrupt interrupt;
  StatusOr<Client> client = options.node.connect();
  if (!client.ok()) return client.status();
  StatusOr<State> state = look(*client, options);
  if (!state.ok()) return state.status();
  if (!state->disk) {
    return failed_precondition(
        "this node has no disk tier to drain to (disk.directories); `kvist snapshot` writes a namespace to a file");
  }
  if (const StatusOr<std::string> set = client->configure("disk.write", "stored", options.node.deadline()); !set.ok()) {
    return set.status();
  }
  const uint64_t total = state->blocks == 0 ? 0 : state->left() * (state->block_bytes / state->blocks);
  const uint64_t each = state->left() == 0 ? 0 : total / state->left();
  const uint64_t begun_with = state->left();
  Progress progress("kvist drain", total, options.json);
  uint64_t least = state->left();
  Deadline patience = within(options.patience);
  while (state->left() > 0) {
    pollfd wait{interrupt.descriptor(), POLLIN, 0};
    ::poll(&wait, 1, 100);
    if (interrupt.seen()) {
      progress.end();
      return failed_precondition("interrupted: the node goes on writing (disk.write is 'stored' now)");
    }
    state = look(*client, options);
    if (!state.ok()) return state.status();
    if (state->left() < least) {
      least = state->left();
      patience = within(options.patience);
    } else if (patience.passed()) {
      progress.end();
      std::fprintf(
          stderr,
          "kvist: %s blocks are still in DRAM only, and nothing was written for %s: `kvist stat --json` says what the "
          "disk does, and which blocks it was not given\n",
          format_count(state->left()).c_str(), format_duration(options.patience).c_str());
      return finish(options, *state, false);
    }
    const uint64_t done = begun_with > state->left() ? begun_with - state->left() : 0;
    progress.show(done * each, format_count(state->left()) + " blocks left");
  }
  progress.end();
  return finish(options, *state, true);
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  options->node.declare(arguments);
  arguments.duration("--patience", options->patience, "Give up when nothing was written for so long");
  arguments.flag("--json", options->json, "Print one JSON object");
  return [options] { return drain(*options); };
}

}  // namespace

const Verb kDrainVerb = {
    "drain",
    VerbGroup::kNode,
    "Write what is only in DRAM to the disk tier, before the node is stopped",
    "Sets disk.write to 'stored' and waits until every block of the node's own pool has a copy on disk. The next node "
    "finds\n"
    "them there. What clients store meanwhile is written as well, so stop them first, or stop the node soon after. Exit\n"
    "code 1 if blocks are left that the disk did not take.\n",
    "kvist drain && systemctl restart kvist\n",
    declare,
};

}  // namespace kvist::cli
