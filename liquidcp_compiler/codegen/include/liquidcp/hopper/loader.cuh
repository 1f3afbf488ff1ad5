#pragma once
// One thread that brings the tiles of the listed steps into shared memory. Values trail keys by one step, also from a
// task to the next: consumers multiply with the keys of a step before they need the values of the one before it.
#include <liquidcp/hopper/wait.cuh>
#include <liquidcp/ptx/tma.cuh>

namespace liquidcp::hopper {

class Loader {
 public:
  LIQUIDCP_DEVICE Loader(const Context& context, const RankMaps& maps) : context_(context), maps_(maps) {}

  LIQUIDCP_DEVICE void run() {
    Step before = {};
    i32 head = 0, head_before = 0;
    for (u32 i = 0, task = 0;; ++i) {
      // Values wait for nothing that may take long. With one query buffer a task must end before the next begins.
      bool pending = i > 0;
      if (pending && (static_cast<i32>(look(state().published) - i) <= 0 || values_first(i))) {
        load_values(i - 1, before, head_before);
        pending = false;
      }
      if (!wait_count(state().published, i + 1)) return;
      const Step step = state().steps[i % STEP_SLOTS];
      if ((step.flags & END) != 0) {
        if (pending) load_values(i - 1, before, head_before);
        return end(task);
      }
      if ((step.flags & FIRST) != 0) head = load_queries(task++);
      load_keys(i, step, head);
      if (pending) load_values(i - 1, before, head_before);
      before = step;
      head_before = head;
      tell(state().taken, i + 1);
    }
  }

 private:
  LIQUIDCP_DEVICE static bool values_first(u32 i) {
    return config::Q_BUFFERS == 1 && (state().steps[i % STEP_SLOTS].flags & FIRST) != 0;
  }

  // Returns the task's KV head.
  LIQUIDCP_DEVICE i32 load_queries(u32 task) const {
    const i32 buffer = static_cast<i32>(task % config::Q_BUFFERS);
    wait_phase(context_.watch, Q_EMPTY + buffer, (task / config::Q_BUFFERS & 1) ^ 1);
    const AttentionTask& slot = state().tasks[task % TASK_SLOTS];
    const u32 full = barrier(Q_FULL + buffer), to = context_.smem + SMEM_Q + buffer * Q_BYTES;
    const i32 token = context_.plan.q_tiles()[slot.q_tile].token;
    ptx::fence_proxy_async_all();  // keys that other CTAs stored with ordinary stores, read by the copy engine
    ptx::mbarrier_expect(full, Q_BYTES);
#pragma unroll
    for (i32 b = 0; b < COLUMN_BLOCKS; ++b) {
      ptx::tma_load(to + b * Q_BLOCK_BYTES, maps_.q, full, b * 64, slot.head, token);
    }
    tell(state().tasks_started, task + 1);
    return slot.kv_head;
  }

  LIQUIDCP_DEVICE void load_keys(u32 i, const Step& step, i32 head) const {
    const i32 stage = static_cast<i32>(i % config::STAGES);
    u32 next = NEXT_TASK;
    if ((step.flags & LAST) == 0) {
      wait_count(state().published, i + 2);
      next = (state().steps[(i + 1) % STEP_SLOTS].flags & MASKED) != 0 ? NEXT_MASKED : NEXT_CLEAR;
    }
    wait_phase(context_.watch, K_EMPTY + stage, (i / config::STAGES & 1) ^ 1);
    state().notes[stage] = {step.position, step.num_keys, next};
    load_tile((step.flags & PULLED) != 0 ? maps_.kv_buffer_k : maps_.k, K_FULL + stage, SMEM_K + stage * KV_BYTES, step,
              head);
  }

  LIQUIDCP_DEVICE void load_values(u32 i, const Step& step, i32 head) const {
    const i32 stage = static_cast<i32>(i % config::STAGES);
    wait_phase(context_.watch, V_EMPTY + stage, (i / config::STAGES & 1) ^ 1);
    load_tile((step.flags & PULLED) != 0 ? maps_.kv_buffer_v : maps_.v, V_FULL + stage, SMEM_V + stage * KV_BYTES, step,
              head);
  }

  // Rows past the tile's end are whatever lies there; consumers hide those keys and clear those values. In a cluster
  // each CTA brings its part of the rows to all.
  LIQUIDCP_DEVICE void load_tile(const TensorMap& map, i32 place, u32 to, const Step& step, i32 head) const {
    const u32 full = barrier(place);
    if (step.num_keys == 0) return ptx::mbarrier_arrive(full);
    ptx::mbarrier_expect(full, KV_BYTES);
#pragma unroll
    for (i32 b = 0; b < COLUMN_BLOCKS; ++b) {
      const u32 block = context_.smem + to + b * KV_BLOCK_BYTES;
      if constexpr (config::CLUSTER == 1) {
        ptx::tma_load(block, map, full, b * 64, head, step.token);
      } else {
        constexpr i32 ROWS = config::KV_STEP / config::CLUSTER;
        const i32 first = static_cast<i32>(ptx::cluster_rank()) * ROWS;
        ptx::tma_load_multicast(block + first * 128, map, full, (1 << config::CLUSTER) - 1, b * 64, head,
                                step.token + first);
      }
    }
  }

  LIQUIDCP_DEVICE void end(u32 task) const {
    const i32 buffer = static_cast<i32>(task % config::Q_BUFFERS);
    wait_phase(context_.watch, Q_EMPTY + buffer, (task / config::Q_BUFFERS & 1) ^ 1);
    ptx::mbarrier_arrive(barrier(Q_FULL + buffer));
  }

  const Context& context_;
  const RankMaps& maps_;
};

}  // namespace liquidcp::hopper
