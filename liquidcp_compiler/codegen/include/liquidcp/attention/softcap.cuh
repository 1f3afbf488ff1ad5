#pragma once
// Scores s become softcap * tanh(scale * s / softcap). tanh.approx is too coarse: 5e-4 of a softcap of 50 is an error
// of 0.025 in lse.
#include <liquidcp/attention/warp_gemm.cuh>

namespace liquidcp {

// Relative error below 1e-6 everywhere, so that the score's error does not grow with the softcap.
LIQUIDCP_DEVICE f32 tanh_of(f32 x) {
  if (fabsf(x) < 0.25f) {  // Taylor: the other form loses digits where it takes nearly 1 from 1
    const f32 square = x * x;
    const f32 rest = fmaf(fmaf(-17.0f / 315.0f, square, 2.0f / 15.0f), square, -1.0f / 3.0f);
    return fmaf(x * square, rest, x);
  }
  return fmaf(-2.0f, ptx::rcp(1.0f + ptx::ex2(x * (2.0f * LOG2_E))), 1.0f);
}

// What lies between a product q . k and an exponent of two.
struct ScoreScale {
  f32 before;  // q . k to the argument of tanh; 1 without softcap
  f32 log2;    // what then comes, q . k or its tanh, to exponents of two

  LIQUIDCP_DEVICE explicit ScoreScale(const KernelParams& params)
      : before(config::SOFTCAP ? params.softmax_scale / params.softcap : 1.0f),
        log2((config::SOFTCAP ? params.softcap : params.softmax_scale) * LOG2_E) {}

  template <i32 N>
  LIQUIDCP_DEVICE void cap(f32 (&s)[N]) const {
    if constexpr (config::SOFTCAP) {
#pragma unroll
      for (i32 i = 0; i < N; ++i) s[i] = tanh_of(s[i] * before);
    }
  }
  template <i32 N, i32 M>
  LIQUIDCP_DEVICE void cap(f32 (&s)[N][M]) const {
#pragma unroll
    for (i32 n = 0; n < N; ++n) cap(s[n]);
  }
};

}  // namespace liquidcp
