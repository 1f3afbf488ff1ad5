#pragma once
// Where the result of a claim goes: into the running state of its (query tile, head), or out of the kernel.
#include <liquidcp/attention/combine.cuh>
#include <liquidcp/attention/online_softmax.cuh>
#include <liquidcp/tasks/attention_task.cuh>

namespace liquidcp {

// Value of a `merged` word while one CTA reads and writes the state.
constexpr u32 LOCKED = 0xffffffffu;

// The thread's part of a partial state: 16 rows a warp, rows lane / 4 and lane / 4 + 8 of them here.
struct Partial {
  f32 out[OUT_TILES][4];
  f32 lse[2];
};

// Of the (query tile, head) of the task in shared memory. The word counts merged KV tiles and is the lock as well: one
// atomic does both.
class Accumulator {
 public:
  LIQUIDCP_DEVICE explicit Accumulator(const Context& context)
      : context_(context), task_(shared_task()), thread_(ptx::thread_idx()) {}

  // Whole CTA. Adds the task's partial, which counts its KV tiles (1 for an empty row); the CTA that brings the last ones
  // writes the rows out. False: the launch is given up.
  LIQUIDCP_DEVICE bool add(Partial& partial, u32 smem_q) const {
    const i32 contributions = max_of(task_.num_tiles, 1), wanted = tile().merge_count;
    if (contributions != wanted) {  // somebody else contributes too
      if (!__syncthreads_and(thread_ != 0 || lock())) return false;
      const i32 before = static_cast<i32>(context_.shared.merged);
      const bool last = before + contributions == wanted;
      if (before > 0) merge_state(partial);
      if (!last) store_state(partial);
      __syncthreads();  // the state is read and written before thread 0 lets go of it
      if (thread_ == 0 && !fault_drops(context_.watch, FaultKind::LOCK, task_.q_tile)) {
        ptx::st_release_gpu(word(), tagged(context_.watch.epoch, static_cast<u32>(before + contributions)));
      }
      if (!last) return true;
    }
    write_rows(partial, smem_q);
    return true;
  }

 private:
  LIQUIDCP_DEVICE const QTileDesc& tile() const { return context_.plan.q_tiles()[task_.q_tile]; }
  LIQUIDCP_DEVICE i64 slot() const {
    return static_cast<i64>(task_.q_tile) * context_.params.num_heads_q + task_.head;
  }
  LIQUIDCP_DEVICE u64* word() const { return context_.rank.merged + slot(); }
  LIQUIDCP_DEVICE i32 lane() const { return thread_ & 31; }
  LIQUIDCP_DEVICE i32 first_row() const { return (thread_ >> 5) * 16; }  // of this warp

  // Thread 0. Between this and the release nothing waits for another CTA, so lock holders always get on.
  LIQUIDCP_DEVICE bool lock() const {
    const u64 held = tagged(context_.watch.epoch, LOCKED);
    u64 start = 0;
    while (true) {
      const u64 old = ptx::ld_relaxed_gpu(word());
      if (old != held && ptx::atom_cas_acquire_gpu(word(), old, held) == old) {
        context_.shared.merged = value_of(old, context_.watch.epoch);
        return true;
      }
      const u64 now = ptx::globaltimer_ns();
      if (start == 0) start = now;
      if (context_.watch.aborted()) return false;
      if (now - start > context_.params.budget_ns) {
        context_.watch.fail(ErrorCode::LOCK, context_.watch.rank, task_.q_tile, 0, 1, now - start);
        return false;
      }
      ptx::nanosleep(50);
    }
  }

  // Fragment order: 16 bytes a thread, one after another, so that every access is coalesced.
  LIQUIDCP_DEVICE f32* state_out() const {
    return context_.rank.state_out + slot() * config::BLOCK_Q * config::HEAD_DIM + thread_ * 4;
  }
  LIQUIDCP_DEVICE f32* state_lse(i32 r) const {
    return context_.rank.state_lse + slot() * config::BLOCK_Q + first_row() + (lane() >> 2) + 8 * r;
  }

