#include "bench/suite/bench.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/suite/cases.h"

namespace kvist::bench {
namespace {

struct Named {
  const char* name;
  Status (*run)(const Options&);
};
constexpr Named kBenches[] = {
    {"get", bench_get},       {"put", bench_put},   {"inplace", bench_inplace},   {"batch", bench_batch},
    {"prefix", bench_prefix}, {"full", bench_full}, {"metadata", bench_metadata}, {"clients", bench_clients},
    {"start", bench_start},   {"disk", bench_disk}, {"restart", bench_restart},   {"policy", bench_policy},
    {"tiers", bench_tiers},
};

nlohmann::ordered_json number(double value) {
  if (value == 0) return nullptr;
  const double scale = std::pow(10, 3 - std::floor(std::log10(std::fabs(value))));
  return scale > 1 ? std::round(value * scale) / scale : std::round(value);
}

std::string short_number(double value, int digits) {
  if (value == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Named& bench : kBenches) all.emplace_back(bench.name);
  all.emplace_back("all");
  return all;
}

Status run(std::string_view name, const Options& options) {
  if (name == "all") {
    for (Status (*each)(const Options&) : {bench_get, bench_put, bench_batch, bench_large, bench_full, bench_metadata,
                                           bench_clients, bench_policy, bench_start, bench_restart}) {
      if (Status status = each(options); !status.ok()) return status;
    }
    return ok_status();
  }
  for (const Named& bench : kBenches) {
    if (name == bench.name) return bench.run(options);
  }
  std::string list;
  for (const std::string& known : names()) list += " " + known;
  return invalid_argument("no bench is called '" + std::string(name) + "'; there are:" + list);
}

std::string to_json(const Line& line) {
  nlohmann::ordered_json json = {
      {"bench", line.bench},
      {"case", line.case_name},
      {"op", line.op},
      {"block_bytes", line.block_bytes},
      {"batch", line.batch},
      {"clients", line.clients},
      {"verify", line.verify.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(line.verify)},
      {"resident_blocks", line.resident_blocks},
      {"gbps", number(line.gbps)},
      {"blocks_per_s", number(line.blocks_per_s)},
      {"p50_us", number(line.p50_us)},
      {"p99_us", number(line.p99_us)},
      {"ceiling", line.ceiling.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(line.ceiling)},
      {"ceiling_gbps", number(line.ceiling_gbps)},
      {"ratio", number(line.ratio)},
      {"wrong_bytes", line.wrong_bytes},
      {"cpu", std::round(line.cpu * 100) / 100},
      {"other_cpus", std::round(line.other_cpus * 100) / 100}};
  for (const auto& [key, value] : line.more) json[key] = value == 0 ? nlohmann::ordered_json(0) : number(value);
  return json.dump();
}

std::string table_header() {
  return "bench     case          op         block    batch verify    GB/s  M blocks/s   p50 us   p99 us  ratio  of         "
         "      "
         "wrong  others";
}

std::string table_row(const Line& line) {
  char text[512];
  std::snprintf(
      text, sizeof(text), "%-9s %-13s %-9s %8llu %6u %-7s %6s %11s %8s %8s %6s  %-16s %5llu  %5.2f", line.bench.c_str(),
      line.case_name.c_str(), line.op.c_str(), static_cast<unsigned long long>(line.block_bytes), line.batch,
      line.verify.c_str(), short_number(line.gbps, 2).c_str(), short_number(line.blocks_per_s / 1e6, 3).c_str(),
      short_number(line.p50_us, 2).c_str(), short_number(line.p99_us, 2).c_str(), short_number(line.ratio, 2).c_str(),
      line.ceiling.c_str(), static_cast<unsigned long long>(line.wrong_bytes), line.other_cpus);
  std::string row = text;
  for (const auto& [key, value] : line.more)
    row += "  " + key + "=" + (value == 0 ? "0" : short_number(value, value < 10 ? 3 : 1));
  return row;
}

}  // namespace kvist::bench
