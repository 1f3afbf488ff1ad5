#pragma once
// Faults on purpose, for tests: signals that never come, ranks that stop, delays that reorder everything. In a kernel
// built without faults every function here is empty.
#include <liquidcp/sync/watch.cuh>

namespace liquidcp {

// Places of a delay: each draws its own.
enum class DelayPoint : u32 { WAIT = 1, SIGNAL = 2, STAGE = 3, CLAIM = 4 };

LIQUIDCP_DEVICE u64 mix_bits(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

// Sleeps for a time that seed, launch, CTA, task and place give.
LIQUIDCP_DEVICE void fault_delay(const Watch& watch, DelayPoint point) {
  if constexpr (config::FAULTS) {
    const FaultPlan& faults = *watch.params.faults;
    const u32 longest = point == DelayPoint::STAGE ? faults.max_stage_delay_ns : faults.max_delay_ns;
    if (longest == 0) return;
    const u64 place = static_cast<u64>(watch.epoch) << 32 ^ static_cast<u64>(watch.rank * 4096 + watch.cta) << 12 ^
                      static_cast<u64>(watch.task + 1) << 3 ^ static_cast<u64>(point);
    const u64 end = ptx::globaltimer_ns() + mix_bits(mix_bits(place) ^ faults.seed) % longest;
    while (ptx::globaltimer_ns() < end && !watch.aborted()) ptx::nanosleep(100);
  }
}

// Is this signal to be left out?
LIQUIDCP_DEVICE bool fault_drops(const Watch& watch, FaultKind kind, i32 index) {
  if constexpr (config::FAULTS) {
    const FaultPlan& faults = *watch.params.faults;
    return faults.drop_kind == static_cast<i32>(kind) && (faults.drop_rank < 0 || faults.drop_rank == watch.rank) &&
           (faults.drop_index < 0 || faults.drop_index == index);
  } else {
    return false;
  }
}

// Does this CTA stop, now that it has done so many tasks?
LIQUIDCP_DEVICE bool fault_stops(const Watch& watch, i32 tasks_done) {
  if constexpr (config::FAULTS) {
    const FaultPlan& faults = *watch.params.faults;
    return faults.stop_rank == watch.rank && tasks_done >= faults.stop_after;
  } else {
    return false;
  }
}

}  // namespace liquidcp
