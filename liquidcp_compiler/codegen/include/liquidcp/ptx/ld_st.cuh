#pragma once
// Loads, stores and atomics with an explicit order and scope; one instruction a function, named after it.
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE u64 ld_relaxed_gpu(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
LIQUIDCP_DEVICE u64 ld_acquire_gpu(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
LIQUIDCP_DEVICE u64 ld_acquire_sys(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
LIQUIDCP_DEVICE void st_relaxed_gpu(u64* p, u64 v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
LIQUIDCP_DEVICE void st_release_gpu(u64* p, u64 v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
LIQUIDCP_DEVICE void st_release_sys(u64* p, u64 v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

LIQUIDCP_DEVICE u64 atom_cas_relaxed_gpu(u64* p, u64 compare, u64 value) {
  u64 old;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old) : "l"(p), "l"(compare), "l"(value) : "memory");
  return old;
}
LIQUIDCP_DEVICE u64 atom_cas_acquire_gpu(u64* p, u64 compare, u64 value) {
  u64 old;
  asm volatile("atom.acquire.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old) : "l"(p), "l"(compare), "l"(value) : "memory");
  return old;
}
LIQUIDCP_DEVICE u64 atom_cas_acq_rel_gpu(u64* p, u64 compare, u64 value) {
  u64 old;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old) : "l"(p), "l"(compare), "l"(value) : "memory");
  return old;
}
LIQUIDCP_DEVICE u64 atom_add_relaxed_gpu(u64* p, u64 value) {
  u64 old;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(value) : "memory");
  return old;
}
LIQUIDCP_DEVICE u64 atom_add_acq_rel_gpu(u64* p, u64 value) {
  u64 old;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(value) : "memory");
  return old;
}
LIQUIDCP_DEVICE void red_max_relaxed_gpu(u64* p, u64 value) {
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}
LIQUIDCP_DEVICE void red_max_release_gpu(u64* p, u64 value) {
  asm volatile("red.release.gpu.global.max.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}
LIQUIDCP_DEVICE void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

struct Vec16 {  // 16 bytes
  u32 x, y, z, w;
};
// Weak, so that an acquire before it orders it; kept out of L1, which a copy would only flush.
LIQUIDCP_DEVICE Vec16 ld_v4_stream(const void* p) {
  Vec16 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
LIQUIDCP_DEVICE void st_v4(void* p, Vec16 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
LIQUIDCP_DEVICE Vec16 ld_shared_v4(u32 address) {
  Vec16 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

// Floats of a running state: written by one CTA, read by another one of the same launch.
LIQUIDCP_DEVICE f32 ld_relaxed_gpu_f32(const f32* p) {
  f32 v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
LIQUIDCP_DEVICE void ld_relaxed_gpu_v4_f32(const f32* p, f32 (&v)[4]) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(p) : "memory");
}
LIQUIDCP_DEVICE void st_relaxed_gpu_f32(f32* p, f32 v) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
LIQUIDCP_DEVICE void st_relaxed_gpu_v4_f32(f32* p, const f32 (&v)[4]) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]),
               "f"(v[3]) : "memory");
}

}  // namespace liquidcp::ptx
