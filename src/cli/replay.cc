// kvist replay: a trace as its cache saw it. This file is the command line; the ways of replaying have a file each.
#include <memory>

#include "cli/replay_arguments.h"
#include "cli/verb.h"
#include "pool/retention.h"
#include "replay/live_replay.h"

namespace kvist::cli {
namespace {

constexpr const char* kDetails =
    "Client processes serve the requests in turn, as engines would: each looks for the longest prefix, copies\n"
    "those blocks out of the pool and compares every byte, and stores the blocks that were missing. So clients\n"
    "read each other's blocks. Without --socket a node of its own is started for the time. Exit code 1 if any\n"
    "byte was wrong.\n"
    "\n"
    "With --index-only the trace goes through the pool's index, retention and pins without any bytes, as fast\n"
    "as it can, under the trace's own clock. A hit is a block of a request's leading resident run: what stands\n"
    "behind the first missing block is useless. Beside the hit rate stand two bounds: an infinite cache, and a\n"
    "clairvoyant one of the same capacity, which gives up what is needed last and takes in nothing that returns\n"
    "later than all it would displace.\n"
    "\n"
    "Formats: conversations (timestamp, input_length, output_length, hash_ids of 512 tokens each) and agent\n"
    "sessions (requests with t, in, out, h; eight ids of 64 tokens make a block). Sessions have no common\n"
    "clock: they start at random moments, --arrivals apart.\n"
    "\n"
    "Prefill seconds follow from a formula and published sizes, not from a measurement: 2 * parameters *\n"
    "tokens + 4 * layers * width * (tokens attended to) operations, over peak * utilisation.\n";

StatusOr<int> replay_trace(const ReplayArguments& arguments) {
  if (arguments.index_only) return replay_without_bytes(arguments);
  return replay_with_bytes(arguments);
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<ReplayArguments>();
  options->trace.declare(arguments);
  arguments.flag("--index-only", options->index_only, "Without bytes: what would have been hit?");
  arguments
      .texts("--capacity", options->capacities,
             "With --index-only: room for this share of the trace's distinct blocks, or for so many blocks; may be "
             "given more than once (default: 1%, 2%, 5%, 10%, 25%, 50%)")
      .value_name("P%");
  arguments.text("--policy", options->policy, "Which block to give up first: " + known_retentions()).value_name("NAME");
  arguments
      .text("--hints", options->hints,
            "With --index-only: what the engine tells of a call: nothing, its session, or also why it stopped")
      .choices({"none", "session", "stop"});
  arguments.duration("--service", options->service, "With --index-only: how long a request keeps its blocks pinned")
      .default_text("an instant");
  arguments.text("--socket", options->socket, "Replay through the node that listens there")
      .value_name("PATH")
      .default_text("a node of its own");
  arguments.size("--memory", options->memory,
                 "Without --socket: the pool of the node that is started; 0: use the node of this host");
  arguments.size("--disk", options->disk,
                 "Without --socket: the node that is started has a disk tier of this size, in $TMPDIR or /tmp; 0: none");
  arguments.flag("--restart", options->restart,
                 "Without --socket: kill the node (kill -9) when half of the requests were served, and start it again");
  arguments.duration("--think", options->think, "A client waits so long after each request, as while an engine computes")
      .default_text("not at all");
  arguments.number("--clients", options->clients, "Client processes", 1, replay::kMaxClients);
  arguments.size("--block-bytes", options->block_bytes, "Size of a block");
  arguments.seconds("--seconds", options->seconds, "Replay over and over, for so many seconds")
      .default_text("the trace once");
  arguments.duration("--patience", options->patience, "End a client that does nothing for so long");
  arguments.text("--verify", options->verify, "Which reads the client library compares with their checksums")
      .choices({"never", "sampled", "always"});
  options->cost.declare(arguments);
  arguments.flag("--json", options->json, "Print one JSON object a line");
  return [options] { return replay_trace(*options); };
}

}  // namespace

const Verb kReplayVerb = {
    "replay",
    VerbGroup::kMeasure,
    "Run a request trace and show what was hit",
    kDetails,
    "kvist replay conversation_trace.jsonl.gz --clients 4 --memory 4GiB\n"
    "kvist replay conversation_trace.jsonl.gz --index-only --capacity 10%\n"
    "kvist replay agent_sessions.jsonl.gz --index-only --arrivals 3/min --think-cap 300s --json\n",
    declare,
};

}  // namespace kvist::cli
