#include "node/metrics.h"

#include <array>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time_histogram.h"
#include "node/disk_store.h"
#include "pool/client_counts.h"
#include "pool/retention_auto.h"

namespace kvist {

struct MetricInput {
  struct PoolView {
    std::string name;
    PoolStats stats;
    const ClientSums* clients;
    Domain* domain;
  };
  const ReportSource& source;
  std::vector<PoolView> pools;
  uint64_t connected = 0, quarantined = 0, greeting = 0;
};

// Writes the lines of one family at a time.
class MetricSamples {
 public:
  using Label = std::pair<const char*, std::string_view>;
  using Labels = std::initializer_list<Label>;

  explicit MetricSamples(std::string& out) : out_(out) {}

  void begin(const MetricFamily& family) {
    name_ = family.name;
    for (const char* part :
         {"# HELP ", name_, " ", family.help, ".\n# TYPE ", name_, " ", metric_type_name(family.type), "\n"}) {
      out_ += part;
    }
  }
  void add(Labels labels, uint64_t value) { line("", labels, {}, std::to_string(value)); }
  void add_real(Labels labels, double value) { line("", labels, {}, text_of(value)); }

  // The bucket of a power-of-two histogram; counts[i] as TimeHistogram has them.
  void add_histogram(Labels labels, std::span<const uint64_t> counts, uint64_t sum_ns) {
    uint64_t all = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      add_bounded(&all, counts[i]);
      const bool last = i + 1 == counts.size();
      const std::string bound = last ? "+Inf" : text_of(static_cast<double>(TimeHistogram::bound_ns(i)) / 1e9);
      line("_bucket", labels, {"le", bound}, std::to_string(all));
    }
    line("_sum", labels, {}, text_of(static_cast<double>(sum_ns) / 1e9));
    line("_count", labels, {}, std::to_string(all));
  }

 private:
  static std::string text_of(double value) {
    char buffer[64];
    return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
  }
  void label(bool* first, const Label& each) {
    out_ += *first ? "{" : ",";
    *first = false;
    out_ += each.first;
    out_ += "=\"";
    for (const char c : each.second) {
      if (c == '\\' || c == '"') out_ += '\\';
      if (c == '\n') {
        out_ += "\\n";
      } else {
        out_ += c;
      }
    }
    out_ += '"';
  }
  void line(const char* suffix, Labels labels, const Label& more, const std::string& value) {
    out_ += name_;
    out_ += suffix;
    bool first = true;
    for (const Label& each : labels) label(&first, each);
    if (more.first != nullptr) label(&first, more);
    out_ += first ? " " : "} ";
    out_ += value;
    out_ += '\n';
  }

  std::string& out_;
  const char* name_ = "";
};

namespace {

using In = MetricInput;
using Out = MetricSamples;

// ---- shapes that many families have -------------------------------------------------------------------------------

template <uint64_t PoolStats::*Field>
void of_pools(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) out.add({{"domain", pool.name}}, pool.stats.*Field);
}

template <uint64_t ClientSums::*Field>
void of_clients(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) out.add({{"domain", pool.name}}, pool.clients->*Field);
}

template <uint64_t TakeOver::*Field>
void of_take_overs(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) out.add({{"domain", pool.name}}, pool.domain->taken_over().*Field);
}

template <uint64_t NodeCounters::*Field>
void of_node(const In& in, Out& out) {
  out.add({}, in.source.counters.*Field);
}

template <uint64_t (Scrubber::*Read)() const>
void of_scrubber(const In& in, Out& out) {
  out.add({}, in.source.scrubber == nullptr ? 0 : (in.source.scrubber->*Read)());
}

// ---- the others ---------------------------------------------------------------------------------------------------

void build_info(const In& in, Out& out) { out.add({{"version", in.source.options.version}}, 1); }
void uptime(const In& in, Out& out) { out.add_real({}, static_cast<double>(in.source.now_ms) / 1e3); }
void ready(const In& in, Out& out) { out.add({}, std::strcmp(in.source.state, "ready") == 0 ? 1 : 0); }

