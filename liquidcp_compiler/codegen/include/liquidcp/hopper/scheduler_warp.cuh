#pragma once
// The first warp of a CTA: claims tasks a little ahead of the tensor cores and lists their steps, a lane a step. What
// no row of a query tile sees is never loaded.
#include <liquidcp/attention/mask.cuh>
#include <liquidcp/hopper/wait.cuh>
#include <liquidcp/tasks/claim_scan.cuh>
#include <liquidcp/sync/faults.cuh>
#include <liquidcp/tasks/kv_tiles.cuh>

namespace liquidcp::hopper {

// A task is claimed when so few listed steps are left to load: late, so that it may still go to an idle CTA, and early
// enough for the claim's latency.
constexpr u32 CLAIM_AHEAD = 8;

class SchedulerWarp {
 public:
  LIQUIDCP_DEVICE explicit SchedulerWarp(const Context& context)
      : context_(context), lane_(static_cast<i32>(threadIdx.x & 31)) {}

  // `going`: is there anything to be done at all?
  LIQUIDCP_DEVICE void run(bool going) {
    context_.watch.role = CtaRole::COMPUTE;
    context_.watch.task = -1;
    for (u32 task = 0;; ++task) {
      Claim claim = {};
      const bool room = wait_for_room(task);
      if (leads()) {
        going = going && room && !fault_stops(context_.watch, static_cast<i32>(task)) && next(claim) &&
                wait_for_tiles(claim);
        if (config::CLUSTER > 1) send(task, claim, going);
      } else {
        going = receive(task, claim);
      }
      if (!going) return end(task);
      claim.unit += static_cast<i32>(config::CLUSTER == 1 ? 0 : ptx::cluster_rank());
      list_steps(task, claim);
    }
  }

 private:
  // The first CTA of a cluster claims, the others follow; units are those of the cluster's first head.
  LIQUIDCP_DEVICE bool leads() const { return config::CLUSTER == 1 || ptx::cluster_rank() == 0; }

  LIQUIDCP_DEVICE void send(u32 task, const Claim& claim, bool going) const {
    const u32 slot = task % CLAIM_SLOTS, to = static_cast<u32>(__cvta_generic_to_shared(&state().claims[slot]));
    for (u32 rank = 1; rank < config::CLUSTER; ++rank) {
      if (lane_ != 0) continue;
      ptx::st_async_v4(to, barrier(CLAIM_FULL + static_cast<i32>(slot)), rank, going ? claim.row : -1, claim.unit,
                       claim.lo, claim.hi);
    }
    __syncwarp();
  }
  LIQUIDCP_DEVICE bool receive(u32 task, Claim& claim) const {
    const i32 slot = static_cast<i32>(task % CLAIM_SLOTS);
    if (lane_ == 0) ptx::mbarrier_expect(barrier(CLAIM_FULL + slot), sizeof(Claim));
    __syncwarp();
    wait_phase<false>(context_.watch, CLAIM_FULL + slot, task / CLAIM_SLOTS & 1);
    claim = state().claims[slot];
    context_.watch.task = claim.row;
    return __all_sync(FULL_WARP, claim.row >= 0 && look(state().broken) == 0);
  }

  LIQUIDCP_DEVICE bool next(Claim& claim) const {
    if (lane_ == 0) fault_delay(context_.watch, DelayPoint::CLAIM);
    __syncwarp();
    const bool found = ClaimScan(context_).next(claim);
    context_.watch.task = found ? claim.row : -1;
    return found;
  }

  // A slot for the task is free when the loader has begun with the task before, whose queries took the place of a task
  // that is over.
  LIQUIDCP_DEVICE bool wait_for_room(u32 task) const {
    if (task == 0) return true;
    return wait_count(state().tasks_started, task) &&
           (listed_ <= CLAIM_AHEAD || wait_count(state().taken, listed_ - CLAIM_AHEAD));
  }

