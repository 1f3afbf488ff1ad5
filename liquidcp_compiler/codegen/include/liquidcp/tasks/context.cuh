#pragma once
// What every role of a CTA works with.
#include <liquidcp/attention/smem_tile.cuh>
#include <liquidcp/sync/watch.cuh>

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
  i32 has_claim;
  Claim claim;
};

// Dynamic shared memory, in bytes: the query tile, then two buffers of KV_STEP rows each for K and for V.
constexpr u32 SMEM_Q = 0;
constexpr u32 STEP_BYTES = config::KV_STEP * ROW_BYTES;
constexpr u32 SMEM_K = SMEM_Q + config::BLOCK_Q * ROW_BYTES;
constexpr u32 SMEM_V = SMEM_K + 2 * STEP_BYTES;
static_assert(SMEM_V + 2 * STEP_BYTES == config::SMEM_BYTES, "config.cuh disagrees with the shared-memory layout");

struct Context {
  const KernelParams& params;
  const RankParams& rank;
  PlanView plan;
  SharedWords& shared;
  Watch& watch;
  u32 smem;
};

}  // namespace liquidcp
