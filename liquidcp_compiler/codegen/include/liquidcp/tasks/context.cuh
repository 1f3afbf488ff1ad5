#pragma once
// What every role of a CTA works with.
#include <liquidcp/attention/smem_tile.cuh>
#include <liquidcp/sync/trace.cuh>
#include <liquidcp/sync/faults.cuh>

namespace liquidcp {

// KV tiles [lo, hi) of a row's order, for one of its units (a query tile and a query head).
struct Claim {
  i32 row, unit, lo, hi;
};

// Small words that one warp tells the others.
struct SharedWords {
  u32 epoch;
  u32 ticket;
  u32 merged;
  u32 num_records;  // of the timeline
  i32 has_claim;
  i32 first_open;  // every unit before it, in the order of the scan, is claimed whole
  Claim claim;
};

struct Context {
  const KernelParams& params;
  const RankParams& rank;
  PlanView plan;
  SharedWords& shared;
  Watch& watch;
  u32 smem;

  // A record of the timeline that ends now; thread 0 writes it.
  LIQUIDCP_DEVICE void record(TraceKind kind, i32 task, i32 unit, u64 begin_ns) const {
    if (config::TRACE && threadIdx.x == 0) trace_end(params, shared.num_records, kind, task, unit, begin_ns);
  }
};

// Words of `tickets`.
constexpr i32 TRANSFERS_TAKEN = 0, TRANSFERS_DONE = 1, STAGES_TAKEN = 2, STAGES_DONE = 3, ENTRY_WAITERS = 4;
static_assert(ENTRY_WAITERS + 1 == NUM_TICKETS);

}  // namespace liquidcp
