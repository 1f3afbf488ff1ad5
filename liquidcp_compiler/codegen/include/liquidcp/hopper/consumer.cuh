#pragma once
// A consumer warpgroup: one flat stream of steps across tasks. Each step issues the scores of the next tile and the
// product with the values of this one, then does the softmax of the next: the tensor cores always have work, and the
// end of a task hides behind the beginning of the next.
#include <liquidcp/attention/softcap.cuh>
#include <liquidcp/hopper/epilogue.cuh>
#include <liquidcp/hopper/hide.cuh>

namespace liquidcp::hopper {

class Consumer {
 public:
  LIQUIDCP_DEVICE Consumer(const Context& context, const RankMaps& maps, i32 half)
      : context_(context), maps_(maps), scale_(context.params), half_(half), thread_(ptx::thread_idx() & 127) {}

  LIQUIDCP_DEVICE void run() {
    if (!take()) return;
    first_step();
    while (true) {
      attend();
      if constexpr (config::Q_BUFFERS == 1) end_task(task_);
      flush_store();
      ++task_;
      if (!take()) break;
      if constexpr (config::Q_BUFFERS == 1) {
        ++step_;
        first_step();
      } else {
        step<true, true>();
      }
    }
    if constexpr (config::Q_BUFFERS > 1) end_task(task_ - 1);
    if (thread_ == 0) ptx::tma_wait();
  }

 private:
  LIQUIDCP_DEVICE i32 lane() const { return thread_ & 31; }
  LIQUIDCP_DEVICE i32 stage(u32 step) const { return static_cast<i32>(step % config::STAGES); }
  LIQUIDCP_DEVICE u32 parity(u32 step) const { return step / config::STAGES & 1; }
  LIQUIDCP_DEVICE u32 q_buffer(u32 task) const {
    return context_.smem + SMEM_Q + task % config::Q_BUFFERS * Q_BYTES;
  }
  LIQUIDCP_DEVICE const AttentionTask& slot(u32 task) const { return state().tasks[task % TASK_SLOTS]; }

  LIQUIDCP_DEVICE void warp_arrive(i32 place) const {
    if (lane() == 0) ptx::mbarrier_arrive(barrier(place));
  }
  // A stage of keys or values is free: all CTAs that load into it must know.
  LIQUIDCP_DEVICE void stage_arrive(i32 place) const {
    if constexpr (config::CLUSTER == 1) {
      warp_arrive(place);
    } else if (lane() < config::CLUSTER) {
      ptx::mbarrier_arrive_at(barrier(place), static_cast<u32>(lane()));
    }
  }

  // The next task's queries are there; false: there is none. How long that takes is the scheduler's to bound.
  LIQUIDCP_DEVICE bool take() {
    const i32 buffer = static_cast<i32>(task_ % config::Q_BUFFERS);
    wait_phase<false>(context_.watch, Q_FULL + buffer, task_ / config::Q_BUFFERS & 1);
    if (traces()) state().begin_ns[task_ % TASK_SLOTS] = trace_begin();
    const bool ended = state().ended[task_ % TASK_SLOTS] != 0 || look(state().broken) != 0;
    return !__shfl_sync(FULL_WARP, static_cast<i32>(ended), 0);
  }

  // All steps of the task after the one that is packed.
  LIQUIDCP_DEVICE void attend() {
    while (true) {
      while (next_ == NEXT_CLEAR) step<false, false>();
      if (next_ == NEXT_TASK) return;
      step<false, true>();
    }
  }

  // P of step_ is packed, its product with V not issued. NEW_TASK: the step after it is the first of task_, and the
  // finished task before goes out.
  template <bool NEW_TASK, bool MASK>
  LIQUIDCP_DEVICE void step() {
    ++step_;
    const i32 k = stage(step_), v = stage(step_ - 1);
    if (!k_ready_) wait_phase(context_.watch, K_FULL + k, parity(step_));
    const bool v_ready = ptx::mbarrier_test(barrier(V_FULL + v), parity(step_ - 1));
    if constexpr (NEW_TASK) describe_q();
    const u32 q_low = uniform(q_low_), k_low = uniform(k_low_), v_low = uniform(v_low_);
    ptx::pin(s_);
    ptx::pin(o_);
    ptx::wgmma_fence();
    issue_qk(s_, q_low, k_low);
    if (!v_ready) wait_phase(context_.watch, V_FULL + v, parity(step_ - 1));
    ptx::wgmma_fence();  // explicit: the compiler's own, after a branch, would serialise all products
    issue_pv(o_, p_, v_low);
    flush_store();
    const StepNote note = state().notes[k];
    next_ = uniform(note.next);
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    stage_arrive(K_EMPTY + k);
    prepare_next();
    scale_scores<MASK>(note);
    const Rows done = rows_;
    if constexpr (NEW_TASK) rows_.clear();
    f32 correction[2];
    bool moved = row_update<0, MASK>(s_, rows_, scale_.log2, correction[0]);
    moved |= row_update<1, MASK>(s_, rows_, scale_.log2, correction[1]);
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    stage_arrive(V_EMPTY + v);
    pack(p_, s_);
    rows_.sum[0] = rows_.sum[0] * correction[0] + row_sum<0>(s_);
    rows_.sum[1] = rows_.sum[1] * correction[1] + row_sum<1>(s_);
    if constexpr (NEW_TASK) {
      finish(done, task_ - 1);
      clear_out();
    } else if (__any_sync(FULL_WARP, moved)) {
      scale_rows(o_, correction[0], correction[1]);
    }
    if constexpr (MASK) clear_tail(note);
  }

