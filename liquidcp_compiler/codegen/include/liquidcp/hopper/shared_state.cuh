#pragma once
// Shared memory of a CTA on the Hopper path, and the barriers that hand it over.
//
// Warpgroup 0 feeds: its first warp finds tasks and lists their steps, its second loads tiles. Warpgroups 1 and 2
// attend, 64 query rows each. In a cluster of two, both CTAs work on the same keys, for two query heads of one KV head:
// each loads half of every tile into both. A tile is COLUMN_BLOCKS blocks of 64 columns, 128 bytes a row, as the copy
// engine and the tensor cores swizzle it.
#include <liquidcp/common/shared_memory.cuh>
#include <liquidcp/ptx/cluster.cuh>
#include <liquidcp/ptx/mbarrier.cuh>
#include <liquidcp/ptx/shared_words.cuh>
#include <liquidcp/tasks/attention_task.cuh>

namespace liquidcp::hopper {

constexpr i32 COLUMN_BLOCKS = ceil_div(config::HEAD_DIM, 64);
constexpr i32 WARPGROUP_ROWS = 64, CONSUMER_WARPS = 8;
constexpr u32 Q_BLOCK_BYTES = config::BLOCK_Q * 128, Q_BYTES = COLUMN_BLOCKS * Q_BLOCK_BYTES;
constexpr u32 KV_BLOCK_BYTES = config::KV_STEP * 128, KV_BYTES = COLUMN_BLOCKS * KV_BLOCK_BYTES;
constexpr u32 SMEM_Q = 0, SMEM_K = SMEM_Q + config::Q_BUFFERS * Q_BYTES;
constexpr u32 SMEM_V = SMEM_K + config::STAGES * KV_BYTES;
static_assert(SMEM_V + config::STAGES * KV_BYTES == config::SMEM_BYTES, "config.cuh has another size");

// One step of the stream that the CTA works on: KV_STEP rows of a KV tile.
struct Step {
  i32 token;      // row of the tensor (own keys) or of the buffer (pulled ones)
  i32 position;   // of the first key in its sequence
  i32 num_keys;   // 0 .. KV_STEP; 0: a task that sees no key, which takes one step all the same
  u32 flags;
};
enum StepFlag : u32 { FIRST = 1, LAST = 2, MASKED = 4, PULLED = 8, END = 16 };

// What consumers are told of the step in a stage: NEXT_* says what follows it.
struct StepNote {
  i32 position, num_keys;
  u32 next;
};
enum NextStep : u32 { NEXT_CLEAR = 0, NEXT_MASKED = 1, NEXT_TASK = 2 };

// Steps of the list and tasks that exist at once. A task's slot is in use from its claim until its rows are out.
constexpr i32 STEP_SLOTS = 64, TASK_SLOTS = 4;
// Claims on their way to the other CTA of a cluster. The first CTA cannot be further ahead: it waits for stages that
// both have done with.
constexpr i32 CLAIM_SLOTS = 8;
static_assert(config::STAGES + 2 < CLAIM_SLOTS);

struct State {
  AttentionTask tasks[TASK_SLOTS];
  u64 begin_ns[TASK_SLOTS];  // of the timeline
  i32 ended[TASK_SLOTS];     // 1: there is no task any more
  Step steps[STEP_SLOTS];
  StepNote notes[config::STAGES];
  u32 published;      // steps in the list so far; the scheduler's
  u32 taken;          // of them, loaded; the loader's
  u32 tasks_started;  // whose queries the loader has begun to load
  u32 broken;         // 1 + the barrier that did not come in time: nothing is waited for any more
  u32 lock[2];        // what each warpgroup's first thread found in a lock word
  alignas(16) Claim claims[CLAIM_SLOTS];
  alignas(8) u64 barriers[2 * config::Q_BUFFERS + 4 * config::STAGES + CLAIM_SLOTS];
};

LIQUIDCP_DEVICE State& state() { return static_smem<State>(); }

// Places in `barriers`: full and empty of each query buffer, key stage and value stage; claims.
constexpr i32 Q_FULL = 0, Q_EMPTY = Q_FULL + config::Q_BUFFERS, K_FULL = Q_EMPTY + config::Q_BUFFERS;
constexpr i32 K_EMPTY = K_FULL + config::STAGES, V_FULL = K_EMPTY + config::STAGES, V_EMPTY = V_FULL + config::STAGES;
constexpr i32 CLAIM_FULL = V_EMPTY + config::STAGES;

LIQUIDCP_DEVICE u32 barrier(i32 place) {
  return static_cast<u32>(__cvta_generic_to_shared(state().barriers)) + static_cast<u32>(place) * 8;
}

// One thread. Full: one arrival and the bytes; empty: an arrival of each consumer warp, for keys and values of all CTAs
// of the cluster.
LIQUIDCP_DEVICE void init_state() {
  State& s = state();
  s.published = s.taken = s.tasks_started = s.broken = 0;
  for (i32 i = 0; i < CLAIM_FULL + CLAIM_SLOTS; ++i) {
    const bool full = i < Q_EMPTY || (i >= K_FULL && i < K_EMPTY) || (i >= V_FULL && i < V_EMPTY) || i >= CLAIM_FULL;
    ptx::mbarrier_init(barrier(i), full ? 1 : i < K_FULL ? CONSUMER_WARPS : CONSUMER_WARPS * config::CLUSTER);
  }
  ptx::fence_mbarrier_init();
}

// Counters that one warp writes and another polls: what was written before is visible with them.
LIQUIDCP_DEVICE u32 look(const u32& word) {
  return ptx::ld_acquire_shared(static_cast<u32>(__cvta_generic_to_shared(&word)));
}
LIQUIDCP_DEVICE void tell(u32& word, u32 value) {
  ptx::st_release_shared(static_cast<u32>(__cvta_generic_to_shared(&word)), value);
}

}  // namespace liquidcp::hopper
