#pragma once
// Emulated: memory is sequentially consistent, since one fiber runs at a time; protocol words and copies are places
// where another one may come between. Orders and scopes are not emulated.
#include <emulator/memory.h>
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE u64 emulated_load(const u64* p) {
  emulator::check_global(p, 8);
  emulator::scheduler.maybe_yield();
  return *p;
}
LIQUIDCP_DEVICE void emulated_store(u64* p, u64 v) {
  emulator::check_global(p, 8);
  emulator::scheduler.maybe_yield();
  *p = v;
}
LIQUIDCP_DEVICE u64 emulated_cas(u64* p, u64 compare, u64 value) {
  const u64 old = emulated_load(p);
  if (old == compare) *p = value;
  return old;
}
LIQUIDCP_DEVICE void emulated_max(u64* p, u64 value) {
  if (emulated_load(p) < value) *p = value;
}
template <class T>
LIQUIDCP_DEVICE T emulated_read(const void* p) {
  emulator::check_global(p, sizeof(T));
  T value;
  memcpy(&value, p, sizeof(T));
  return value;
}

LIQUIDCP_DEVICE u64 ld_relaxed_gpu(const u64* p) { return emulated_load(p); }
LIQUIDCP_DEVICE u64 ld_acquire_gpu(const u64* p) { return emulated_load(p); }
LIQUIDCP_DEVICE u64 ld_acquire_sys(const u64* p) { return emulated_load(p); }
LIQUIDCP_DEVICE void st_relaxed_gpu(u64* p, u64 v) { emulated_store(p, v); }
LIQUIDCP_DEVICE void st_release_gpu(u64* p, u64 v) { emulated_store(p, v); }
LIQUIDCP_DEVICE void st_release_sys(u64* p, u64 v) { emulated_store(p, v); }

LIQUIDCP_DEVICE u64 atom_cas_relaxed_gpu(u64* p, u64 compare, u64 value) { return emulated_cas(p, compare, value); }
LIQUIDCP_DEVICE u64 atom_cas_acquire_gpu(u64* p, u64 compare, u64 value) { return emulated_cas(p, compare, value); }
LIQUIDCP_DEVICE u64 atom_cas_acq_rel_gpu(u64* p, u64 compare, u64 value) { return emulated_cas(p, compare, value); }
LIQUIDCP_DEVICE u64 atom_add_relaxed_gpu(u64* p, u64 value) {
  const u64 old = emulated_load(p);
  *p = old + value;
  return old;
}
LIQUIDCP_DEVICE u64 atom_add_acq_rel_gpu(u64* p, u64 value) { return atom_add_relaxed_gpu(p, value); }
LIQUIDCP_DEVICE void red_max_relaxed_gpu(u64* p, u64 value) { emulated_max(p, value); }
LIQUIDCP_DEVICE void red_max_release_gpu(u64* p, u64 value) { emulated_max(p, value); }
LIQUIDCP_DEVICE void fence_acq_rel_gpu() {}

struct Vec16 {
  u32 x, y, z, w;
};
LIQUIDCP_DEVICE Vec16 ld_v4_stream(const void* p) {
  emulator::scheduler.maybe_yield();
  return emulated_read<Vec16>(p);
}
LIQUIDCP_DEVICE void st_v4(void* p, Vec16 v) {
  emulator::check_global(p, 16);
  emulator::scheduler.maybe_yield();
  memcpy(p, &v, 16);
}
LIQUIDCP_DEVICE Vec16 ld_shared_v4(u32 address) {
  return emulated_read<Vec16>(emulator::shared_bytes(address, 16));
}

LIQUIDCP_DEVICE f32 ld_relaxed_gpu_f32(const f32* p) { return emulated_read<f32>(p); }
LIQUIDCP_DEVICE void ld_relaxed_gpu_v4_f32(const f32* p, f32 (&v)[4]) {
  emulator::check_global(p, 16);
  memcpy(v, p, 16);
}
LIQUIDCP_DEVICE void st_relaxed_gpu_f32(f32* p, f32 v) { *p = v; }
LIQUIDCP_DEVICE void st_relaxed_gpu_v4_f32(f32* p, const f32 (&v)[4]) {
  emulator::check_global(p, 16);
  memcpy(p, v, 16);
}

}  // namespace liquidcp::ptx
