#pragma once
// Attention of one query tile and head over the KV tiles of a claim. Portable: mma.sync and cp.async, sm_80 and up.
#include <liquidcp/attention/mask.cuh>
#include <liquidcp/attention/online_softmax.cuh>
#include <liquidcp/attention/partial_tile.cuh>
#include <liquidcp/attention/softcap.cuh>
#include <liquidcp/tasks/accumulator.cuh>
#include <liquidcp/tasks/kv_walk.cuh>

namespace liquidcp {

// Dynamic shared memory, in bytes: the query tile, then two buffers of KV_STEP rows each for K and for V.
constexpr u32 SMEM_Q = 0;
constexpr u32 STEP_BYTES = config::KV_STEP * SMEM_ROW_BYTES;
constexpr u32 SMEM_K = SMEM_Q + config::BLOCK_Q * SMEM_ROW_BYTES;
constexpr u32 SMEM_V = SMEM_K + 2 * STEP_BYTES;
static_assert(SMEM_V + 2 * STEP_BYTES == config::SMEM_BYTES, "config.cuh disagrees with the shared-memory layout");

class ComputeTask {
 public:
  LIQUIDCP_DEVICE ComputeTask(const Context& context, const Claim& claim)
      : context_(context), claim_(claim), task_(shared_task()), thread_(ptx::thread_idx()) {}

  // Whole CTA. False: the launch is given up.
  LIQUIDCP_DEVICE bool run() const {
    const u64 begin = trace_begin();
    const KvWalk walk(context_);
    if (warp() == 0) {
      if (thread_ == 0) shared_task() = make_task(context_, claim_);
      __syncwarp();
      walk.start();
    }
    if (!__syncthreads_and(wait_for_tiles())) return false;
    f32 lse[2];
    attend(walk, lse);
    context_.record(TraceKind::COMPUTE, claim_.row, claim_.unit, begin);
    const u64 merge_begin = trace_begin();
    const bool going = Accumulator(context_).add(lse);
    context_.record(TraceKind::MERGE, claim_.row, claim_.unit, merge_begin);
    return going;
  }

 private:
  // Rows that do not form by readiness wait for each pulled tile, all at once; ready intervals never wait here.
  LIQUIDCP_DEVICE bool wait_for_tiles() const {
    const RowDesc& row = context_.plan.rows()[claim_.row];
    if (row.formation != static_cast<i32>(Formation::STATIC)) return true;
    bool landed = true;
    for (i32 i = thread_; i < row.num_kv_tiles && landed; i += config::NUM_THREADS) {
      const i32 signal = context_.plan.kv_tiles()[context_.plan.kv_list()[row.kv_list + i]].signal;
      if (signal < 0) continue;
      fault_delay(context_.watch, DelayPoint::WAIT);
      landed = context_.watch.wait(context_.rank.signals + signal, context_.plan.signals()[signal].expected,
                                   ErrorCode::SIGNAL, context_.watch.rank, signal);
    }
    return landed;
  }

  // Leaves a PartialTile.
  LIQUIDCP_DEVICE void attend(const KvWalk& walk, f32 (&lse)[2]) const {
    SoftmaxRows rows;
    f32 o[OUT_TILES][4];
    for (auto& tile : o) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
    if (walk.has(0)) attend_steps(walk, rows, o);
    rows.finish(o, lse);
    __syncthreads();  // all warps are done with the last V, and shared memory is free
    PartialTile(context_.smem, thread_).store(o);
  }

  // Two buffers each for K and V. K of the next step is on its way during this step's scores, V during its product.
  LIQUIDCP_DEVICE void attend_steps(const KvWalk& walk, SoftmaxRows& rows, f32 (&o)[OUT_TILES][4]) const {
    start_q();
    start_k(walk.step(0), 0);
    ptx::cp_async_commit();
    start_v(walk.step(0), 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();
    QueryOperands q(context_.smem + SMEM_Q, warp() * 16, lane());
    q.load();
    const RowsMask mask = rows_mask();
    const ScoreScale scale(context_.params);
    for (i32 i = 0;; ++i) {
      const u32 buffer = i & 1;
      ptx::cp_async_wait<1>();  // K of this step
      __syncthreads();          // also: all warps are done with the other K buffer
      const bool more = walk.has(i + 1);
      if (more) start_k(walk.step(i + 1), buffer ^ 1);
      ptx::cp_async_commit();
      f32 s[SCORE_TILES][4];
      const StepView view = mask.look(walk.step(i));
      if (view.any) {
        multiply_qk(s, q, context_.smem + SMEM_K + buffer * STEP_BYTES, lane());
        scale.cap(s);
        if (!view.all) hide_keys(s, mask, walk.step(i), lane());
        rows.update(s, o, scale.log2);
      }
      ptx::cp_async_wait<1>();  // V of this step
      __syncthreads();
      if (more) start_v(walk.step(i + 1), buffer ^ 1);
      ptx::cp_async_commit();
      if (warp() == 0) walk.look_ahead(i + 1);
      if (view.any) multiply_pv(o, s, context_.smem + SMEM_V + buffer * STEP_BYTES, lane());
      if (!more) return;
    }
  }

  LIQUIDCP_DEVICE RowsMask rows_mask() const {
    const SequenceDesc& sequence = context_.plan.sequences()[context_.plan.rows()[task_.row].sequence];
    return RowsMask(context_.plan.mask_data() + sequence.mask_base, sequence.mask_size, task_.queries, warp() * 16,
                    lane());
  }

  LIQUIDCP_DEVICE void start_q() const {
    const RankParams& rank = context_.rank;
    const i64 token = context_.plan.q_tiles()[task_.q_tile].token;
    const i64 element = token * rank.q_token_stride + task_.head * rank.q_head_stride;
    load_tile_async<config::BLOCK_Q>(context_.smem + SMEM_Q, static_cast<const u8*>(rank.q) + element * ELEMENT_BYTES,
                                     rank.q_token_stride * ELEMENT_BYTES, task_.queries.rows);
  }
  LIQUIDCP_DEVICE void start_k(const KvStep& step, u32 buffer) const {
    load_tile_async<config::KV_STEP>(context_.smem + SMEM_K + buffer * STEP_BYTES, step.k,
                                     static_cast<i64>(step.k_stride) * 16, step.num_keys);
  }
  LIQUIDCP_DEVICE void start_v(const KvStep& step, u32 buffer) const {
    load_tile_async<config::KV_STEP>(context_.smem + SMEM_V + buffer * STEP_BYTES, step.v,
                                     static_cast<i64>(step.v_stride) * 16, step.num_keys);
  }

  LIQUIDCP_DEVICE i32 lane() const { return thread_ & 31; }
  LIQUIDCP_DEVICE i32 warp() const { return thread_ >> 5; }

  const Context& context_;
  const Claim claim_;
  const AttentionTask& task_;
  const i32 thread_;
};

}  // namespace liquidcp
