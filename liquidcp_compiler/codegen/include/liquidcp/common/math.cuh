#pragma once
#include <liquidcp/common/types.cuh>

namespace liquidcp {

constexpr f32 LOG2_E = 1.4426950408889634f;
constexpr f32 LN_2 = 0.6931471805599453f;

LIQUIDCP_DEVICE f32 neg_inf() { return __int_as_float(0xff800000); }

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
