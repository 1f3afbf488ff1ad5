#pragma once
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE u64 globaltimer_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
LIQUIDCP_DEVICE i32 sm_idx() {
  i32 sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}
LIQUIDCP_DEVICE void nanosleep(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

}  // namespace liquidcp::ptx
