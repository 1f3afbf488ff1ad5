#pragma once
// The keys of a task, step by step: logical tiles of a row -> physical tiles -> rows in memory. One warp looks ahead,
// a lane a step, and leaves the steps that the query tile sees in shared memory; what no row sees is never loaded.
#include <liquidcp/attention/mask.cuh>
#include <liquidcp/tasks/attention_task.cuh>
#include <liquidcp/tasks/kv_tiles.cuh>

namespace liquidcp {

constexpr i32 STEP_SLOTS = 64;  // one round of a warp beyond the 32 steps that it keeps ready

struct StepQueue {
  KvStep steps[STEP_SLOTS];
  i32 found;   // steps put here so far
  i32 looked;  // steps of the task looked at so far, with those that nobody sees
};

// Of the task in shared memory.
class KvWalk {
 public:
  LIQUIDCP_DEVICE explicit KvWalk(const Context& context)
      : context_(context), task_(shared_task()), queue_(static_smem<StepQueue>()) {}

  // The first warp, before a barrier.
  LIQUIDCP_DEVICE void start() const {
    if (ptx::thread_idx() == 0) queue_.found = queue_.looked = 0;
    __syncwarp();
    look_ahead(0);
  }

  // The first warp, between the last reads of step `current` - 1 and a barrier: afterwards 33 steps from `current` on
  // are there, or all that are left.
  LIQUIDCP_DEVICE void look_ahead(i32 current) const {
    while (queue_.looked < num_steps() && queue_.found - current <= STEP_SLOTS - 32) look_at_32();
  }

  LIQUIDCP_DEVICE bool has(i32 step) const { return step < queue_.found; }
  LIQUIDCP_DEVICE const KvStep& step(i32 step) const { return queue_.steps[step % STEP_SLOTS]; }

 private:
  LIQUIDCP_DEVICE i32 num_steps() const { return task_.num_tiles * STEPS_PER_TILE; }

  LIQUIDCP_DEVICE void look_at_32() const {
    const u32 lane = static_cast<u32>(ptx::thread_idx()) & 31;
    const i32 idx = queue_.looked + static_cast<i32>(lane), found = queue_.found;
    KvStep step = {};
    const bool seen = idx < num_steps() && open(idx, step);
    const u32 votes = __ballot_sync(FULL_WARP, seen);
    if (seen) queue_.steps[(found + __popc(votes & ((1u << lane) - 1))) % STEP_SLOTS] = step;
    __syncwarp();  // all lanes have read the counts
    if (lane == 0) {
      queue_.looked += 32;
      queue_.found = found + __popc(votes);
    }
    __syncwarp();
  }

  // False: the tile ends before this step, or no row of the query tile sees any of it.
  LIQUIDCP_DEVICE bool open(i32 idx, KvStep& step) const {
    const RowDesc& row = context_.plan.rows()[task_.row];
    const SequenceDesc& sequence = context_.plan.sequences()[row.sequence];
    const i32 index = physical_tile(context_, row, sequence, task_.first_tile + idx / STEPS_PER_TILE);
    const i32 first = idx % STEPS_PER_TILE * config::KV_STEP;
    const KvTileDesc& tile = context_.plan.kv_tiles()[index];
    if (first >= tile.rows) return false;
    step.position = tile.position + first;
    step.num_keys = min_of(tile.rows - first, config::KV_STEP);
    const RankParams& rank = context_.rank;
    const i64 token = static_cast<i64>(tile.token) + first;
    if (index < context_.plan.header().num_local_kv_tiles) {
      place(rank.k, token, rank.k_token_stride, rank.k_head_stride, step.k, step.k_stride);
      place(rank.v, token, rank.v_token_stride, rank.v_head_stride, step.v, step.v_stride);
    } else {
      const i64 packed = static_cast<i64>(context_.params.num_heads_kv) * config::HEAD_DIM;
      place(rank.kv_buffer_k, token, packed, config::HEAD_DIM, step.k, step.k_stride);
      place(rank.kv_buffer_v, token, packed, config::HEAD_DIM, step.v, step.v_stride);
    }
    return TileMask(context_.plan.mask_data() + sequence.mask_base, sequence.mask_size, task_.queries).sees(step);
  }

  // Strides in elements.
  LIQUIDCP_DEVICE void place(const void* tensor, i64 token, i64 token_stride, i64 head_stride, const u8*& first,
                             u32& stride) const {
    const i64 element = token * token_stride + task_.kv_head * head_stride;
    first = static_cast<const u8*>(tensor) + element * ELEMENT_BYTES;
    stride = static_cast<u32>(token_stride * ELEMENT_BYTES / 16);
  }

  const Context& context_;
  const AttentionTask& task_;
  StepQueue& queue_;
};

}  // namespace liquidcp
