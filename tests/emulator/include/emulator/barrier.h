#pragma once
// Barriers of a CTA: nobody goes on before all of its threads have come.
#include <emulator/scheduler.h>

namespace emulator {

// The "and" of all threads' `value`. `reduces`: whether the caller wants it; all must call the same kind.
inline bool barrier(bool value, bool reduces) {
  Cta& cta = *scheduler.current->cta;
  if (!cta.at_barrier.empty() && cta.barrier_reduces != reduces) {
    scheduler.fail("__syncthreads meets __syncthreads_and");
  }
  cta.barrier_reduces = reduces;
  cta.barrier_and = cta.barrier_and && value;
  cta.at_barrier.push_back(scheduler.current);
  if (static_cast<int>(cta.at_barrier.size()) == cta.num_threads) {
    cta.barrier_result = std::exchange(cta.barrier_and, true);
    for (Thread* thread : std::exchange(cta.at_barrier, {})) scheduler.resume(*thread);
  }
  // The result stands until all are past: the next barrier cannot fill up before.
  scheduler.wait("a barrier");
  return cta.barrier_result;
}

}  // namespace emulator
