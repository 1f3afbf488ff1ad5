#pragma once
// READY and DONE: what ranks tell each other about the inputs of a launch, in pages that peers read and write.
//
// An owner has two slots to stage in, by parity of the epoch, and a READY for each = epoch and a mark of the plan: keys
// and values of that launch are staged. DONE of a reader, one word for each owner and reader, = epoch: the reader has
// pulled all that it needs. An owner stages in epoch e when every reader is done with e - 2, so a READY says e for as
// long as its slot holds what was staged in e.
#include <liquidcp/sync/faults.cuh>

namespace liquidcp {

// Names a plan in the value of READY; never 0.
LIQUIDCP_DEVICE u32 plan_mark(const PlanView& plan) { return static_cast<u32>(plan.header().fingerprint) | 1; }

// One thread of the CTA that has staged the last tile.
LIQUIDCP_DEVICE void publish_ready(const Watch& watch, const PlanView& plan) {
  fault_delay(watch, DelayPoint::SIGNAL);
  if (fault_drops(watch, FaultKind::READY, 0)) return;
  u64* ready = watch.params.peers[watch.rank].page + (watch.epoch & 1);
  ptx::st_release_sys(ready, tagged(watch.epoch, plan_mark(plan)));
}

// One thread. Has the peer staged, and for the same plan?
LIQUIDCP_DEVICE bool wait_ready(const Watch& watch, const PlanView& plan, i32 peer) {
  fault_delay(watch, DelayPoint::WAIT);
  const u64* word = watch.params.peers[peer].page + (watch.epoch & 1);
  const u64 seen = watch.wait_for_entry(word, tagged(watch.epoch, 1), ErrorCode::READY, peer);
  if (seen == 0) return false;
  if (static_cast<u32>(seen) == plan_mark(plan)) return true;
  watch.fail(ErrorCode::FINGERPRINT, peer, 0, plan_mark(plan), static_cast<u32>(seen), 0);
  return false;
}

// One thread: this rank has pulled all that it needs in this launch.
LIQUIDCP_DEVICE void publish_done(const Watch& watch) {
  fault_delay(watch, DelayPoint::SIGNAL);
  if (fault_drops(watch, FaultKind::DONE, 0)) return;
  for (i32 peer = 0; peer < watch.params.world; ++peer) {
    if (peer == watch.rank) continue;
    const i32 reader = watch.params.mirror != 0 ? peer : watch.rank;
    ptx::st_release_sys(watch.params.peers[peer].page + PAGE_DONE + reader, tagged(watch.epoch, 1));
  }
}

// Whole CTA, one thread a reader: may the slot of this launch be overwritten?
LIQUIDCP_DEVICE bool wait_done(const Watch& watch) {
  const i32 reader = static_cast<i32>(threadIdx.x);
  bool done = true;
  if (watch.epoch > 2 && reader < watch.params.world && reader != watch.rank) {
    const u64* word = watch.params.peers[watch.rank].page + PAGE_DONE + reader;
    done = watch.wait_for_entry(word, tagged(watch.epoch - 2, 1), ErrorCode::DONE, reader) != 0;
  }
  return __syncthreads_and(done);
}

}  // namespace liquidcp
