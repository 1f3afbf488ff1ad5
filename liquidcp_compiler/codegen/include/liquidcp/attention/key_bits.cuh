#pragma once
// Sets of the keys of one step, a bit a key, and what a warp needs to know of its rows.
#include <liquidcp/attention/kv_step.cuh>
#include <liquidcp/attention/warp_gemm.cuh>

namespace liquidcp {

// The rows of a query tile.
struct QueryRange {
  i32 index;     // of its first row among the queries of its sequence
  i32 position;  // of that row, counted like keys
  i32 rows;
};

template <i32 BITS>
struct Unsigned;
template <>
struct Unsigned<32> {
  using Type = u32;
};
template <>
struct Unsigned<64> {
  using Type = u64;
};
using KeyBits = Unsigned<config::MASK_KEYS>::Type;
constexpr KeyBits ALL_KEYS = ~KeyBits{0};

// The first `n` keys: none for n <= 0, all from MASK_KEYS on.
LIQUIDCP_DEVICE KeyBits first_keys(i32 n) {
  return n <= 0 ? 0 : n >= config::MASK_KEYS ? ALL_KEYS : (KeyBits{1} << n) - 1;
}

// How the warp's 16 rows see a step; the same in all lanes.
struct StepView {
  bool any, all;  // some row sees some key; every row sees MASK_KEYS keys
};

// What is hidden gets the score -inf, and so the probability 0. `mask.keys(r, step)`: what this thread's row lane / 4
// + 8 r sees.
template <class Mask>
LIQUIDCP_DEVICE void hide_keys(f32 (&s)[SCORE_TILES][4], const Mask& mask, const KvStep& step, i32 lane) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    const KeyBits seen = mask.keys(r, step) >> 2 * (lane & 3);  // bit 0 is this thread's first column
#pragma unroll
    for (i32 n = 0; n < SCORE_TILES; ++n) {
#pragma unroll
      for (i32 e = 0; e < 2; ++e) {
        if ((seen >> (8 * n + e) & 1) == 0) s[n][2 * r + e] = neg_inf();
      }
    }
  }
}

}  // namespace liquidcp
