#pragma once
// The two products of a warpgroup: 64 query rows against KV_STEP keys, by wgmma on swizzled tiles.
// Accumulators: s[4n + 0..1] are columns 8n + 2 (lane % 4) and the next of row 16 warp + lane / 4, s[4n + 2..3] of that
// row + 8. Packed in pairs they are the A operand of the next product as they stand.
#include <liquidcp/generated/wgmma.cuh>
#include <liquidcp/hopper/shared_state.cuh>
#include <liquidcp/ptx/warpgroup.cuh>

namespace liquidcp::hopper {

constexpr i32 SCORES = config::KV_STEP / 2, OUTS = config::HEAD_DIM / 2, PAIRS = SCORES / 2;  // a thread's

// Descriptors of matrices in shared memory, swizzled by 128 bytes. Rows of Q and K are read along their columns: the
// next 8 rows are 1024 bytes on. V is read across its rows: the next 64 columns are one block on, the next 8 rows 1024
// bytes.
constexpr u32 DESCRIPTOR_HIGH = 1u << 30 | 1024 >> 4;
constexpr u32 ALONG_COLUMNS = 1u << 16, ACROSS_ROWS = (KV_BLOCK_BYTES >> 4) << 16;

// The low word. (In a cluster an address has the CTA's rank from bit 24 on.)
LIQUIDCP_DEVICE u32 descriptor_low(u32 direction, u32 address) { return direction | (address & 0x3ffff) >> 4; }

// The same in all lanes, and known to be: what follows is then computed once a warp. Only in the block of the products
// does the compiler make use of it.
LIQUIDCP_DEVICE u32 uniform(u32 x) { return __shfl_sync(FULL_WARP, x, 0); }

LIQUIDCP_DEVICE u64 descriptor(u32 low, u32 bytes_on) {
  return static_cast<u64>(DESCRIPTOR_HIGH) << 32 | (low + (bytes_on >> 4));
}

// S = Q K^T
LIQUIDCP_DEVICE void issue_qk(f32 (&s)[SCORES], u32 q, u32 k) {
#pragma unroll
  for (i32 i = 0; i < config::HEAD_DIM / 16; ++i) {
    const u32 column = (i & 3) * 32;  // 16 columns are 32 bytes of a row
    ptx::wgmma_qk(s, descriptor(q, (i >> 2) * Q_BLOCK_BYTES + column),
                  descriptor(k, (i >> 2) * KV_BLOCK_BYTES + column), i != 0);
  }
  ptx::wgmma_commit();
}

// O += P V
LIQUIDCP_DEVICE void issue_pv(f32 (&o)[OUTS], const u32 (&p)[PAIRS], u32 v) {
#pragma unroll
  for (i32 i = 0; i < config::KV_STEP / 16; ++i) {
    ptx::wgmma_pv(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], descriptor(v, i * 2048));
  }
  ptx::wgmma_commit();
}

}  // namespace liquidcp::hopper
