#pragma once
// What a masked step hides: scores of keys that a row does not see, and values past the end of a tile.
#include <liquidcp/attention/mask.cuh>
#include <liquidcp/hopper/softmax.cuh>
#include <liquidcp/ptx/tma.cuh>

namespace liquidcp::hopper {

// `rows`: of this warp.
LIQUIDCP_DEVICE void hide_scores(f32 (&s)[SCORES], const RowsMask& rows, i32 position, i32 num_keys, i32 lane) {
#pragma unroll
  for (i32 part = 0; part < config::KV_STEP / config::MASK_KEYS; ++part) {
    const KeyRange keys = {position + part * config::MASK_KEYS,
                           min_of(num_keys - part * config::MASK_KEYS, config::MASK_KEYS)};
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const KeyBits seen = rows.keys(r, keys) >> 2 * (lane & 3);  // bit 0 is this thread's first column
#pragma unroll
      for (i32 n = 0; n < config::MASK_KEYS / 8; ++n) {
#pragma unroll
        for (i32 e = 0; e < 2; ++e) {
          if ((seen >> (8 * n + e) & 1) == 0) s[4 * (part * config::MASK_KEYS / 8 + n) + 2 * r + e] = neg_inf();
        }
      }
    }
  }
}

// A hidden key's probability is 0, and 0 times NaN is NaN. Whole warpgroup; both write the same zeros.
LIQUIDCP_DEVICE void clear_values(u32 tile, i32 first_row, i32 thread) {
  const i32 num_chunks = (config::KV_STEP - first_row) * 8;
  for (i32 b = 0; b < COLUMN_BLOCKS; ++b) {
    for (i32 i = thread; i < num_chunks; i += 128) {
      ptx::st_shared_v4_zero(tile + b * KV_BLOCK_BYTES + first_row * 128 + i * 16);
    }
  }
  ptx::fence_proxy_async();
}

}  // namespace liquidcp::hopper