// They add up to the capacity.
void pool_bytes(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    const PoolStats& s = pool.stats;
    const uint64_t named = s.live_bytes + s.granted_bytes;
    out.add({{"domain", pool.name}, {"state", "blocks"}}, s.live_bytes);
    out.add({{"domain", pool.name}, {"state", "granted"}}, s.granted_bytes);
    out.add({{"domain", pool.name}, {"state", "other"}}, s.used_bytes > named ? s.used_bytes - named : 0);
    out.add({{"domain", pool.name}, {"state", "free"}}, s.ready_bytes > s.used_bytes ? s.ready_bytes - s.used_bytes : 0);
    out.add({{"domain", pool.name}, {"state", "unpopulated"}}, s.capacity_bytes - s.ready_bytes);
  }
}

void entries(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    const PoolStats& s = pool.stats;
    out.add({{"domain", pool.name}, {"state", "live"}}, s.live_blocks);
    out.add({{"domain", pool.name}, {"state", "disk"}}, s.below_blocks);
    out.add({{"domain", pool.name}, {"state", "stub"}}, s.stubs);
    out.add({{"domain", pool.name}, {"state", "granted"}}, s.granted_slots);
    out.add({{"domain", pool.name}, {"state", "fetching"}}, s.fetching);
    out.add({{"domain", pool.name}, {"state", "free"}}, s.free_entries);
  }
}

void commits(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    for (int code = 0; code < kCommitCodes; ++code) {
      out.add({{"domain", pool.name}, {"result", kCommitNames[code]}}, pool.stats.commits[code]);
    }
  }
}

void grants_refused(const In& in, Out& out) {
  constexpr const char* kNames[kGrantStops] = {nullptr,      "pool_pinned",   "evicting",
                                               "over_quota", "no_memory_yet", "too_long"};
  for (const In::PoolView& pool : in.pools) {
    for (int stop = 1; stop < kGrantStops; ++stop) {
      out.add({{"domain", pool.name}, {"reason", kNames[stop]}}, pool.stats.grants_stopped[stop]);
    }
  }
}

void retention_policy(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    const std::string_view ruling = pool.domain->pool().retention().ruling();
    for (const std::string_view name : AutoRetention::kPolicies) {
      out.add({{"domain", pool.name}, {"policy", name}}, name == ruling ? 1 : 0);
    }
  }
}
void retention_changes(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) out.add({{"domain", pool.name}}, pool.domain->pool().retention().changes());
}

void not_kept(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    for (int i = 0; i < kNotKeptReasons; ++i) {
      out.add({{"domain", pool.name}, {"reason", not_kept_name(static_cast<NotKept>(i))}},
              pool.domain->taken_over().not_kept[i]);
    }
  }
}
void started_empty(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) out.add({{"domain", pool.name}}, pool.domain->started_empty.empty() ? 0 : 1);
}

void reads(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    out.add({{"domain", pool.name}, {"result", "hit"}}, pool.clients->hits);
    out.add({{"domain", pool.name}, {"result", "miss"}}, pool.clients->misses);
  }
}
void client_failures(const In& in, Out& out) {
  constexpr const char* kNames[kClientFailures] = {"corrupt", "pins_refused", "put_refused", "unavailable",
                                                   "deadline_exceeded"};
  for (const In::PoolView& pool : in.pools) {
    for (size_t i = 0; i < kClientFailures; ++i) {
      out.add({{"domain", pool.name}, {"reason", kNames[i]}}, pool.clients->failures[i]);
    }
  }
}

void stages(const In& in, Out& out) {
  constexpr const char* kClient[kClientStages] = {"lookup", "copy", "verify"};
  constexpr const char* kNode[kNodeStages] = {"reserve", "commit", "evict"};
  std::array<uint64_t, TimeHistogram::kBuckets> counts;
  for (size_t s = 0; s < kClientStages; ++s) {
    counts.fill(0);
    uint64_t sum_ns = 0;
    for (const In::PoolView& pool : in.pools) {
      for (size_t b = 0; b < counts.size(); ++b) add_bounded(&counts[b], pool.clients->stages[s].counts[b]);
      add_bounded(&sum_ns, pool.clients->stages[s].sum_ns);
    }
    out.add_histogram({{"stage", kClient[s]}}, counts, sum_ns);
  }
  for (size_t s = 0; s < kNodeStages; ++s) {
    const TimeHistogram& histogram = in.source.counters.stages[s];
    for (size_t b = 0; b < counts.size(); ++b) counts[b] = histogram.counts[b].load(std::memory_order_relaxed);
    out.add_histogram({{"stage", kNode[s]}}, counts, histogram.sum_ns.load(std::memory_order_relaxed));
  }
}

