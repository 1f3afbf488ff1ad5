#pragma once
#include <liquidcp/common/types.cuh>
#include <liquidcp/generated/config.cuh>

namespace liquidcp {

LIQUIDCP_DEVICE f32 neg_inf() { return __int_as_float(0xff800000); }

// 2^x; exp2(-inf) is exactly 0.
LIQUIDCP_DEVICE f32 exp2_fast(f32 x) {
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as one register of the problem's 16-bit type, `lo` in the low half.
LIQUIDCP_DEVICE u32 pack_pair(f32 lo, f32 hi) {
  u32 r;
  if constexpr (config::FP16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  }
  return r;
}

// Over the four lanes that hold one row of an accumulator.
LIQUIDCP_DEVICE f32 quad_max(f32 x) {
  x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
  return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}
LIQUIDCP_DEVICE f32 quad_sum(f32 x) {
  x += __shfl_xor_sync(FULL_WARP, x, 1);
  return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

}  // namespace liquidcp
