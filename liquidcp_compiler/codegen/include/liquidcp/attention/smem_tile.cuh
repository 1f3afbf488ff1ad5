#pragma once
// A tile of 16-bit elements in shared memory: rows of HEAD_DIM elements in 16-byte chunks. The eight rows that an
// ldmatrix reads must lie in different banks, and 128 bytes, eight chunks, are all banks. Rows of a multiple of eight
// chunks have their chunks XORed with the row; other rows are an odd number of chunks apart.
#include <liquidcp/generated/config.cuh>
#include <liquidcp/ptx/cp_async.cuh>
#include <liquidcp/ptx/mma.cuh>
#include <liquidcp/ptx/thread.cuh>

namespace liquidcp {

constexpr i32 ELEMENT_BYTES = 2;
constexpr i32 ROW_BYTES = config::HEAD_DIM * ELEMENT_BYTES;
constexpr i32 ROW_CHUNKS = ROW_BYTES / 16;
constexpr bool SWIZZLED = ROW_CHUNKS % 8 == 0;
constexpr u32 SMEM_ROW_BYTES = (SWIZZLED ? ROW_CHUNKS : ROW_CHUNKS | 1) * 16;

LIQUIDCP_DEVICE u32 chunk_address(u32 tile, i32 row, i32 chunk) {
  if constexpr (!SWIZZLED) return tile + row * SMEM_ROW_BYTES + (chunk << 4);
  // Written so that what is known of `chunk` when compiling, all but its lowest bit, adds to an address in a register.
  return tile + row * SMEM_ROW_BYTES + ((chunk & ~7) << 4) + (((chunk ^ row) & 7) << 4);
}

// The whole CTA starts copying `rows` rows, `stride` bytes apart; the rest of the ROWS rows becomes zero, never stale
// memory: a masked probability is 0, and 0 times NaN is NaN.
template <i32 ROWS>
LIQUIDCP_DEVICE void load_tile_async(u32 tile, const u8* first, i64 stride, i32 rows) {
  constexpr i32 NUM_CHUNKS = ROWS * ROW_CHUNKS;
  const i32 thread = ptx::thread_idx();
#pragma unroll 8
  for (i32 i = 0; i < ceil_div(NUM_CHUNKS, config::NUM_THREADS); ++i) {
    const i32 idx = i * config::NUM_THREADS + thread;
    if (NUM_CHUNKS % config::NUM_THREADS != 0 && idx >= NUM_CHUNKS) break;
    const i32 row = idx / ROW_CHUNKS, chunk = idx % ROW_CHUNKS;
    const bool valid = row < rows;
    ptx::cp_async_16(chunk_address(tile, row, chunk), first + (valid ? row : 0) * stride + chunk * 16, valid);
  }
}

}  // namespace liquidcp
