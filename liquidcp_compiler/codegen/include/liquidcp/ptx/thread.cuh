#pragma once
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

// threadIdx.x, read anew at every call. The compiler keeps what follows from threadIdx.x alone in registers over the
// whole loop of a persistent kernel, a hundred addresses that a task needs once; what follows from this stays where it
// is.
LIQUIDCP_DEVICE i32 thread_idx() {
  i32 idx;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(idx));
  return idx;
}

}  // namespace liquidcp::ptx
