// kvist load: blocks of a snapshot into a pool.
#include <cstdio>
#include <optional>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/secret_file.h"
#include "base/units.h"
#include "cli/json_text.h"
#include "cli/load_batch.h"
#include "cli/pool_access.h"
#include "cli/progress.h"
#include "cli/snapshot_stream.h"
#include "cli/verb.h"

namespace kvist::cli {
namespace {

struct Options {
  NodeArguments node;
  std::string file, alias, secret_file;
  bool partial = false, dry_run = false, json = false;
};

// What a load is about, once it is known that it may begin.
struct Load {
  std::unique_ptr<SnapshotReader> reader;
  std::optional<Client> client;
  std::optional<Space> space;
  std::string alias;
};

StatusOr<Identity> identity_of(const Options& options, const SnapshotReader& reader) {
  Identity identity = reader.identity();
  if (!options.alias.empty()) identity.alias = options.alias;
  if (!options.secret_file.empty()) {
    StatusOr<std::string> secret = read_secret_file(options.secret_file, "tenant secret");
    if (!secret.ok()) return secret.status();
    identity.tenant_secret = *std::move(secret);
  }
  // Names made under another secret would be names of nothing.
  if (namespace_id(reader.header().record, identity.tenant_secret) == reader.header().id) return identity;
  return failed_precondition(options.secret_file.empty()
                                 ? "the file is of a namespace with a tenant secret: give that by --secret-file"
                                 : "the file is not of a namespace with this tenant secret");
}

// For a dry run: the namespace, if it is there, without making it.
Status open_to_look(const Options& options, const Identity& identity, Load* load) {
  const StatusOr<std::optional<Identity>> known = find_space(*load->client, identity.alias, options.node.deadline());
  if (!known.ok()) return known.status();
  if (!known->has_value()) return ok_status();
  StatusOr<Space> space = load->client->open(identity, options.node.deadline());
  if (!space.ok()) return space.status();
  load->space = *std::move(space);
  return ok_status();
}

StatusOr<Load> begin(const Options& options, Interrupt& interrupt) {
  Load load;
  StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::open(options.file, interrupt);
  if (!reader.ok()) return reader.status();
  load.reader = *std::move(reader);
  if (const Status& cut = load.reader->why_no_footer(); options.file != "-" && !cut.ok() && !options.partial) {
    return data_loss(std::string(cut.message()) + "; nothing was loaded. --partial loads what is there of it");
  }
  const StatusOr<Identity> identity = identity_of(options, *load.reader);
  if (!identity.ok()) return identity.status();
  load.alias = identity->alias;
  // Without a stock each slot would cost a message.
  StatusOr<Client> client = options.node.connect(options.dry_run ? 0 : ClientOptions().stock_bytes);
  if (!client.ok()) return client.status();
  load.client = *std::move(client);
  if (options.dry_run) {
    if (Status status = open_to_look(options, *identity, &load); !status.ok()) return status;
    return load;
  }
  StatusOr<Space> space = load.client->open(*identity, options.node.deadline());
  if (!space.ok()) return space.status();
  load.space = *std::move(space);
  return load;
}

void warn_if_too_large(const Options& options, Load& load) {
  if (!load.reader->footer().has_value()) return;
  const StatusOr<std::string> text = load.client->report(Client::Report::kNode, options.node.deadline());
  if (!text.ok()) return;
  const StatusOr<JsonView> report = JsonView::parse(*text);
  if (!report.ok()) return;
  uint64_t capacity = report->number("capacity_bytes");
  for (const JsonView& pool : report->rows("pools")) capacity += pool.member("disk").number("capacity_bytes");
  const uint64_t wanted = load.reader->footer()->block_bytes;
  if (wanted <= capacity) return;
  std::fprintf(
      stderr, "kvist load: the blocks have %s, the pool has room for %s: later ones will take the place of others\n",
      format_size_short(static_cast<double>(wanted)).c_str(), format_size_short(static_cast<double>(capacity)).c_str());
}

struct Outcome {
  uint64_t damaged = 0;  // blocks whose bytes are not those that were written
  Status file;           // why the file was not read to its end
  Status pool;           // why the pool was given no more
};

Outcome run(const Options& options, SnapshotReader& reader, LoadBatch& batch, Interrupt& interrupt) {
  Outcome outcome;
  Progress progress("kvist load", reader.footer().has_value() ? reader.footer()->file_bytes : 0, options.json);
  while (outcome.file.ok() && outcome.pool.ok()) {
    SnapshotRecord record;
    const StatusOr<bool> more = reader.next(&record);
    if (!more.ok()) outcome.file = more.status();
    if (!more.ok() || !*more) break;
    const StatusOr<bool> good = reader.read_bytes(batch.room(record.length));
    if (!good.ok()) {
      outcome.file = good.status();
    } else if (*good) {
      batch.keep(record);
    } else {
      ++outcome.damaged;
      if (!options.partial) {
        outcome.file = data_loss((options.file == "-" ? "standard input" : options.file) + ": the bytes of block " +
                                 to_hex(record.digest) + " are not those that were written");
      }
    }
    if (batch.is_full()) outcome.pool = batch.put(interrupt);
    progress.show(reader.tally().file_bytes(), format_count(reader.tally().records()) + " blocks");
  }
  // Whatever ended it: what was kept is right.
  if (outcome.pool.ok() && outcome.file.code() != StatusCode::kCancelled) outcome.pool = batch.put(interrupt);
  return outcome;
}

void print(const Options& options, const Load& load, const LoadCounts& counts, const Outcome& outcome) {
  const Status& why = outcome.pool.ok() ? outcome.file : outcome.pool;
  const auto of = [&](StatusCode code) {
    const auto found = counts.refused.find(code);
    return found == counts.refused.end() ? uint64_t{0} : found->second;
  };
  if (options.json) {
    const uint64_t no_room = of(StatusCode::kResourceExhausted), late = of(StatusCode::kDeadlineExceeded),
                   invalid = of(StatusCode::kInvalidArgument);
    print_json({{"file", options.file},
                {"namespace", load.alias},
                {"id", to_hex(std::as_bytes(std::span(load.reader->header().id)))},
                {"dry_run", options.dry_run},
                {"blocks", load.reader->tally().records()},
                {"loaded", counts.loaded},
                {"loaded_bytes", counts.loaded_bytes},
                {"already_there", counts.there},
                {"damaged", outcome.damaged},
                {"refused", counts.all_refused()},
                {"refused_no_room", no_room},
                {"refused_no_time", late},
                {"refused_invalid", invalid},
                {"refused_otherwise", counts.all_refused() - no_room - late - invalid},
                {"complete", why.ok()},
                {"reason", why.message()}});
    return;
  }
  std::printf("%s %s blocks (%s) into %s; %s were there already\n", options.dry_run ? "would load" : "loaded",
              format_count(counts.loaded).c_str(), format_size_short(static_cast<double>(counts.loaded_bytes)).c_str(),
              printable(load.alias).c_str(), format_count(counts.there).c_str());
  for (const auto& [code, blocks] : counts.refused) {
    std::printf("refused %s: %s\n", format_count(blocks).c_str(), reason_of(code).c_str());
  }
  if (outcome.damaged > 0) {
    std::printf("damaged %s: their bytes are not those that were written\n", format_count(outcome.damaged).c_str());
  }
}

StatusOr<int> load(const Options& options) {
  Interrupt interrupt;
  StatusOr<Load> begun = begin(options, interrupt);
  if (!begun.ok()) return begun.status();
  warn_if_too_large(options, *begun);
  LoadBatch batch(begun->space.has_value() ? &*begun->space : nullptr, options.node.timeout,
                  options.dry_run ? LoadBatch::Mode::kLook : LoadBatch::Mode::kPut);
  const Outcome outcome = run(options, *begun->reader, batch, interrupt);
  print(options, *begun, batch.counts(), outcome);
  const bool interrupted = outcome.file.code() == StatusCode::kCancelled;
  if (!outcome.pool.ok() || interrupted) {
    const Status& why = interrupted ? outcome.file : outcome.pool;
    return Status(why.code(), std::string(why.message()) + "; loading again goes on where this ended");
  }
  if (!outcome.file.ok() && !(options.partial && outcome.file.code() == StatusCode::kDataLoss)) return outcome.file;
  if (!outcome.file.ok()) {
    std::fprintf(stderr, "kvist load: %s; what stands before that was read\n", printable(outcome.file.message()).c_str());
  }
  return batch.counts().all_refused() > 0 ? 1 : 0;
}

VerbBody declare(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.text("FILE", options->file, "What `kvist snapshot` wrote; - for standard input").required();
  options->node.declare(arguments);
  arguments.text("--as", options->alias, "The namespace to load into").value_name("NAME").default_text("as in the file");
  arguments.text("--secret-file", options->secret_file, "A file with the namespace's tenant secret, if it has one")
      .value_name("PATH");
  arguments.flag("--partial", options->partial, "Load what can be read of a file that is cut short or damaged");
  arguments.flag("--dry-run", options->dry_run, "Read and compare all of the file, and put nothing");
  arguments.flag("--json", options->json, "Print one JSON object");
  return [options] { return load(*options); };
}

}  // namespace

const Verb kLoadVerb = {
    "load",
    VerbGroup::kPool,
    "Put the blocks of a file that `kvist snapshot` wrote",
    "The namespace is opened with the identity that is in the file, or made. Blocks that are there already stay as they "
    "are,\n"
    "so loading again goes on where it was interrupted. The file is believed in what it says its blocks are: load only "
    "what\n"
    "you would let write to the pool.\n"
    "\n"
    "A file that is cut short is refused before anything is put. Damage in its middle is found when it is reached: no\n"
    "damaged block is put, the load ends there and says what it put before. --dry-run looks at all of it first. Standard\n"
    "input is loaded as it comes.\n"
    "\n"
    "Exit code 0 when all of the file is in the pool (with --partial: all that could be read of it).\n",
    "kvist load warm.kvs\n"
    "kvist load warm.kvs --as llama-test --dry-run\n",
    declare,
};

}  // namespace kvist::cli
