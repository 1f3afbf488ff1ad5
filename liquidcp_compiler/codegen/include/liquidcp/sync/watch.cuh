#pragma once
// Bounded waits. The first wait of a launch that runs out of its budget says what it waited for and sets the abort
// word; every wait polls that word, so all CTAs return and the context lives on (a trap would kill it).
#include <liquidcp/generated/layout.cuh>
#include <liquidcp/ptx/clock.cuh>
#include <liquidcp/sync/epoch.cuh>

namespace liquidcp {

struct Watch {
  const KernelParams& params;
  u32 epoch;
  i32 rank, cta;
  CtaRole role;
  i32 task;  // what this CTA is at: index in `transfers` (comm) or `rows` (compute), -1: nothing

  LIQUIDCP_DEVICE bool aborted() const { return ptx::ld_relaxed_gpu(params.abort) == epoch; }

  // One thread. Reports (if it is the first) and aborts the launch.
  LIQUIDCP_DEVICE void fail(ErrorCode code, i32 peer, i32 index, u64 expected, u64 seen, u64 waited_ns) const {
    const u64 before = ptx::ld_relaxed_gpu(params.abort);
    if (before == epoch || ptx::atom_cas_relaxed_gpu(params.abort, before, epoch) != before) return;
    volatile ErrorBlock* e = params.error;
    e->rank = rank;
    e->cta = cta;
    e->role = static_cast<i32>(role);
    e->task = task;
    e->peer = peer;
    e->index = index;
    e->expected = expected;
    e->seen = seen;
    e->waited_ns = waited_ns;
    e->epoch = epoch;
    e->code = static_cast<i32>(code);
    __threadfence_system();
  }

  // One thread. Waits until `word` of `peer` has reached `expected` in this launch; false: the launch is given up.
  // What the writer released before is then visible to this thread, and through a barrier to its CTA.
  LIQUIDCP_DEVICE bool wait(const u64* word, u32 expected, ErrorCode code, i32 peer, i32 index) const {
    const u64 target = tagged(epoch, expected);
    if (expected == 0 || ptx::ld_acquire_sys(word) >= target) return true;
    const u64 start = ptx::globaltimer_ns();
    while (true) {
      const u64 seen = ptx::ld_acquire_sys(word);
      if (seen >= target) return true;
      if (aborted()) return false;
      const u64 waited = ptx::globaltimer_ns() - start;
      if (waited > params.budget_ns) {
        fail(code, peer, index, expected, value_of(seen, epoch), waited);
        return false;
      }
      ptx::nanosleep(100);
    }
  }
};

}  // namespace liquidcp