  LIQUIDCP_DEVICE void merge_state(Partial& partial) const {
    MergeWeights w[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      w[r] = merge_weights(ptx::ld_relaxed_gpu_f32(state_lse(r)), partial.lse[r]);
      partial.lse[r] = w[r].lse;
    }
    __syncwarp();  // lanes of a quad read the same lse, and one of them will store it
#pragma unroll
    for (i32 n = 0; n < OUT_TILES; ++n) {
      if (n % 4 == 0) __syncwarp();  // no more loads at a time than there are registers for
      f32 before[4];
      ptx::ld_relaxed_gpu_v4_f32(state_out() + n * config::NUM_THREADS * 4, before);
#pragma unroll
      for (i32 e = 0; e < 4; ++e) partial.out[n][e] = merge(w[e >> 1], before[e], partial.out[n][e]);
    }
  }

  LIQUIDCP_DEVICE void store_state(const Partial& partial) const {
    if ((lane() & 3) == 0) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) ptx::st_relaxed_gpu_f32(state_lse(r), partial.lse[r]);
    }
#pragma unroll
    for (i32 n = 0; n < OUT_TILES; ++n) {
      ptx::st_relaxed_gpu_v4_f32(state_out() + n * config::NUM_THREADS * 4, partial.out[n]);
    }
  }

  // One more key, of score `sink` and value 0. Only here, where rows are finished: it counts once.
  LIQUIDCP_DEVICE void add_sink(Partial& partial, f32 sink) const {
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const MergeWeights w = merge_weights(partial.lse[r], sink);
      partial.lse[r] = w.lse;
#pragma unroll
      for (i32 n = 0; n < OUT_TILES; ++n) {
#pragma unroll
        for (i32 e = 2 * r; e < 2 * r + 2; ++e) partial.out[n][e] = merge(w, partial.out[n][e], 0.0f);
      }
    }
  }

  // Finished rows, through this warp's own rows of the query tile (which it has in registers), to store 16 bytes a lane.
  LIQUIDCP_DEVICE void write_rows(Partial& partial, u32 smem_q) const {
    if (context_.rank.sinks != nullptr) add_sink(partial, context_.rank.sinks[task_.head]);
    const i32 rows = task_.queries.rows;
    const i64 token = tile().token;
    if ((lane() & 3) == 0) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) {
        const i32 row = first_row() + (lane() >> 2) + 8 * r;
        const i64 num_tokens = context_.plan.header().num_local_q_tokens;
        if (row < rows) context_.rank.lse[task_.head * num_tokens + token + row] = partial.lse[r];
      }
    }
    __syncwarp();
#pragma unroll
    for (i32 n = 0; n < OUT_TILES; ++n) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) {
        const u32 chunk = chunk_address(smem_q, first_row() + (lane() >> 2) + 8 * r, n);
        ptx::st_shared_u32(chunk + (lane() & 3) * 4, pack_pair(partial.out[n][2 * r], partial.out[n][2 * r + 1]));
      }
    }
    __syncwarp();
    const i64 stride = context_.rank.out_token_stride;
    u8* out = static_cast<u8*>(context_.rank.out) +
              (token * stride + task_.head * context_.rank.out_head_stride) * ELEMENT_BYTES;
#pragma unroll
    for (i32 i = 0; i < 16 * ROW_CHUNKS / 32; ++i) {
      const i32 row = first_row() + (i * 32 + lane()) / ROW_CHUNKS, chunk = (i * 32 + lane()) % ROW_CHUNKS;
      if (row >= rows) continue;
      ptx::st_v4(out + row * stride * ELEMENT_BYTES + chunk * 16, ptx::ld_shared_v4(chunk_address(smem_q, row, chunk)));
    }
  }

  const Context& context_;
  const AttentionTask& task_;
  const i32 thread_;
};

}  // namespace liquidcp
