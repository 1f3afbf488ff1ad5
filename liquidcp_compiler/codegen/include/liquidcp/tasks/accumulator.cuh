#pragma once
// Where the result of a claim goes: into the running state of its (query tile, head), or out of the kernel.
#include <liquidcp/attention/combine.cuh>
#include <liquidcp/attention/partial_tile.cuh>
#include <liquidcp/tasks/attention_task.cuh>

namespace liquidcp {

// Of the (query tile, head) of the task in shared memory. The word counts merged KV tiles and is the lock as well: one
// atomic does both.
class Accumulator {
 public:
  LIQUIDCP_DEVICE explicit Accumulator(const Context& context)
      : context_(context), task_(shared_task()), thread_(ptx::thread_idx()), out_(context.smem, thread_) {}

  // Whole CTA. Adds the PartialTile and `lse` of this thread's rows, lane / 4 and that + 8, which count the task's KV
  // tiles (1 for an empty row); the CTA that brings the last ones writes the rows out. False: the launch is given up.
  LIQUIDCP_DEVICE bool add(f32 (&lse)[2]) const {
    const i32 contributions = max_of(task_.num_tiles, 1), wanted = tile().merge_count;
    if (contributions != wanted) {  // somebody else contributes too
      if (!__syncthreads_and(thread_ != 0 || lock())) return false;
      const i32 before = static_cast<i32>(context_.shared.merged);
      const bool last = before + contributions == wanted;
      if (before > 0) merge_state(lse);
      if (!last) store_state(lse);
      __syncthreads();  // the state is read and written before thread 0 lets go of it
      if (thread_ == 0 && !fault_drops(context_.watch, FaultKind::LOCK, task_.q_tile)) {
        ptx::st_release_gpu(word(), tagged(context_.watch.epoch, static_cast<u32>(before + contributions)));
      }
      if (!last) return true;
    }
    write_rows(lse);
    return true;
  }

 private:
  LIQUIDCP_DEVICE const QTileDesc& tile() const { return context_.plan.q_tiles()[task_.q_tile]; }
  LIQUIDCP_DEVICE i64 slot() const {
    return static_cast<i64>(task_.q_tile) * context_.params.num_heads_q + task_.head;
  }
  LIQUIDCP_DEVICE u64* word() const { return context_.rank.merged + slot() * MERGE_WORDS; }
  LIQUIDCP_DEVICE i32 lane() const { return thread_ & 31; }
  LIQUIDCP_DEVICE i32 first_row() const { return (thread_ >> 5) * 16; }  // of this warp

  // Thread 0. Between this and the release nothing waits for another CTA, so lock holders always get on.
  LIQUIDCP_DEVICE bool lock() const {
    fault_delay(context_.watch, DelayPoint::WAIT);
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

  LIQUIDCP_DEVICE void merge_state(f32 (&lse)[2]) const {
    MergeWeights w[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      w[r] = merge_weights(ptx::ld_relaxed_gpu_f32(state_lse(r)), lse[r]);
      lse[r] = w[r].lse;
    }
    __syncwarp();  // lanes of a quad read the same lse, and one of them will store it
    const f32* state = state_out();
#pragma unroll 4
    for (i32 n = 0; n < OUT_TILES; ++n) {
      f32 before[4], o[4];
      ptx::ld_relaxed_gpu_v4_f32(state + n * config::NUM_THREADS * 4, before);
      out_.get(n, o);
#pragma unroll
      for (i32 e = 0; e < 4; ++e) o[e] = merge(w[e >> 1], before[e], o[e]);
      out_.set(n, o);
    }
  }

  LIQUIDCP_DEVICE void store_state(const f32 (&lse)[2]) const {
    if ((lane() & 3) == 0) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) ptx::st_relaxed_gpu_f32(state_lse(r), lse[r]);
    }
    f32* state = state_out();
#pragma unroll 4
    for (i32 n = 0; n < OUT_TILES; ++n) {
      f32 o[4];
      out_.get(n, o);
      ptx::st_relaxed_gpu_v4_f32(state + n * config::NUM_THREADS * 4, o);
    }
  }

  // One more key, of score `sink` and value 0. Only here, where rows are finished: it counts once.
  LIQUIDCP_DEVICE void add_sink(f32 (&lse)[2], f32 sink) const {
    MergeWeights w[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      w[r] = merge_weights(lse[r], sink);
      lse[r] = w[r].lse;
    }
#pragma unroll 4
    for (i32 n = 0; n < OUT_TILES; ++n) {
      f32 o[4];
      out_.get(n, o);
#pragma unroll
      for (i32 e = 0; e < 4; ++e) o[e] = merge(w[e >> 1], o[e], 0.0f);
      out_.set(n, o);
    }
  }

  // Finished rows, 16 bytes a lane.
  LIQUIDCP_DEVICE void write_rows(f32 (&lse)[2]) const {
    const RankParams& rank = context_.rank;
    if (rank.sinks != nullptr) add_sink(lse, rank.sinks[task_.head]);
    const i64 token = tile().token + first_row(), num_tokens = context_.plan.header().num_local_q_tokens;
    const i32 rows = task_.queries.rows - first_row();  // of this warp; may be none
    if ((lane() & 3) == 0) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) {
        const i32 row = (lane() >> 2) + 8 * r;
        if (row < rows) rank.lse[task_.head * num_tokens + token + row] = lse[r];
      }
    }
    __syncwarp();  // a row lies with the four lanes that computed it
    u8* out = static_cast<u8*>(rank.out) +
              (token * rank.out_token_stride + task_.head * rank.out_head_stride) * ELEMENT_BYTES;
#pragma unroll 2
    for (i32 i = lane(); i < 16 * ROW_CHUNKS; i += 32) {
      const i32 row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
      if (row < rows) {
        ptx::st_v4(out + row * rank.out_token_stride * ELEMENT_BYTES + chunk * 16, out_.chunk(row, chunk));
      }
    }
  }

  const Context& context_;
  const AttentionTask& task_;
  const i32 thread_;
  const PartialTile out_;
};

}  // namespace liquidcp
