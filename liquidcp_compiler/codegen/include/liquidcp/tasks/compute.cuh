#pragma once
// Attention of one query tile and head over the KV tiles of a claim. Portable: mma.sync and cp.async, sm_80 and up.
#include <liquidcp/attention/mask.cuh>
#include <liquidcp/attention/online_softmax.cuh>
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
        lane_(static_cast<i32>(threadIdx.x & 31)),
        warp_(static_cast<i32>(threadIdx.x >> 5)) {}

  // Whole CTA. False: the launch is given up.
  LIQUIDCP_DEVICE bool run() const {
    const u64 begin = trace_begin();
    if (!__syncthreads_and(wait_for_tiles())) return false;
    Partial partial;
    attend(partial);
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
  LIQUIDCP_DEVICE void attend(Partial& partial) const {
    SoftmaxRows rows;
    for (auto& tile : partial.out) tile[0] = tile[1] = tile[2] = tile[3] = 0.0f;
    KvWalk walk(context_, row_, head_ / context_.params.qheads_per_kvhead, claim_.lo, claim_.hi);
    if (walk.more()) {
      KvStep step = walk.take();
      start_q();
      start_k(step, walk.stride(), 0);
      ptx::cp_async_commit();
      start_v(step, walk.stride(), 0);
      ptx::cp_async_commit();
      ptx::cp_async_wait<1>();
      __syncthreads();
      u32 q[QK_STEPS][4];
      load_q(q, context_.smem + SMEM_Q, warp_ * 16, lane_);
      for (u32 buffer = 0;; buffer ^= 1) {
        const bool more = walk.more();
        const KvStep next = more ? walk.take() : step;
        ptx::cp_async_wait<1>();  // K of this step
        __syncthreads();          // also: all warps are done with the other K buffer
        if (more) start_k(next, walk.stride(), buffer ^ 1);
        ptx::cp_async_commit();
        f32 s[SCORE_TILES][4];
        const StepMask mask = {step.position, step.num_keys, q_position()};
        const bool visible = mask.any_visible();
        if (visible) {
          multiply_qk(s, q, context_.smem + SMEM_K + buffer * STEP_BYTES, lane_);
          if (!mask.all_visible()) mask.apply(s, lane_);
          rows.update(s, partial.out, softmax_scale_log2());
        }
        ptx::cp_async_wait<1>();  // V of this step
        __syncthreads();
        if (more) start_v(next, walk.stride(), buffer ^ 1);
        ptx::cp_async_commit();
        if (visible) multiply_pv(partial.out, s, context_.smem + SMEM_V + buffer * STEP_BYTES, lane_);
        if (!more) break;
        step = next;
      }
    }
    rows.finish(partial.out, partial.lse, context_.params.softmax_scale);
  }

  LIQUIDCP_DEVICE f32 softmax_scale_log2() const { return context_.params.softmax_scale * 1.4426950408889634f; }

  // Position of this warp's first row, counted like keys.
  LIQUIDCP_DEVICE i32 q_position() const {
    const SequenceDesc& sequence = context_.plan.sequences()[row_.sequence];
    return context_.plan.q_tiles()[q_tile_].position + sequence.kv_length - sequence.q_length + warp_ * 16;
  }

  LIQUIDCP_DEVICE void start_q() const {
    const QTileDesc& tile = context_.plan.q_tiles()[q_tile_];
    const i64 stride = static_cast<i64>(context_.params.num_heads_q) * ROW_BYTES;
    const u8* first = static_cast<const u8*>(context_.rank.q) + tile.token * stride + head_ * ROW_BYTES;
    load_tile_async<config::BLOCK_Q>(context_.smem + SMEM_Q, first, stride, tile.rows);
  }
  LIQUIDCP_DEVICE void start_k(const KvStep& step, i64 stride, u32 buffer) const {
    load_tile_async<config::KV_STEP>(context_.smem + SMEM_K + buffer * STEP_BYTES, step.k, stride, step.num_keys);
  }
  LIQUIDCP_DEVICE void start_v(const KvStep& step, i64 stride, u32 buffer) const {
    load_tile_async<config::KV_STEP>(context_.smem + SMEM_V + buffer * STEP_BYTES, step.v, stride, step.num_keys);
  }

  const Context& context_;
  Claim claim_;
  const RowDesc& row_;
  i32 q_tile_, head_, lane_, warp_;
};

}  // namespace liquidcp
