#include "node/report.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "kvist/identity.h"
#include "node/config.h"
#include "node/disk_store.h"
#include "node/metrics.h"

namespace kvist {
namespace {

using Json = nlohmann::ordered_json;

// Names come from clients and need not be UTF-8.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// A report that is a list, as text: items beyond kLongestReport are only counted.
class ListReport {
 public:
  explicit ListReport(const char* name) : text_(std::string("{\"") + name + "\":[") {}
  void add(const Json& item) {
    std::string text = dump(item);
    if (left_out_ > 0 || text_.size() + text.size() > kLongestReport) {
      ++left_out_;
      return;
    }
    if (!first_) text_ += ',';
    first_ = false;
    text_ += text;
  }
  std::string finish() {
    text_ += ']';
    if (left_out_ > 0) text_ += ",\"left_out\":" + std::to_string(left_out_);
    return std::move(text_ += '}');
  }

 private:
  std::string text_;
  bool first_ = true;
  uint64_t left_out_ = 0;
};

// The sums that are shown first, under the names that scripts rely on.
struct Totals {
  PoolStats pool;
  uint64_t hits = 0, misses = 0, bytes_got = 0;
  uint64_t connected = 0, quarantined = 0;

  double hit_rate() const {
    const double all = static_cast<double>(hits) + static_cast<double>(misses);
    return all > 0 ? static_cast<double>(hits) / all : 0.0;
  }
};

Totals totals_of(const ReportSource& source, Domain& domain) {
  Totals totals;
  totals.pool = pool_stats(source, domain);
  source.sessions.for_each([&](Session& session) {
    if (session.domain != &domain) return;
    session.harvest();
    ++(session.state == Session::State::kConnected ? totals.connected : totals.quarantined);
  });
  totals.hits = domain.client_sums.hits;
  totals.misses = domain.client_sums.misses;
  totals.bytes_got = domain.client_sums.bytes_got;
  return totals;
}

Json headline(const Totals& t) {
  return {{"capacity_bytes", t.pool.capacity_bytes},
          {"ready_bytes", t.pool.ready_bytes},
          {"used_bytes", t.pool.used_bytes},
          {"free_bytes", t.pool.capacity_bytes - t.pool.used_bytes},
          {"blocks", t.pool.live_blocks},
          {"block_bytes", t.pool.live_bytes},
          {"free_blocks", t.pool.free_entries},
          {"max_blocks", t.pool.max_blocks},
          {"disk_blocks", t.pool.below_blocks},
          {"disk_block_bytes", t.pool.below_bytes},
          {"pinned", t.pool.pinned_blocks},
          {"pinned_bytes", t.pool.pinned_bytes},
          {"reserved", t.pool.granted_slots},
          {"reserved_bytes", t.pool.granted_bytes},
          {"quarantined", t.pool.quarantined_slots},
          {"evicted_total", t.pool.evicted},
          {"clients", t.connected},
          {"clients_quarantined", t.quarantined},
          {"hits", t.hits},
          {"misses", t.misses},
          {"bytes_got", t.bytes_got},
          {"hit_rate", t.hit_rate()}};
}

Json pool_detail(const PoolStats& s) {
  Json commits;
  for (int code = 0; code < kCommitCodes; ++code) commits[kCommitNames[code]] = s.commits[code];
  return {{"stubs", s.stubs},
          {"awaiting_unpin", s.awaiting_unpin},
          {"fetching", s.fetching},
          {"namespaces", s.namespaces},
          {"evict_examined", s.evict_examined},
          {"evict_revived", s.evict_revived},
          {"evict_worst_step", s.evict_worst_step},
          {"removed", s.removed},
          {"flushed", s.flushed},
          {"commits", std::move(commits)},
          {"grants_refused", s.grants_refused},
          {"bad_blocks", s.bad_blocks},
          {"false_reports", s.false_reports},
          {"garbage_pins", s.garbage_pins},
          {"over_pinned_sessions", s.over_pinned_sessions},
          {"rechecks_skipped", s.rechecks_skipped},
          {"index_full", s.index_full},
          {"stubs_made", s.stubs_made},
          {"stubs_filled", s.stubs_filled},
          {"moved_blocks", s.moved_blocks},
          {"extents_moved", s.extents_moved},
          {"unverified", s.unverified_blocks},
          {"metadata_bytes", s.metadata_bytes}};
}

Json disk_detail(const Domain& domain, const PoolStats& pool) {
  if (domain.disk() == nullptr) return nullptr;
  const disk::StoreStats s = domain.disk()->stats();
  Json directories = Json::array(), dropped, asked, ended;
  for (const disk::DirectoryReport& each : domain.disk()->directories()) {
    directories.push_back({{"path", each.path},
                           {"state", disk::disk_state_name(each.state)},
                           {"reason", each.reason},
                           {"not_direct_because", each.why_not_direct},
                           {"capacity_bytes", each.capacity_bytes},
                           {"file_bytes", each.file_bytes},
                           {"live_bytes", each.live_bytes}});
  }
  for (int i = 0; i < kNotDemotedReasons; ++i) dropped[not_demoted_name(static_cast<NotDemoted>(i))] = pool.not_demoted[i];
  for (int i = 0; i < kFetchResults; ++i) asked[kFetchNames[i]] = pool.fetches[i];
  for (int i = 0; i < kFetchEnds; ++i) ended[fetch_end_name(static_cast<FetchEnd>(i))] = pool.fetch_ends[i];
  return {{"capacity_bytes", s.capacity_bytes},
          {"file_bytes", s.file_bytes},
          {"live_bytes", s.live_bytes},
          {"live_records", s.live_records},
          {"blocks", pool.below_blocks},
          {"block_bytes", pool.below_bytes},
          {"being_written", pool.being_written},
          {"only_in_dram", pool.only_in_dram},
          {"demoted", pool.demoted},
          {"demoted_bytes", pool.demoted_bytes},
          {"not_demoted", std::move(dropped)},
          {"user_bytes", s.user_bytes},
          {"moved_bytes", s.moved_bytes},
          {"written_bytes", s.written_bytes},
          {"write_amplification", s.write_amplification()},
          {"segments", s.segments},
          {"segments_free", s.free_segments},
          {"segments_collected", s.segments_collected},
          {"fetches", std::move(asked)},
          {"fetches_ended", std::move(ended)},
          {"fetching_bytes", pool.fetching_bytes},
          {"fetched_bytes", pool.fetched_bytes},
          {"lost", pool.below_lost},
          {"given_up", pool.below_given_up},
          {"bad_records", s.bad_records},
          {"read_errors", s.read_errors},
          {"write_errors", s.write_errors},
          {"no_space", s.no_space},
          {"bypassed", s.bypassed},
          {"resumed", s.resumed},
          {"found_at_start", pool.found_below},
          {"not_wanted_at_start", pool.not_found_below},
          {"scanned_segments_at_start", s.scanned_segments},
          {"torn_records_at_start", s.torn_records},
          {"start_seconds", domain.disk()->recover_seconds()},
          {"description", domain.disk()->describe()},
          {"directories", std::move(directories)}};
}

Json retention_detail(const Retention& retention) {
  return {{"policy", retention.name()}, {"ruling", retention.ruling()}, {"changes", retention.changes()}};
}

// What a node before left to this one, and whether it will leave something itself.
Json restart_detail(Domain& domain) {
  const TakeOver& taken = domain.taken_over();
  Json not_kept;
  for (int i = 0; i < kNotKeptReasons; ++i) not_kept[not_kept_name(static_cast<NotKept>(i))] = taken.not_kept[i];
  return {{"kept", domain.kept()},
          {"run", domain.memory().control().header->run},
          {"blocks", taken.blocks},
          {"bytes", taken.bytes},
          {"granted_slots", taken.granted_slots},
          {"held_slots", taken.held_slots},
          {"not_kept", std::move(not_kept)},
          {"started_empty", domain.started_empty}};
}

Json node_detail(const ReportSource& source) {
  const NodeCounters& c = source.counters;
  Json ended, requests;
  for (size_t i = 0; i < c.ended.size(); ++i) ended[std::string(ended_name(static_cast<Ended>(i)))] = c.ended[i];
  for (size_t i = 0; i < c.requests.size(); ++i) {
    if (!request_name(i).empty()) requests[std::string(request_name(i))] = c.requests[i];
  }
  Json node = {{"accepted", c.accepted},
               {"accept_failures", c.accept_failures},
               {"sessions_opened", c.sessions_opened},
               {"ended", std::move(ended)},
               {"requests", std::move(requests)},
               {"unknown_requests", c.unknown_requests},
               {"failed_answers", c.failed_answers()},
               {"outputs_delayed", c.outputs_delayed},
               {"stock_asked_back", c.stock_asked_back},
               {"reports_refused", c.reports_refused},
               {"config_changes", c.config_changes},
               {"config_refused", c.config_refused},
               {"populate_failures", c.populate_failures},
               {"wakes", c.wakes},
               {"spins", c.spins},
               {"spins_disturbed", c.spins_disturbed}};
  if (source.populator != nullptr) node["populate_looks_failed"] = source.populator->looks_failed();
  if (source.scrubber != nullptr) {
    node["scrubbed_blocks"] = source.scrubber->blocks();
    node["scrubbed_bytes"] = source.scrubber->bytes();
    node["scrub_rounds"] = source.scrubber->rounds();
  }
  return node;
}

void add(PoolStats* sum, const PoolStats& s) {
  sum->capacity_bytes += s.capacity_bytes, sum->ready_bytes += s.ready_bytes, sum->used_bytes += s.used_bytes;
  sum->live_blocks += s.live_blocks, sum->live_bytes += s.live_bytes;
  sum->free_entries += s.free_entries, sum->max_blocks += s.max_blocks;
  sum->pinned_blocks += s.pinned_blocks, sum->pinned_bytes += s.pinned_bytes;
  sum->granted_slots += s.granted_slots, sum->granted_bytes += s.granted_bytes;
  sum->quarantined_slots += s.quarantined_slots, sum->evicted += s.evicted;
  sum->below_blocks += s.below_blocks, sum->below_bytes += s.below_bytes;
}

std::string node_report(const ReportSource& source, const Domain* only) {
  Totals sum;
  Json pools = Json::array();
  for (const auto& domain : source.domains) {
    if (only != nullptr && domain.get() != only) continue;
    const Totals totals = totals_of(source, *domain);
    add(&sum.pool, totals.pool);
    add_bounded(&sum.hits, totals.hits), add_bounded(&sum.misses, totals.misses);
    add_bounded(&sum.bytes_got, totals.bytes_got);
    sum.connected += totals.connected, sum.quarantined += totals.quarantined;
    Json pool = {{"domain", domain->name()}, {"pages", domain->pages()}, {"gathering", domain->gathering()}};
    pool.update(headline(totals));
    pool.update(pool_detail(totals.pool));
    pool["retention"] = retention_detail(domain->pool().retention());
    pool["restart"] = restart_detail(*domain);
    pool["disk"] = disk_detail(*domain, totals.pool);
    pools.push_back(std::move(pool));
  }
  Json report = {{"version", source.options.version},
                 {"state", source.state},
                 {"uptime_s", static_cast<double>(source.now_ms) / 1000},
                 {"socket", source.options.socket}};
  report.update(headline(sum));
  report["pools"] = std::move(pools);
  // What the node as a whole does says something of every tenant: it is for the operator.
  if (only == nullptr || only->name().empty()) report["node"] = node_detail(source);
  return dump(report);
}

std::string clients_report(const ReportSource& source, const Domain* only) {
  std::vector<std::pair<SessionId, Json>> clients;
  source.sessions.for_each([&](const Session& session) {
    if (session.domain == nullptr || (only != nullptr && session.domain != only)) return;
    const Pool::SessionUse use = session.domain->pool().session_use(session.id);
    const PinTable& table = *session.table();
    Json client = {{"session", session.id},
                   {"pid", session.peer.pid},
                   {"client_pid", session.claimed_pid},
                   {"uid", session.peer.uid},
                   {"name", session.name},
                   {"domain", session.domain->name()},
                   {"state", session.state == Session::State::kConnected ? "connected" : "quarantined"},
                   {"granted", use.granted_slots},
                   {"granted_bytes", use.granted_bytes},
                   {"pinned", use.pinned_blocks},
                   {"pinned_bytes", use.pinned_bytes},
                   {"pins_limit", session.pin_capacity},
                   {"requests", session.requests},
                   {"hits", table.hits.load(std::memory_order_relaxed)},
                   {"misses", table.misses.load(std::memory_order_relaxed)},
                   {"bytes_got", table.bytes_got.load(std::memory_order_relaxed)},
                   {"unread_answers", session.output.size()},
                   {"age_s", static_cast<double>(source.now_ms - session.connected_ms) / 1000}};
    clients.emplace_back(session.id, std::move(client));
  });
  std::sort(clients.begin(), clients.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  ListReport report("clients");
  for (const auto& [id, client] : clients) report.add(client);
  return report.finish();
}

Json identity_detail(const std::string& record) {
  StatusOr<Identity> decoded = decode_identity(record);
  if (!decoded.ok()) return nullptr;
  const Identity& identity = *decoded;
  Json parts = Json::array();
  for (const Part& part : identity.parts) parts.push_back({{"name", part.name}, {"block_bytes", part.block_bytes}});
  return {{"model", identity.model},       {"revision", identity.revision}, {"weights_epoch", identity.weights_epoch},
          {"kv_dtype", identity.kv_dtype}, {"layout", identity.layout},     {"block_tokens", identity.block_tokens},
          {"parts", std::move(parts)}};
}

std::string spaces_report(const ReportSource& source, const Domain* only) {
  ListReport report("namespaces");
  for (const auto& domain : source.domains) {
    if (only != nullptr && domain.get() != only) continue;
    for (const Pool::SpaceListing& space : domain->pool().spaces()) {
      report.add({{"alias", space.alias},
                  {"domain", domain->name()},
                  {"id", to_hex(std::as_bytes(std::span(space.info.id)))},
                  {"slot", space.info.ref.slot},
                  {"epochs", space.info.epochs},
                  {"blocks", space.live_blocks},
                  {"blocks_on_disk", space.below_blocks},
                  {"block_bytes", space.live_bytes},
                  {"identity", identity_detail(space.record)},
                  {"record", to_hex(as_bytes(space.record))}});  // for a tool to open it by name
    }
  }
  return report.finish();
}

std::string config_report(const NodeOptions& options) {
  Json settings = Json::object();
  for (const ConfigKey& key : config_keys()) {
    settings[name_of(key)] = {{"value", format_config_value(key, key.get(options))},
                              {"source", source_of(options, key)},
                              {"default", default_of(key)},
                              {"at_run_time", key.at_run_time}};
  }
  return dump({{"settings", std::move(settings)}});
}

}  // namespace

PoolStats pool_stats(const ReportSource& source, Domain& domain) {
  PoolStats stats = domain.pool().stats();
  for (const SessionId own : {source.scrubber_session, source.verifier_session}) {
    const Pool::SessionUse use = domain.pool().session_use(own);
    stats.pinned_blocks -= use.pinned_blocks;
    stats.pinned_bytes -= use.pinned_bytes;
  }
  return stats;
}

std::string make_report(const ReportSource& source, Report what, const Domain* only) {
  switch (what) {
    case Report::kNode: return node_report(source, only);
    case Report::kClients: return clients_report(source, only);
    case Report::kSpaces: return spaces_report(source, only);
    case Report::kConfig: return config_report(source.options);
    case Report::kMetrics: return metrics_text(source);
  }
  return "{}";
}

}  // namespace kvist