void sessions(const In& in, Out& out) {
  out.add({{"state", "greeting"}}, in.greeting);
  out.add({{"state", "connected"}}, in.connected);
  out.add({{"state", "quarantined"}}, in.quarantined);
}
void sessions_ended(const In& in, Out& out) {
  for (size_t i = 0; i < kEndedReasons; ++i) {
    out.add({{"reason", ended_name(static_cast<Ended>(i))}}, in.source.counters.ended[i]);
  }
}
void requests(const In& in, Out& out) {
  for (size_t i = 1; i < kRequestTypes; ++i) out.add({{"op", request_name(i)}}, in.source.counters.requests[i]);
}
void failures(const In& in, Out& out) {
  for (size_t i = 1; i < kStatusCodes; ++i) {
    out.add({{"code", status_code_name(static_cast<StatusCode>(i))}}, in.source.counters.failed_by_code[i]);
  }
}
void turns(const In& in, Out& out) {
  out.add({{"kind", "sleep"}}, in.source.counters.wakes);
  out.add({{"kind", "poll"}}, in.source.counters.spins);
}
void config_changes(const In& in, Out& out) {
  out.add({{"result", "done"}}, in.source.counters.config_changes);
  out.add({{"result", "refused"}}, in.source.counters.config_refused);
}
void log_suppressed(const In& in, Out& out) { out.add({}, in.source.log_suppressed); }

// ---- the table ----------------------------------------------------------------------------------------------------

constexpr auto kCounter = MetricType::kCounter;
constexpr auto kGauge = MetricType::kGauge;
using P = PoolStats;

// ---- the disk tier: no samples without one ------------------------------------------------------------------------

template <uint64_t PoolStats::*Field>
void of_disk_pools(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    if (pool.domain->disk() != nullptr) out.add({{"domain", pool.name}}, pool.stats.*Field);
  }
}
template <uint64_t disk::StoreStats::*Field>
void of_stores(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    if (pool.domain->disk() != nullptr) out.add({{"domain", pool.name}}, pool.domain->disk()->stats().*Field);
  }
}
void not_demoted(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    for (int i = 0; pool.domain->disk() != nullptr && i < kNotDemotedReasons; ++i) {
      out.add({{"domain", pool.name}, {"reason", not_demoted_name(static_cast<NotDemoted>(i))}}, pool.stats.not_demoted[i]);
    }
  }
}
void fetches(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    for (int i = 0; pool.domain->disk() != nullptr && i < kFetchResults; ++i) {
      out.add({{"domain", pool.name}, {"answer", kFetchNames[i]}}, pool.stats.fetches[i]);
    }
  }
}
void fetch_ends(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    for (int i = 0; pool.domain->disk() != nullptr && i < kFetchEnds; ++i) {
      out.add({{"domain", pool.name}, {"result", fetch_end_name(static_cast<FetchEnd>(i))}}, pool.stats.fetch_ends[i]);
    }
  }
}
void disk_faults(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    if (pool.domain->disk() == nullptr) continue;
    const disk::StoreStats s = pool.domain->disk()->stats();
    const std::pair<const char*, uint64_t> kinds[] = {{"read_error", s.read_errors}, {"write_error", s.write_errors},
                                                      {"no_space", s.no_space},      {"bad_record", s.bad_records},
                                                      {"deadline", s.deadlines},     {"vanished", s.vanished},
                                                      {"footer", s.lost_footers},    {"namespaces", s.table_errors}};
    for (const auto& [kind, count] : kinds) out.add({{"domain", pool.name}, {"kind", kind}}, count);
  }
}
void disk_states(const In& in, Out& out) {
  for (const In::PoolView& pool : in.pools) {
    if (pool.domain->disk() == nullptr) continue;
    for (const disk::DirectoryReport& directory : pool.domain->disk()->directories()) {
      for (const auto state : {disk::DiskState::kServing, disk::DiskState::kReadOnly, disk::DiskState::kBypassed}) {
        out.add({{"domain", pool.name}, {"directory", directory.path}, {"state", disk::disk_state_name(state)}},
                directory.state == state ? 1 : 0);
      }
    }
  }
}
using S = disk::StoreStats;
using N = NodeCounters;

