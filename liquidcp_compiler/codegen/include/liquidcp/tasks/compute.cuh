#pragma once
// Attention of one query tile and head over the KV tiles of a claim. Portable: mma.sync and cp.async, sm_80 and up.
#include <liquidcp/attention/mask.cuh>
#include <liquidcp/attention/online_softmax.cuh>
#include <liquidcp/attention/softcap.cuh>
#include <liquidcp/tasks/accumulator.cuh>
#include <liquidcp/tasks/kv_walk.cuh>

namespace liquidcp {

class ComputeTask {
 public:
  LIQUIDCP_DEVICE ComputeTask(const Context& context, const Claim& claim)
      : context_(context),
        claim_(claim),
        row_(context.plan.rows()[claim.row]),
        q_tile_(context.plan.q_list()[row_.q_lo + claim.unit / context.params.num_heads_q]),
        head_(claim.unit % context.params.num_heads_q),
        lane_(ptx::thread_idx() & 31),
        warp_(ptx::thread_idx() >> 5) {}

  // Whole CTA. False: the launch is given up.
  LIQUIDCP_DEVICE bool run() const {
    const u64 begin = trace_begin();
    const KvWalk walk(context_);
    if (warp_ == 0) walk.start(claim_, head_ / context_.params.qheads_per_kvhead, queries());
    if (!__syncthreads_and(wait_for_tiles())) return false;
    Partial partial;
    attend(walk, partial);
    const i32 contributions = max_of(claim_.hi - claim_.lo, 1);
    context_.record(TraceKind::COMPUTE, claim_.row, claim_.unit, begin);
    const u64 merge_begin = trace_begin();
    const bool going = Accumulator(context_, q_tile_, head_).add(partial, contributions, context_.smem + SMEM_Q);
    context_.record(TraceKind::MERGE, claim_.row, claim_.unit, merge_begin);
    return going;
  }

 private:
  // Rows that do not form by readiness wait for each pulled tile, all at once; ready intervals never wait here.
  LIQUIDCP_DEVICE bool wait_for_tiles() const {
    if (row_.formation != static_cast<i32>(Formation::STATIC)) return true;
    bool landed = true;
    for (i32 i = static_cast<i32>(threadIdx.x); i < row_.num_kv_tiles && landed; i += config::NUM_THREADS) {
      const i32 signal = context_.plan.kv_tiles()[context_.plan.kv_list()[row_.kv_list + i]].signal;
      if (signal < 0) continue;
      landed = context_.watch.wait(context_.rank.signals + signal, context_.plan.signals()[signal].expected,
                                   ErrorCode::SIGNAL, context_.watch.rank, signal);
    }
    return landed;
  }

  // Two buffers each for K and V. K of the next step is on its way during this step's scores, V during its product.
  LIQUIDCP_DEVICE void attend(const KvWalk& walk, Partial& partial) const {
    SoftmaxRows rows;
    for (auto& tile : partial.out) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
    if (walk.has(0)) {
      start_q();
      start_k(walk.step(0), 0);
      ptx::cp_async_commit();
      start_v(walk.step(0), 0);
      ptx::cp_async_commit();
      ptx::cp_async_wait<1>();
      __syncthreads();
      QueryOperands q(context_.smem + SMEM_Q, warp_ * 16, lane_);
      q.load();
      const SequenceDesc& sequence = context_.plan.sequences()[row_.sequence];
      const RowsMask mask(context_.plan.mask_data() + sequence.mask_base, sequence.mask_size, queries(), warp_ * 16,
                          lane_);
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
          multiply_qk(s, q, context_.smem + SMEM_K + buffer * STEP_BYTES, lane_);
          scale.cap(s);
          if (!view.all) hide_keys(s, view, lane_);
          rows.update(s, partial.out, scale.log2);
        }
        ptx::cp_async_wait<1>();  // V of this step
        __syncthreads();
        if (more) start_v(walk.step(i + 1), buffer ^ 1);
        ptx::cp_async_commit();
        if (warp_ == 0) walk.look_ahead(i + 1);
        if (view.any) multiply_pv(partial.out, s, context_.smem + SMEM_V + buffer * STEP_BYTES, lane_);
        if (!more) break;
      }
    }
    rows.finish(partial.out, partial.lse);
  }

  LIQUIDCP_DEVICE QueryRange queries() const {
    const SequenceDesc& sequence = context_.plan.sequences()[row_.sequence];
    const QTileDesc& tile = context_.plan.q_tiles()[q_tile_];
    return {tile.position, tile.position + sequence.kv_length - sequence.q_length, tile.rows};
  }

  LIQUIDCP_DEVICE void start_q() const {
    const QTileDesc& tile = context_.plan.q_tiles()[q_tile_];
    const RankParams& rank = context_.rank;
    const i64 element = tile.token * rank.q_token_stride + head_ * rank.q_head_stride;
    load_tile_async<config::BLOCK_Q>(context_.smem + SMEM_Q, static_cast<const u8*>(rank.q) + element * ELEMENT_BYTES,
                                     rank.q_token_stride * ELEMENT_BYTES, tile.rows);
  }
  LIQUIDCP_DEVICE void start_k(const KvStep& step, u32 buffer) const {
    load_tile_async<config::KV_STEP>(context_.smem + SMEM_K + buffer * STEP_BYTES, step.k,
                                     static_cast<i64>(step.k_stride) * 16, step.num_keys);
  }
  LIQUIDCP_DEVICE void start_v(const KvStep& step, u32 buffer) const {
    load_tile_async<config::KV_STEP>(context_.smem + SMEM_V + buffer * STEP_BYTES, step.v,
                                     static_cast<i64>(step.v_stride) * 16, step.num_keys);
  }

  const Context& context_;
  Claim claim_;
  const RowDesc& row_;
  i32 q_tile_, head_, lane_, warp_;
};

}  // namespace liquidcp