  // The first step of a task with nothing to overlap it with.
  LIQUIDCP_DEVICE void first_step() {
    const i32 k = stage(step_);
    wait_phase(context_.watch, K_FULL + k, parity(step_));
    describe_q();
    const u32 q_low = uniform(q_low_);
    const u32 k_low = uniform(descriptor_low(ALONG_COLUMNS, context_.smem + SMEM_K + k * KV_BYTES));
    ptx::pin(s_);
    ptx::wgmma_fence();
    issue_qk(s_, q_low, k_low);
    const StepNote note = state().notes[k];
    next_ = uniform(note.next);
    ptx::wgmma_wait<0>();
    ptx::pin(s_);
    stage_arrive(K_EMPTY + k);
    scale_scores<true>(note);
    rows_.clear();
    clear_out();
    f32 correction;
    row_update<0, true>(s_, rows_, scale_.log2, correction);
    row_update<1, true>(s_, rows_, scale_.log2, correction);
    pack(p_, s_);
    rows_.sum[0] = row_sum<0>(s_);
    rows_.sum[1] = row_sum<1>(s_);
    prepare_next();
    clear_tail(note);
  }

  // The product that is left when no other task follows at once.
  LIQUIDCP_DEVICE void end_task(u32 task) {
    const i32 v = stage(step_);
    wait_phase(context_.watch, V_FULL + v, parity(step_));
    const u32 v_low = uniform(v_low_);
    ptx::pin(o_);
    ptx::wgmma_fence();
    issue_pv(o_, p_, v_low);
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    stage_arrive(V_EMPTY + v);
    finish(rows_, task);
  }

  // Descriptors of the next step, and whether its keys are there already, in the shadow of this one.
  LIQUIDCP_DEVICE void prepare_next() {
    const i32 k = stage(step_ + 1);
    k_ready_ = ptx::mbarrier_test(barrier(K_FULL + k), parity(step_ + 1));
    k_low_ = descriptor_low(ALONG_COLUMNS, context_.smem + SMEM_K + k * KV_BYTES);
    v_low_ = descriptor_low(ACROSS_ROWS, context_.smem + SMEM_V + stage(step_) * KV_BYTES);
  }
  LIQUIDCP_DEVICE void describe_q() {
    q_low_ = descriptor_low(ALONG_COLUMNS, q_buffer(task_) + half_ * WARPGROUP_ROWS * 128);
  }
  LIQUIDCP_DEVICE void clear_out() {
#pragma unroll
    for (i32 i = 0; i < OUTS; ++i) o_[i] = 0.0f;
  }

  template <bool MASK>
  LIQUIDCP_DEVICE void scale_scores(const StepNote& note) {
    scale_.cap(s_);
    if constexpr (MASK) {
      const AttentionTask& task = slot(task_);
      const SequenceDesc& sequence = context_.plan.sequences()[context_.plan.rows()[task.row].sequence];
      const i32 first_row = half_ * WARPGROUP_ROWS + (thread_ >> 5) * 16;
      const RowsMask rows(context_.plan.mask_data() + sequence.mask_base, sequence.mask_size, task.queries, first_row,
                          lane());
      hide_scores(s_, rows, note.position, note.num_keys, lane());
    }
  }

  // Behind everything that holds a lock: it waits for values.
  LIQUIDCP_DEVICE void clear_tail(const StepNote& note) {
    const i32 num_keys = __shfl_sync(FULL_WARP, note.num_keys, 0);
    if (num_keys == config::KV_STEP) return;
    flush_store();  // the values may come only after queries that want the place of those
    wait_phase(context_.watch, V_FULL + stage(step_), parity(step_));
    clear_values(context_.smem + SMEM_V + stage(step_) * KV_BYTES, num_keys, thread_);
    ptx::bar_sync(EPILOGUE_BARRIER + half_, 128);
  }

  // Sends a task out and frees its query buffer: at once, but for the warp whose stores still read it. That one looks
  // again when the next products are issued.
  LIQUIDCP_DEVICE void finish(const Rows& rows, u32 task) {
    record(TraceKind::COMPUTE, task);
    const bool storing = Epilogue(context_, maps_, slot(task), half_).finish(o_, rows, q_buffer(task));
    record(TraceKind::MERGE, task);
    storing_ = storing && thread_ < 32;
    stored_ = static_cast<i32>(task % config::Q_BUFFERS);
    if (!storing_) warp_arrive(Q_EMPTY + stored_);
  }
  // The first thread that attends keeps the timeline; it is the CTA's only one by now.
  LIQUIDCP_DEVICE bool traces() const { return config::TRACE && half_ == 0 && thread_ == 0; }
  LIQUIDCP_DEVICE void record(TraceKind kind, u32 task) {
    if (!traces()) return;
    u64& begin = state().begin_ns[task % TASK_SLOTS];
    trace_end(context_.params, context_.shared.num_records, kind, slot(task).row, slot(task).unit, begin);
    begin = trace_begin();
  }
  LIQUIDCP_DEVICE void flush_store() {
    if (!storing_) return;
    if (thread_ == 0) ptx::tma_wait_read();
    __syncwarp();
    warp_arrive(Q_EMPTY + stored_);
    storing_ = false;
  }

  const Context& context_;
  const RankMaps& maps_;
  const ScoreScale scale_;
  const i32 half_, thread_;
  f32 s_[SCORES], o_[OUTS];  // scores, then probabilities; running output
  u32 p_[PAIRS];             // probabilities as the tensor cores take them
  Rows rows_;
  u32 step_ = 0, task_ = 0, next_ = NEXT_TASK;
  u32 q_low_, k_low_, v_low_;  // descriptors of the next step
  bool k_ready_ = false, storing_ = false;
  i32 stored_ = 0;  // the query buffer that a store still reads
};

}  // namespace liquidcp::hopper