// clang-format off
constexpr std::array kFamilies = {
    MetricFamily{"kvist_build_info", kGauge, "version", "1, with the version of the node", build_info},
    MetricFamily{"kvist_uptime_seconds", kGauge, "", "Time since the node started", uptime},
    MetricFamily{"kvist_ready", kGauge, "", "1 while clients are served and the pools have memory", ready},

    MetricFamily{"kvist_pool_capacity_bytes", kGauge, "domain", "Memory for blocks that was asked for", of_pools<&P::capacity_bytes>},
    MetricFamily{"kvist_pool_bytes", kGauge, "domain, state", "The capacity by what it is: blocks, granted to clients that fill it, other (rounding, quarantine, readers of what is gone), free, unpopulated", pool_bytes},
    MetricFamily{"kvist_pool_entries", kGauge, "domain, state", "The tables' places by what they are", entries},
    MetricFamily{"kvist_pool_entries_limit", kGauge, "domain", "Places in the tables", of_pools<&P::max_blocks>},
    MetricFamily{"kvist_pool_metadata_bytes", kGauge, "domain", "Memory of the tables", of_pools<&P::metadata_bytes>},
    MetricFamily{"kvist_pool_pinned_blocks", kGauge, "domain", "Blocks that are being read in place, as last counted", of_pools<&P::pinned_blocks>},
    MetricFamily{"kvist_pool_pinned_bytes", kGauge, "domain", "Their bytes", of_pools<&P::pinned_bytes>},
    MetricFamily{"kvist_pool_quarantined_slots", kGauge, "domain", "Slots kept out of use because bytes in them were wrong", of_pools<&P::quarantined_slots>},
    MetricFamily{"kvist_pool_unpin_awaited_slots", kGauge, "domain", "Slots of blocks that are gone but still read", of_pools<&P::awaiting_unpin>},
    MetricFamily{"kvist_pool_namespaces", kGauge, "domain", "Namespaces that are open", of_pools<&P::namespaces>},
    MetricFamily{"kvist_pool_over_pinned_sessions", kGauge, "domain", "Sessions that pin more than they may and get no slots", of_pools<&P::over_pinned_sessions>},

    MetricFamily{"kvist_commits_total", kCounter, "domain, result", "Blocks that clients filled and sent, by what became of them", commits},
    MetricFamily{"kvist_stored_bytes_total", kCounter, "domain", "Bytes of the blocks that were stored", of_pools<&P::stored_bytes>},
    MetricFamily{"kvist_grants_refused_total", kCounter, "domain, reason", "Requests for slots that got fewer than they asked for", grants_refused},
    MetricFamily{"kvist_evicted_blocks_total", kCounter, "domain", "Blocks that made room", of_pools<&P::evicted>},
    MetricFamily{"kvist_evict_examined_total", kCounter, "domain", "Blocks that were looked at for that", of_pools<&P::evict_examined>},
    MetricFamily{"kvist_evict_revived_total", kCounter, "domain", "Victims that a reader held, and which stayed", of_pools<&P::evict_revived>},
    MetricFamily{"kvist_retention_policy", kGauge, "domain, policy", "1 for the policy that decides which blocks go: the one that was set, or under `auto` the one that leads", retention_policy},
    MetricFamily{"kvist_retention_changes_total", kCounter, "domain", "Times that `auto` let another policy decide", retention_changes},
    MetricFamily{"kvist_removed_blocks_total", kCounter, "domain", "Blocks that clients removed", of_pools<&P::removed>},
    MetricFamily{"kvist_flushed_blocks_total", kCounter, "domain", "Blocks of namespaces that were flushed", of_pools<&P::flushed>},
    MetricFamily{"kvist_bad_blocks_total", kCounter, "domain", "Blocks whose bytes were found wrong and which were taken out", of_pools<&P::bad_blocks>},
    MetricFamily{"kvist_false_reports_total", kCounter, "domain", "Blocks reported as wrong whose bytes are right", of_pools<&P::false_reports>},
    MetricFamily{"kvist_skipped_rechecks_total", kCounter, "domain", "Commits whose checksum was not computed again because their client's allowance was spent", of_pools<&P::rechecks_skipped>},
    MetricFamily{"kvist_garbage_pins_total", kCounter, "domain", "Words in pin tables that name no place", of_pools<&P::garbage_pins>},
    MetricFamily{"kvist_index_full_total", kCounter, "domain", "Blocks that found no room in the index", of_pools<&P::index_full>},
    MetricFamily{"kvist_stubs_made_total", kCounter, "domain", "Absent parents that got a place", of_pools<&P::stubs_made>},
    MetricFamily{"kvist_stubs_filled_total", kCounter, "domain", "Of those, the ones whose block came", of_pools<&P::stubs_filled>},
    MetricFamily{"kvist_moved_blocks_total", kCounter, "domain", "Blocks moved so that memory changes its size class", of_pools<&P::moved_blocks>},
    MetricFamily{"kvist_moved_extents_total", kCounter, "domain", "Extents that changed it", of_pools<&P::extents_moved>},

    MetricFamily{"kvist_disk_capacity_bytes", kGauge, "domain", "Bytes of files that the disk tier may have", of_stores<&S::capacity_bytes>},
    MetricFamily{"kvist_disk_file_bytes", kGauge, "domain", "Bytes of files that it has", of_stores<&S::file_bytes>},
    MetricFamily{"kvist_disk_live_bytes", kGauge, "domain", "Bytes of blocks in them that are wanted, those of blocks that are in DRAM too included", of_stores<&S::live_bytes>},
    MetricFamily{"kvist_disk_only_blocks", kGauge, "domain", "Blocks that are on disk only", of_disk_pools<&P::below_blocks>},
    MetricFamily{"kvist_disk_only_bytes", kGauge, "domain", "Their bytes", of_disk_pools<&P::below_bytes>},
    MetricFamily{"kvist_dram_only_blocks", kGauge, "domain", "Blocks in DRAM that have no copy on disk: what the end of the node would lose", of_disk_pools<&P::only_in_dram>},
    MetricFamily{"kvist_disk_state", kGauge, "domain, directory, state", "1 for what a directory does now: serving; read-only, because it is full or cannot be written to; bypassed, because it was slow or failed", disk_states},
    MetricFamily{"kvist_disk_bypassed_total", kCounter, "domain", "Times that a directory ceased to serve", of_stores<&S::bypassed>},
    MetricFamily{"kvist_disk_resumed_total", kCounter, "domain", "Times that one did so again", of_stores<&S::resumed>},
    MetricFamily{"kvist_disk_faults_total", kCounter, "domain, kind", "What went wrong with files; each block concerned is a miss", disk_faults},
    MetricFamily{"kvist_demoted_blocks_total", kCounter, "domain", "Blocks that left DRAM and are on disk", of_disk_pools<&P::demoted>},
    MetricFamily{"kvist_demoted_bytes_total", kCounter, "domain", "Their bytes, written then or before", of_disk_pools<&P::demoted_bytes>},
    MetricFamily{"kvist_not_demoted_blocks_total", kCounter, "domain, reason", "Blocks that left DRAM and the node", not_demoted},
    MetricFamily{"kvist_disk_block_bytes_total", kCounter, "domain", "Bytes of blocks that were written", of_stores<&S::user_bytes>},
    MetricFamily{"kvist_disk_moved_bytes_total", kCounter, "domain", "Bytes of blocks that were written again because their segment was collected", of_stores<&S::moved_bytes>},
    MetricFamily{"kvist_disk_written_bytes_total", kCounter, "domain", "All bytes sent to the devices: over the bytes of blocks it is the write amplification", of_stores<&S::written_bytes>},
    MetricFamily{"kvist_disk_segments_collected_total", kCounter, "domain", "Segments whose room was wanted for others", of_stores<&S::segments_collected>},
    MetricFamily{"kvist_fetches_total", kCounter, "domain, answer", "Blocks of the disk that clients wanted in DRAM, by the answer", fetches},
    MetricFamily{"kvist_fetches_ended_total", kCounter, "domain, result", "Reads of blocks from disk, by how they ended", fetch_ends},
    MetricFamily{"kvist_fetched_bytes_total", kCounter, "domain", "Bytes that came", of_disk_pools<&P::fetched_bytes>},
    MetricFamily{"kvist_disk_lost_blocks_total", kCounter, "domain", "Blocks that were on disk only and are gone: collected, or lost by a fault", of_disk_pools<&P::below_lost>},
    MetricFamily{"kvist_disk_given_up_blocks_total", kCounter, "domain", "Blocks on disk that were given up because the tables are full: raise pool.max_blocks", of_disk_pools<&P::below_given_up>},

    MetricFamily{"kvist_taken_over_blocks", kGauge, "domain", "Blocks of the node before that were there when this one started", of_take_overs<&TakeOver::blocks>},
    MetricFamily{"kvist_taken_over_bytes", kGauge, "domain", "Their bytes", of_take_overs<&TakeOver::bytes>},
    MetricFamily{"kvist_not_taken_over_total", kCounter, "domain, reason", "Entries and namespaces of the node before that were not taken over with the rest", not_kept},
    MetricFamily{"kvist_started_empty", kGauge, "domain", "1: the node before left memory that could not be used; the log says why", started_empty},
    MetricFamily{"kvist_unverified_blocks", kGauge, "domain", "Blocks that were taken over and not compared with their checksums yet by the node: each reader does", of_pools<&P::unverified_blocks>},
    MetricFamily{"kvist_keep_failures_total", kCounter, "", "Times that memory which was to outlive the node ceased to: restart.keep_memory is without effect from then on", of_node<&N::keep_failures>},

    MetricFamily{"kvist_reads_total", kCounter, "domain, result", "Blocks that clients looked for, by their own count: one that is pinned by a prefix and then copied by a get counts twice", reads},
    MetricFamily{"kvist_read_bytes_total", kCounter, "domain", "Bytes of the hits, by the clients' own count, pinned or copied: what is pinned by a prefix and then copied by a get counts twice", of_clients<&ClientSums::bytes_got>},
    MetricFamily{"kvist_verified_blocks_total", kCounter, "domain", "Blocks whose checksum clients compared, by their own count", of_clients<&ClientSums::verified>},
    MetricFamily{"kvist_client_failures_total", kCounter, "domain, reason", "Calls or blocks that failed in clients, by their own count", client_failures},
    MetricFamily{"kvist_stage_seconds", MetricType::kHistogram, "stage, le", "How long stages take: lookup (of up to 64 names), copy and verify (of a block) in clients, where one in 64, 16 and 16 is timed and counts for all; reserve and commit (of a message), evict (a step ahead of demand) in the node", stages},

    MetricFamily{"kvist_sessions", kGauge, "state", "Clients; quarantined: without a connection, but alive", sessions},
    MetricFamily{"kvist_sessions_opened_total", kCounter, "", "Clients that were welcomed", of_node<&N::sessions_opened>},
    MetricFamily{"kvist_sessions_ended_total", kCounter, "reason", "Conversations that ended, each once. A client whose socket closed or broke while it lives is quarantined, and counts when that ends: with death, released or node_stopped", sessions_ended},
    MetricFamily{"kvist_connections_total", kCounter, "", "Connections that were accepted", of_node<&N::accepted>},
    MetricFamily{"kvist_accept_failures_total", kCounter, "", "Connections refused for want of descriptors or because too many are silent", of_node<&N::accept_failures>},
    MetricFamily{"kvist_requests_total", kCounter, "op", "Requests of clients", requests},
    MetricFamily{"kvist_unknown_requests_total", kCounter, "", "Requests of types that this version does not know", of_node<&N::unknown_requests>},
    MetricFamily{"kvist_request_failures_total", kCounter, "code", "Answers with another status than OK", failures},
    MetricFamily{"kvist_delayed_answers_total", kCounter, "", "Answers that waited for a client to read those before", of_node<&N::outputs_delayed>},
    MetricFamily{"kvist_refused_reports_total", kCounter, "", "Reports of bad blocks beyond a client's allowance", of_node<&N::reports_refused>},

    MetricFamily{"kvist_stock_asked_back_total", kCounter, "", "Times that a client was asked for slots it keeps ready, because another found no room", of_node<&N::stock_asked_back>},
    MetricFamily{"kvist_populate_failures_total", kCounter, "", "Extents for which the system had no memory", of_node<&N::populate_failures>},
    MetricFamily{"kvist_scrubbed_blocks_total", kCounter, "", "Blocks that the scrubber read again", of_scrubber<&Scrubber::blocks>},
    MetricFamily{"kvist_scrubbed_bytes_total", kCounter, "", "Their bytes", of_scrubber<&Scrubber::bytes>},
    MetricFamily{"kvist_scrub_rounds_total", kCounter, "", "Times that it went through everything", of_scrubber<&Scrubber::rounds>},
    MetricFamily{"kvist_loop_turns_total", kCounter, "kind", "Turns of the node's loop, after sleeping or while polling", turns},
    MetricFamily{"kvist_loop_disturbed_polls_total", kCounter, "", "Polls during which somebody else had the CPU", of_node<&N::spins_disturbed>},
    MetricFamily{"kvist_config_changes_total", kCounter, "result", "Changes of settings while running", config_changes},
    MetricFamily{"kvist_log_suppressed_lines_total", kCounter, "", "Log lines dropped by the rate limit", log_suppressed},
};
// clang-format on

