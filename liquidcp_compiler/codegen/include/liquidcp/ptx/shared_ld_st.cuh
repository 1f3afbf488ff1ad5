#pragma once
// Floats in shared memory, by 32-bit address.
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

}  // namespace liquidcp::ptx