  // Rows that do not form by readiness wait for each pulled tile; ready intervals never wait here.
  LIQUIDCP_DEVICE bool wait_for_tiles(const Claim& claim) const {
    const RowDesc& row = context_.plan.rows()[claim.row];
    bool landed = true;
    if (row.formation == static_cast<i32>(Formation::STATIC)) {
      for (i32 i = lane_; i < row.num_kv_tiles && landed; i += 32) {
        const i32 signal = context_.plan.kv_tiles()[context_.plan.kv_list()[row.kv_list + i]].signal;
        if (signal < 0) continue;
        fault_delay(context_.watch, DelayPoint::WAIT);
        landed = context_.watch.wait(context_.rank.signals + signal, context_.plan.signals()[signal].expected,
                                     ErrorCode::SIGNAL, context_.watch.rank, signal);
      }
    }
    return __all_sync(FULL_WARP, landed);
  }

  // From the last step to the first: what a causal mask cuts off then comes with the task's first step, which looks at
  // masks anyway. The last step of each round stays unpublished until it is known whether another one follows.
  LIQUIDCP_DEVICE void list_steps(u32 task, const Claim& claim) {
    AttentionTask& slot = state().tasks[task % TASK_SLOTS];
    if (lane_ == 0) {
      slot = make_task(context_, claim);
      state().ended[task % TASK_SLOTS] = 0;
    }
    __syncwarp();
    const RowDesc& row = context_.plan.rows()[claim.row];
    const SequenceDesc& sequence = context_.plan.sequences()[row.sequence];
    const i32* mask_data = context_.plan.mask_data() + sequence.mask_base;
    const TileMask hull(mask_data, sequence.mask_size, slot.queries);
    const TileCover cover(mask_data, sequence.mask_size, slot.queries);
    const u32 first = listed_;
    const i32 num_steps = (claim.hi - claim.lo) * STEPS_PER_TILE;
    for (i32 base = 0; base < num_steps; base += 32) {
      Step step = {};
      const i32 idx = base + lane_;
      const bool seen = idx < num_steps && open(row, sequence, claim.lo, num_steps - 1 - idx, step, hull, cover);
      put(seen, step, first);
    }
    if (listed_ == first) put(lane_ == 0, {0, 0, 0, MASKED}, first);  // a task that sees nothing takes a step too
    if (lane_ == 0) {
      state().steps[(listed_ - 1) % STEP_SLOTS].flags |= LAST;
      tell(state().published, listed_);
    }
    __syncwarp();
  }

  LIQUIDCP_DEVICE void put(bool seen, Step step, u32 first) {
    const u32 votes = __ballot_sync(FULL_WARP, seen);
    if (!wait_count(state().taken, listed_ + 32 - STEP_SLOTS)) return;
    const u32 place = listed_ + __popc(votes & ((1u << lane_) - 1));
    if (place == first) step.flags |= FIRST;
    if (seen) state().steps[place % STEP_SLOTS] = step;
    listed_ += __popc(votes);
    __syncwarp();
    if (lane_ == 0 && listed_ != first) tell(state().published, listed_ - 1);
  }

  // False: the tile ends before this step, or no row of the query tile sees any of it.
  LIQUIDCP_DEVICE bool open(const RowDesc& row, const SequenceDesc& sequence, i32 first_tile, i32 idx, Step& step,
                            const TileMask& hull, const TileCover& cover) const {
    const i32 index = physical_tile(context_, row, sequence, first_tile + idx / STEPS_PER_TILE);
    const KvTileDesc& tile = context_.plan.kv_tiles()[index];
    const i32 skip = idx % STEPS_PER_TILE * config::KV_STEP;
    if (skip >= tile.rows) return false;
    step.token = tile.token + skip;
    step.position = tile.position + skip;
    step.num_keys = min_of(tile.rows - skip, config::KV_STEP);
    const KeyRange keys = {step.position, step.num_keys};
    step.flags = (cover.sees_all(keys) ? 0 : MASKED) |
                 (index < context_.plan.header().num_local_kv_tiles ? 0 : PULLED);
    return hull.sees(keys);
  }

  LIQUIDCP_DEVICE void end(u32 task) {
    wait_for_room(task);
    if (lane_ == 0) state().ended[task % TASK_SLOTS] = 1;
    put(lane_ == 0, {0, 0, 0, END}, listed_);
    if (lane_ == 0) tell(state().published, listed_);
    __syncwarp();
  }

  const Context& context_;
  const i32 lane_;
  u32 listed_ = 0;
};

}  // namespace liquidcp::hopper
