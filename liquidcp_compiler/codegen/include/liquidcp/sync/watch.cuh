#pragma once
// Bounded waits. The first wait of a launch that runs out of its budget says what it waited for and sets the abort
// word; every wait polls that word, so all CTAs return and the context lives on (a trap would kill it). The word stays
// set until the host clears it, and launches that find it set do nothing.
#include <liquidcp/generated/config.cuh>
#include <liquidcp/generated/layout.cuh>
#include <liquidcp/ptx/clock.cuh>
#include <liquidcp/sync/epoch.cuh>

namespace liquidcp {

struct Watch {
  const KernelParams& params;
  u32 epoch;
  i32 rank, cta;
  CtaRole role;
  i32 task;  // what this CTA is at: an index in the role's table; -1: nothing
  u64* entry_waiters;  // how many CTAs of this rank wait for a peer that may not have been launched yet

  LIQUIDCP_DEVICE bool aborted() const { return ptx::ld_relaxed_gpu(params.abort) != 0; }

  // One thread. Reports (if it is the first) and aborts the launch.
  LIQUIDCP_DEVICE void fail(ErrorCode code, i32 peer, i32 index, u64 expected, u64 seen, u64 waited_ns) const {
    if (ptx::atom_cas_relaxed_gpu(params.abort, 0, epoch) != 0) return;
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
    e->fingerprint = PlanView(params.ranks[rank - params.first_rank].plan).header().fingerprint;
    __threadfence_system();  // the host reads the code first
    e->code = static_cast<i32>(code);
    __threadfence_system();
  }

  // Time since `start`. While a CTA of this rank waits for a peer's launch nothing else can be expected to move: that
  // time does not count.
  LIQUIDCP_DEVICE u64 waited_since(u64& start) const {
    const u64 now = ptx::globaltimer_ns();
    if (value_of(ptx::ld_relaxed_gpu(entry_waiters), epoch) > 0) start = now;
    return now - start;
  }

  // One thread. Waits until `word` of `peer` has reached `target`, and returns what it then holds; 0: the launch is
  // given up. What the writer released before is then visible to this thread, and through a barrier to its CTA.
  template <bool ENTRY = false>
  LIQUIDCP_DEVICE u64 wait_for(const u64* word, u64 target, ErrorCode code, i32 peer, i32 index) const {
    u64 seen = ptx::ld_acquire_sys(word);
    if (seen >= target) return seen;
    u64 start = ptx::globaltimer_ns();
    while (true) {
      seen = ptx::ld_acquire_sys(word);
      if (seen >= target) return seen;
      if (aborted()) return 0;
      const u64 waited = ENTRY ? ptx::globaltimer_ns() - start : waited_since(start);
      if (waited > (ENTRY ? params.entry_budget_ns : params.budget_ns)) {
        fail(code, peer, index, static_cast<u32>(target), value_of(seen, static_cast<u32>(target >> 32)), waited);
        return 0;
      }
      ptx::nanosleep(100);
    }
  }

  // The same for what comes with a peer's launch.
  LIQUIDCP_DEVICE u64 wait_for_entry(const u64* word, u64 target, ErrorCode code, i32 peer) const {
    const u64 seen = ptx::ld_acquire_sys(word);
    if (seen >= target) return seen;
    ptx::red_max_relaxed_gpu(entry_waiters, tagged(epoch, 0));
    ptx::atom_add_relaxed_gpu(entry_waiters, 1);
    const u64 result = wait_for<true>(word, target, code, peer, 0);
    ptx::atom_add_relaxed_gpu(entry_waiters, ~0ull);
    return result;
  }

  // For a value of this launch; false: the launch is given up.
  LIQUIDCP_DEVICE bool wait(const u64* word, u32 expected, ErrorCode code, i32 peer, i32 index) const {
    return expected == 0 || wait_for(word, tagged(epoch, expected), code, peer, index) != 0;
  }
};

}  // namespace liquidcp
