#pragma once
// Which keys of a step a query row sees. Positions are indices in the sequence, those of queries counted from its keys'
// end (bottom-right alignment).
#include <liquidcp/attention/warp_gemm.cuh>

namespace liquidcp {

struct StepMask {
  i32 key_position;  // of the first key of the step
  i32 num_keys;      // keys that exist, 1 .. KV_STEP
  i32 q_position;    // of the warp's first row

  // Some of the warp's rows sees some key. Warp-uniform, like the next.
  LIQUIDCP_DEVICE bool any_visible() const { return !config::CAUSAL || key_position <= q_position + 15; }

  LIQUIDCP_DEVICE bool all_visible() const {
    return num_keys == config::KV_STEP && (!config::CAUSAL || key_position + config::KV_STEP - 1 <= q_position);
  }

  LIQUIDCP_DEVICE void apply(f32 (&s)[SCORE_TILES][4], i32 lane) const {
    const i32 column = 2 * (lane & 3);
    i32 end[2] = {num_keys - column, num_keys - column};
    if constexpr (config::CAUSAL) {
      const i32 seen = q_position + (lane >> 2) - key_position + 1 - column;
      end[0] = min_of(end[0], seen);
      end[1] = min_of(end[1], seen + 8);
    }
#pragma unroll
    for (i32 n = 0; n < SCORE_TILES; ++n) {
#pragma unroll
      for (i32 e = 0; e < 4; ++e) {
        if (8 * n + (e & 1) >= end[e >> 1]) s[n][e] = neg_inf();
      }
    }
  }
};

}  // namespace liquidcp
