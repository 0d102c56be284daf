// bench/suite/cases.h: the measurements, one function each. Private to bench/suite.
#pragma once

#include "bench/suite/bench.h"

namespace kvist::bench {

Status bench_get(const Options& options);       // copied reads of 1 MiB, by verification policy
Status bench_put(const Options& options);       // 1 MiB with checksum, cold and hot source
Status bench_batch(const Options& options);     // 32 blocks of 4 KiB a call
Status bench_inplace(const Options& options);   // one block pinned in place, among 1 M and 10 M, while the node evicts
Status bench_prefix(const Options& options);    // 1,000 blocks, digests and string keys
Status bench_large(const Options& options);     // inplace and prefix on the same pools, filled once
Status bench_full(const Options& options);      // put into a pool that evicts, beside one that does not
Status bench_metadata(const Options& options);  // bytes a block
Status bench_clients(const Options& options);   // two client processes beside one; an idle node
Status bench_disk(const Options& options);      // the segment store beside fio
Status bench_tiers(
    const Options& options);  // a node with a disk tier: a prefix from disk, a restart, DRAM beside a busy disk
Status bench_policy(const Options& options);   // each retention policy alone: nanoseconds and bytes a block
Status bench_start(const Options& options);    // 8 GiB: ready, populated
Status bench_restart(const Options& options);  // 8 GiB kept over kill -9: serving again, verified

}  // namespace kvist::bench
