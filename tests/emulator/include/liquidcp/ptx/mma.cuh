#pragma once
// Emulated: matrix instructions, with the fragment layouts of the PTX manual. Lane i is g = i / 4, t = i % 4.
#include <emulator/memory.h>
#include <emulator/warp.h>
#include <liquidcp/common/types.cuh>
#include <liquidcp/generated/config.cuh>
#include <liquidcp/ptx/convert.cuh>

namespace liquidcp::ptx {

// Four 8 x 8 matrices; lane 8 m + r gives the address of row r of matrix m. A register holds two neighbours of row g, or
// of column g.
template <bool TRANS>
LIQUIDCP_DEVICE void emulated_ldmatrix(u32 (&r)[4], u32 smem) {
  struct Load {
    const unsigned char* row;
    u32* registers;
  } load{emulator::shared_bytes(smem, 16), r};
  emulator::warp_operation<Load>(load, [](Load* const(&lanes)[emulator::WARP_SIZE]) {
    for (i32 m = 0; m < 4; ++m) {
      for (i32 i = 0; i < emulator::WARP_SIZE; ++i) {
        u16 pair[2];
        for (i32 e = 0; e < 2; ++e) {
          const i32 g = i / 4, other = 2 * (i % 4) + e;
          const i32 row = TRANS ? other : g, column = TRANS ? g : other;
          memcpy(&pair[e], lanes[8 * m + row]->row + 2 * column, 2);
        }
        lanes[i]->registers[m] = static_cast<u32>(pair[1]) << 16 | pair[0];
      }
    }
  });
}
LIQUIDCP_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 smem) { emulated_ldmatrix<false>(r, smem); }
LIQUIDCP_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 smem) { emulated_ldmatrix<true>(r, smem); }

LIQUIDCP_DEVICE f32 emulated_element(u32 pair, i32 half) {
  const u16 bits = static_cast<u16>(half == 0 ? pair : pair >> 16);
  return config::FP16 ? f16_to_float(bits) : bf16_to_float(bits);
}

LIQUIDCP_DEVICE void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  struct Product {
    f32* d;
    const u32* a;
    u32 b[2];
  } product{d, a, {b0, b1}};
  emulator::warp_operation<Product>(product, [](Product* const(&lanes)[emulator::WARP_SIZE]) {
    f32 left[16][16], right[16][8], sum[16][8] = {};
    for (i32 i = 0; i < emulator::WARP_SIZE; ++i) {
      const i32 g = i / 4, t = i % 4;
      for (i32 half = 0; half < 2; ++half) {
        for (i32 r = 0; r < 4; ++r) {
          left[g + 8 * (r & 1)][2 * t + half + 8 * (r >> 1)] = emulated_element(lanes[i]->a[r], half);
        }
        for (i32 r = 0; r < 2; ++r) right[2 * t + half + 8 * r][g] = emulated_element(lanes[i]->b[r], half);
      }
    }
    for (i32 row = 0; row < 16; ++row) {
      for (i32 k = 0; k < 16; ++k) {
        for (i32 column = 0; column < 8; ++column) sum[row][column] += left[row][k] * right[k][column];
      }
    }
    for (i32 i = 0; i < emulator::WARP_SIZE; ++i) {
      for (i32 e = 0; e < 4; ++e) lanes[i]->d[e] += sum[i / 4 + 8 * (e >> 1)][2 * (i % 4) + (e & 1)];
    }
  });
}

}  // namespace liquidcp::ptx
