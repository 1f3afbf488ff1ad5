#pragma once
// The two products of one warp: 16 query rows against KV_STEP keys.
// Accumulators: s[n][0..1] are columns 8n + 2 (lane % 4) and the next of row lane / 4, s[n][2..3] of that row + 8.
#include <liquidcp/attention/smem_tile.cuh>
#include <liquidcp/common/math.cuh>
#include <liquidcp/ptx/convert.cuh>

namespace liquidcp {

constexpr i32 SCORE_TILES = config::KV_STEP / 8;   // accumulators of S
constexpr i32 OUT_TILES = config::HEAD_DIM / 8;    // accumulators of O
constexpr i32 QK_STEPS = config::HEAD_DIM / 16;
constexpr i32 PV_STEPS = config::KV_STEP / 16;
constexpr bool Q_IN_REGISTERS = config::HEAD_DIM <= 128;  // else the accumulators of O leave no room for it

// Two floats as one register of the problem's 16-bit type, `lo` in the low half.
LIQUIDCP_DEVICE u32 pack_pair(f32 lo, f32 hi) {
  return config::FP16 ? ptx::cvt_f16x2(lo, hi) : ptx::cvt_bf16x2(lo, hi);
}

// The 16 query rows of a warp as A operands, one for every 16 elements of a row.
class QueryOperands {
 public:
  LIQUIDCP_DEVICE QueryOperands(u32 tile, i32 first_row, i32 lane)
      : tile_(tile), row_(first_row + (lane & 15)), half_(lane >> 4) {}

  // Once the tile has landed.
  LIQUIDCP_DEVICE void load() {
    if constexpr (Q_IN_REGISTERS) {
#pragma unroll
      for (i32 k = 0; k < QK_STEPS; ++k) read(k, kept_[k]);
    }
  }

  LIQUIDCP_DEVICE void operand(i32 k, u32 (&a)[4]) const {
    if constexpr (Q_IN_REGISTERS) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) a[i] = kept_[k][i];
    } else {
      read(k, a);
    }
  }

 private:
  LIQUIDCP_DEVICE void read(i32 k, u32 (&a)[4]) const {
    ptx::ldmatrix_x4(a, chunk_address(tile_, row_, 2 * k + half_));
  }

  u32 tile_;
  i32 row_, half_;
  u32 kept_[Q_IN_REGISTERS ? QK_STEPS : 1][4];
};

// S = Q K^T
LIQUIDCP_DEVICE void multiply_qk(f32 (&s)[SCORE_TILES][4], const QueryOperands& q, u32 tile_k, i32 lane) {
#pragma unroll
  for (i32 n = 0; n < SCORE_TILES; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
  const i32 key = (lane >> 4) * 8 + (lane & 7), half = lane >> 3 & 1;
#pragma unroll
  for (i32 k = 0; k < QK_STEPS; ++k) {
    u32 a[4];
    q.operand(k, a);
#pragma unroll
    for (i32 n = 0; n < SCORE_TILES / 2; ++n) {
      u32 b[4];
      ptx::ldmatrix_x4(b, chunk_address(tile_k, 16 * n + key, 2 * k + half));
      ptx::mma_m16n8k16(s[2 * n], a, b[0], b[1]);
      ptx::mma_m16n8k16(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// O += P V; the accumulator of S, packed in pairs, is the A operand as it stands.
LIQUIDCP_DEVICE void multiply_pv(f32 (&o)[OUT_TILES][4], const f32 (&p)[SCORE_TILES][4], u32 tile_v, i32 lane) {
#pragma unroll
  for (i32 k = 0; k < PV_STEPS; ++k) {
    const u32 a[4] = {pack_pair(p[2 * k][0], p[2 * k][1]), pack_pair(p[2 * k][2], p[2 * k][3]),
                      pack_pair(p[2 * k + 1][0], p[2 * k + 1][1]), pack_pair(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (i32 n = 0; n < OUT_TILES / 2; ++n) {
      u32 b[4];
      ptx::ldmatrix_x4_trans(b, chunk_address(tile_v, 16 * k + (lane & 15), 2 * n + (lane >> 4)));
      ptx::mma_m16n8k16(o[2 * n], a, b[0], b[1]);
      ptx::mma_m16n8k16(o[2 * n + 1], a, b[2], b[3]);
    }
  }
}

}  // namespace liquidcp
