#pragma once
// The words of CUDA C++ that the kernel uses besides those of C++.
#include <emulator/barrier.h>
#include <emulator/warp.h>

#include <bit>
#include <cmath>

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

struct ThreadIdx {
  struct {
    operator unsigned() const { return static_cast<unsigned>(emulator::scheduler.current->idx); }
  } x;
};
struct BlockIdx {
  struct {
    operator unsigned() const { return static_cast<unsigned>(emulator::scheduler.current->cta->idx); }
  } x;
};
struct GridDim {
  struct {
    operator unsigned() const { return emulator::scheduler.num_ctas; }
  } x;
};
constexpr ThreadIdx threadIdx = {};
constexpr BlockIdx blockIdx = {};
constexpr GridDim gridDim = {};

inline void check_mask(unsigned mask) {
  if (mask != ~0u) emulator::scheduler.fail("warp operations of fewer than 32 lanes are not emulated");
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  check_mask(mask);
  return emulator::shuffle(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  check_mask(mask);
  return emulator::shuffle(value, emulator::lane() ^ bits);
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  check_mask(mask);
  return emulator::ballot(vote != 0);
}
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline void __syncwarp() { emulator::sync_warp(); }
inline void __syncthreads() { emulator::barrier(true, false); }
inline int __syncthreads_and(int value) { return emulator::barrier(value != 0, true); }
inline void __threadfence_system() {}

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
