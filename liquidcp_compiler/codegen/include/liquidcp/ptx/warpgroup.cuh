#pragma once
// What four warps do together (sm_90a): order of wgmma, registers, named barriers.
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LIQUIDCP_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most PENDING committed groups are under way.
template <i32 PENDING>
LIQUIDCP_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Ties registers to this place: reads of an accumulator stay behind the wait before it.
template <i32 N>
LIQUIDCP_DEVICE void pin(f32 (&x)[N]) {
#pragma unroll
  for (i32 i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

template <i32 REGISTERS>
LIQUIDCP_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <i32 REGISTERS>
LIQUIDCP_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Barrier `id` (1 .. 15) of `threads` threads.
LIQUIDCP_DEVICE void bar_sync(i32 id, i32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// 8 x 8 matrices of 16-bit elements, four of them, to the rows whose addresses the lanes give.
LIQUIDCP_DEVICE void stmatrix_x4(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
               "r"(d) : "memory");
}

}  // namespace liquidcp::ptx