// Of the whole text, so that it is not moved as it grows.
constexpr size_t kUsualBytes = 32 << 10, kUsualBytesOfADomain = 8 << 10;

constexpr const char* kHead = R"(# Metrics of a node

<!-- Written by `make docs` from src/node/metrics.cc: edit that, not this. -->

`GET /metrics` on the admin HTTP, in Prometheus' text format. Names stay as they are from version to version; a new version may
add some. The label `domain` is the tenant's name, empty for the node's own pool. No label comes from what a client says.

Some numbers are the clients' own word, since a read makes no call: they arrive through memory that each client shares with the
node, at once for reads and within some seconds for failures. The node adds up their growth and bounds it, and relies on none of
them. `kvist_stage_seconds` has buckets of powers of two, from 256 ns to about a second.

Pins are words that clients write, so the node counts them by looking at all: with each tick, once a second, and for a report or
a scrape unless the last count is less than fifty times as long ago as it took. What was just pinned or let go of may be missing
from `kvist_pool_pinned_blocks` and from `pinned` in reports until then.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
)";

}  // namespace

std::span<const MetricFamily> metric_families() { return kFamilies; }

const char* metric_type_name(MetricType type) {
  switch (type) {
    case MetricType::kCounter: return "counter";
    case MetricType::kGauge: return "gauge";
    case MetricType::kHistogram: return "histogram";
  }
  return "";
}

std::string metrics_text(const ReportSource& source) {
  In input{.source = source, .pools = {}};
  source.sessions.for_each([&](Session& session) {
    switch (session.state) {
      case Session::State::kGreeting: ++input.greeting; return;
      case Session::State::kConnected: ++input.connected; break;
      case Session::State::kQuarantined: ++input.quarantined; break;
    }
    session.harvest();
  });
  for (const auto& domain : source.domains) {
    input.pools.push_back({domain->name(), pool_stats(source, *domain), &domain->client_sums, domain.get()});
  }
  std::string text;
  text.reserve(kUsualBytes + kUsualBytesOfADomain * input.pools.size());
  MetricSamples samples(text);
  for (const MetricFamily& family : kFamilies) {
    samples.begin(family);
    family.collect(input, samples);
  }
  return text;
}

std::string metrics_reference() {
  std::string page = kHead;
  for (const MetricFamily& family : kFamilies) {
    page += "| `" + std::string(family.name) + "` | " + metric_type_name(family.type) + " | " + family.labels + " | " +
            family.help + " |\n";
  }
  return page;
}

}  // namespace kvist
