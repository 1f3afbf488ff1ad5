#pragma once
// Merge of two partial states (out, lse) of one row: the only place where it is written.
#include <liquidcp/common/math.cuh>
#include <liquidcp/ptx/convert.cuh>

namespace liquidcp {

struct MergeWeights {
  f32 a, b, lse;
};

// Natural-log lses. An empty state has lse -inf and weight exactly 0; two empty states stay empty.
LIQUIDCP_DEVICE MergeWeights merge_weights(f32 lse_a, f32 lse_b) {
  const f32 top = fmaxf(lse_a, lse_b);
  if (lse_a == neg_inf() && lse_b == neg_inf()) return {0.0f, 0.0f, neg_inf()};  // fmaxf would lose a NaN
  const f32 a = expf(lse_a - top), b = expf(lse_b - top);
  const f32 sum = a + b, inverse = ptx::rcp(sum);  // of 1 to 2
  return {a * inverse, b * inverse, top + logf(sum)};
}

// Selects: a weight of 0 takes nothing from its side, whatever lies there.
LIQUIDCP_DEVICE f32 merge(const MergeWeights& w, f32 a, f32 b) {
  return (w.a == 0.0f ? 0.0f : w.a * a) + (w.b == 0.0f ? 0.0f : w.b * b);
}

}  // namespace liquidcp
