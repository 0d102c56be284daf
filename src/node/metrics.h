// node/metrics.h: what a node measures, for Prometheus (text exposition format 0.0.4), from one table of metrics.
//
// Names are kvist_*, in base units (seconds, bytes), counters end in _total. Labels are bounded: domains by the
// configuration, everything else by what this file lists; nothing that a client names ever becomes a label. Nothing is ever
// renamed: tests/node/metrics_test.cc has the list.
//
// What clients count themselves (reads, their stages and failures) is their word; see pool/client_counts.h.
//
// To add a metric: a row in metrics.cc, a line in the test's list, `make docs`.
//
// Threads: the loop's, but for metrics_reference().
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "node/report.h"

namespace kvist {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

struct MetricInput;   // private to metrics.cc
class MetricSamples;  // likewise

struct MetricFamily {
  const char* name;
  MetricType type;
  const char* labels;  // "domain, result"; "" for none
  const char* help;    // one sentence, no full stop
  void (*collect)(const MetricInput& input, MetricSamples& out);
};

std::span<const MetricFamily> metric_families();
const char* metric_type_name(MetricType type);

// Everything, as /metrics gives it. Takes in what clients counted since the last time.
std::string metrics_text(const ReportSource& source);

// docs/metrics.md.
std::string metrics_reference();

}  // namespace kvist
