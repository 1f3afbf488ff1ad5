#pragma once
// Shared memory by 32-bit address.
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE void ld_shared_v4_f32(u32 address, f32 (&v)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(address) : "memory");
}
LIQUIDCP_DEVICE void ld_shared_v2_f32(u32 address, f32 (&v)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(address) : "memory");
}
LIQUIDCP_DEVICE void st_shared_v4_f32(u32 address, const f32 (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

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
