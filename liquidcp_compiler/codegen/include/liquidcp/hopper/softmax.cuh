#pragma once
// The softmax of one step on a warpgroup's accumulators. Nothing in here may branch: with the packing of the result it
// is one straight line, in which the compiler hides the sums and the packing between the exponentials.
#include <liquidcp/attention/combine.cuh>
#include <liquidcp/hopper/warpgroup_gemm.cuh>

namespace liquidcp::hopper {

// How far, in log2 units, scores may grow past the reference before it follows: probabilities stay below 2^8, and a
// step in which no row's reference moves rescales nothing.
constexpr f32 REFERENCE_SLACK = 8.0f;

// The two rows of a thread: what is subtracted from scores in log2 units, and this thread's part of the sum.
struct Rows {
  f32 reference[2], sum[2];

  LIQUIDCP_DEVICE void clear() {
    reference[0] = reference[1] = neg_inf();
    sum[0] = sum[1] = 0.0f;
  }
};

// Four chains, since a maximum takes several issues.
template <i32 ROW>
LIQUIDCP_DEVICE f32 row_max(const f32 (&s)[SCORES]) {
  f32 x[4];
#pragma unroll
  for (i32 i = 0; i < 4; ++i) x[i] = s[4 * (i >> 1) + (i & 1) + 2 * ROW];
#pragma unroll
  for (i32 n = 2; n < SCORES / 4; ++n) {
#pragma unroll
    for (i32 e = 0; e < 2; ++e) x[(n & 1) * 2 + e] = fmaxf(x[(n & 1) * 2 + e], s[4 * n + e + 2 * ROW]);
  }
  return quad_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
}

// Scores of one row to probabilities; returns whether its reference moved. `correction`: of what was summed before.
template <i32 ROW, bool MASK>
LIQUIDCP_DEVICE bool row_update(f32 (&s)[SCORES], Rows& rows, f32 scale_log2, f32& correction) {
  const f32 old = rows.reference[ROW], top = row_max<ROW>(s) * scale_log2;
  const bool moved = top - old > REFERENCE_SLACK;
  const f32 reference = moved ? top : old;
  const f32 subtracted = MASK && reference == neg_inf() ? 0.0f : reference;  // the row has seen no key yet
  correction = ptx::ex2(old - subtracted);
  rows.reference[ROW] = reference;
#pragma unroll
  for (i32 n = 0; n < SCORES / 4; ++n) {
#pragma unroll
    for (i32 e = 0; e < 2; ++e) {
      f32& x = s[4 * n + e + 2 * ROW];
      x = ptx::ex2(fmaf(x, scale_log2, -subtracted));
    }
  }
  return moved;
}

template <i32 ROW>
LIQUIDCP_DEVICE f32 row_sum(const f32 (&s)[SCORES]) {
  f32 a = 0.0f, b = 0.0f;
#pragma unroll
  for (i32 n = 0; n < SCORES / 4; ++n) {
    a += s[4 * n + 2 * ROW];
    b += s[4 * n + 1 + 2 * ROW];
  }
  return a + b;
}

LIQUIDCP_DEVICE void pack(u32 (&p)[PAIRS], const f32 (&s)[SCORES]) {
#pragma unroll
  for (i32 i = 0; i < PAIRS; ++i) p[i] = pack_pair(s[2 * i], s[2 * i + 1]);
}

// Both rows of a thread by their factors.
LIQUIDCP_DEVICE void scale_rows(f32 (&o)[OUTS], f32 first, f32 second) {
#pragma unroll
  for (i32 n = 0; n < OUTS / 4; ++n) {
    o[4 * n] *= first;
    o[4 * n + 1] *= first;
    o[4 * n + 2] *= second;
    o[4 * n + 3] *= second;
  }
}

}  // namespace liquidcp::hopper
