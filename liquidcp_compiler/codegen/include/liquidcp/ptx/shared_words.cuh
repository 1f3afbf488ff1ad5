#pragma once
// Words of shared memory that warps hand to each other, and zeros, by 32-bit address.
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE u32 ld_acquire_shared(u32 address) {
  u32 v;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
LIQUIDCP_DEVICE void st_release_shared(u32 address, u32 v) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
LIQUIDCP_DEVICE void st_shared_v4_zero(u32 address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

}  // namespace liquidcp::ptx
