#pragma once
// Waits within a CTA. Nobody leaves early: whoever gives a launch up ends the stream of steps, and what is under way is
// worked off. Only a barrier that does not come at all ends that.
#include <liquidcp/hopper/shared_state.cuh>
#include <liquidcp/sync/watch.cuh>

namespace liquidcp::hopper {

// How much longer than other waits these may last: what they wait for may itself be waiting for another CTA.
constexpr u64 BUDGET_FACTOR = 4;

// Until phase `parity` of a barrier is over. BOUNDED: a barrier that does not come in time breaks the CTA, which
// reports it when all its roles have returned. Else whoever completes it has a budget of its own.
template <bool BOUNDED>
LIQUIDCP_DEVICE void wait_longer(const Watch& watch, i32 place, u32 parity) {
  const u64 start = ptx::globaltimer_ns();
  while (!ptx::mbarrier_try(barrier(place), parity)) {
    if (look(state().broken) != 0) return;
    if (!BOUNDED || ptx::globaltimer_ns() - start < BUDGET_FACTOR * watch.params.budget_ns) continue;
    tell(state().broken, static_cast<u32>(place) + 1);
  }
}

// One thread, when all roles have returned.
LIQUIDCP_DEVICE void report_broken(const Watch& watch) {
  const u32 broken = state().broken;
  if (broken == 0) return;
  watch.fail(ErrorCode::PIPELINE, watch.rank, static_cast<i32>(broken) - 1, 1, 0,
             BUDGET_FACTOR * watch.params.budget_ns);
}

template <bool BOUNDED = true>
LIQUIDCP_DEVICE void wait_phase(const Watch& watch, i32 place, u32 parity) {
  if (!ptx::mbarrier_try(barrier(place), parity)) wait_longer<BOUNDED>(watch, place, parity);
}

// Until the list of steps or the loader has come so far; false: it never will.
LIQUIDCP_DEVICE bool wait_count(const u32& word, u32 count) {
  while (static_cast<i32>(look(word) - count) < 0) {
    if (look(state().broken) != 0) return false;
    ptx::nanosleep(32);
  }
  return true;
}

}  // namespace liquidcp::hopper
