#pragma once
// Records for a timeline, one a task, in a buffer of each CTA. In a kernel built without a trace nothing is left of it.
#include <liquidcp/generated/config.cuh>
#include <liquidcp/generated/layout.cuh>
#include <liquidcp/ptx/clock.cuh>

namespace liquidcp {

LIQUIDCP_DEVICE u64 trace_begin() { return config::TRACE ? ptx::globaltimer_ns() : 0; }

// One thread of the CTA, always the same. `count` is the CTA's number of records so far.
LIQUIDCP_DEVICE void trace_end(const KernelParams& params, u32& count, TraceKind kind, i32 task, i32 unit,
                               u64 begin_ns) {
  if constexpr (config::TRACE) {
    if (count < static_cast<u32>(params.trace_capacity)) {
      const i64 slot = static_cast<i64>(blockIdx.x) * params.trace_capacity + count;
      params.trace[slot] = {begin_ns, ptx::globaltimer_ns(), static_cast<i32>(kind), task, unit, ptx::sm_idx()};
    }
    ++count;
  }
}

}  // namespace liquidcp
