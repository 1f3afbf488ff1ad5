#pragma once
#include <liquidcp/attention/warp_gemm.cuh>

namespace liquidcp {

// The two rows of this thread: the largest score so far, in log2 units, and this thread's part of the sum of
// exponentials. The maximum is rounded once, and that number is subtracted everywhere: however large scores are, its
// error cancels.
struct SoftmaxRows {
  f32 row_max[2] = {neg_inf(), neg_inf()};
  f32 row_sum[2] = {0.0f, 0.0f};

  // Turns scores into probabilities relative to the new maximum and rescales what was summed before.
  LIQUIDCP_DEVICE void update(f32 (&s)[SCORE_TILES][4], f32 (&o)[OUT_TILES][4], f32 scale_log2) {
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      f32 best = neg_inf();
#pragma unroll
      for (i32 n = 0; n < SCORE_TILES; ++n) best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      best = fmaxf(row_max[r], quad_max(best) * scale_log2);
      const f32 reference = best == neg_inf() ? 0.0f : best;  // the row has seen no key yet
      const f32 correction = ptx::ex2(row_max[r] - reference);
      f32 sum = 0.0f;
#pragma unroll
      for (i32 n = 0; n < SCORE_TILES; ++n) {
#pragma unroll
        for (i32 e = 2 * r; e < 2 * r + 2; ++e) {
          s[n][e] = ptx::ex2(fmaf(s[n][e], scale_log2, -reference));
          sum += s[n][e];
        }
      }
      row_max[r] = best;
      row_sum[r] = row_sum[r] * correction + sum;
#pragma unroll
      for (i32 n = 0; n < OUT_TILES; ++n) {
        o[n][2 * r] *= correction;
        o[n][2 * r + 1] *= correction;
      }
    }
  }

  // Divides by the sums; lse is natural log. A row that saw no key becomes (0, -inf).
  LIQUIDCP_DEVICE void finish(f32 (&o)[OUT_TILES][4], f32 (&lse)[2]) const {
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const f32 sum = quad_sum(row_sum[r]);
      const bool empty = sum == 0.0f;  // a NaN is not empty: it must be seen
      const f32 inverse = empty ? 0.0f : ptx::rcp(sum);
      lse[r] = empty ? neg_inf() : row_max[r] * LN_2 + logf(sum);
#pragma unroll
      for (i32 n = 0; n < OUT_TILES; ++n) {
        o[n][2 * r] *= inverse;
        o[n][2 * r + 1] *= inverse;
      }
    }
  }
};

}  // namespace liquidcp
