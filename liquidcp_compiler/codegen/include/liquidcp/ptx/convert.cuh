#pragma once
// Arithmetic that C++ has no operator for.
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

// 2^x; of -inf it is exactly 0.
LIQUIDCP_DEVICE f32 ex2(f32 x) {
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x to one unit in the last place; of +inf it is 0.
LIQUIDCP_DEVICE f32 rcp(f32 x) {
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two floats, rounded to nearest even, `lo` in the low half.
LIQUIDCP_DEVICE u32 cvt_f16x2(f32 lo, f32 hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
LIQUIDCP_DEVICE u32 cvt_bf16x2(f32 lo, f32 hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

}  // namespace liquidcp::ptx
