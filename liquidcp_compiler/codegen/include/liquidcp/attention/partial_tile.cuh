#pragma once
// The result of a task, fp32, over all of dynamic shared memory once keys and values are done with. Merging and writing
// it out go through it 16 bytes at a time, where 128 accumulators a thread and what is merged into them would be too
// many registers.
#include <liquidcp/attention/warp_gemm.cuh>
#include <liquidcp/ptx/ld_st.cuh>
#include <liquidcp/ptx/shared_ld_st.cuh>

namespace liquidcp {

static_assert(config::BLOCK_Q * config::HEAD_DIM * 4 <= config::SMEM_BYTES, "a task's result does not fit");

class PartialTile {
 public:
  LIQUIDCP_DEVICE PartialTile(u32 smem, i32 thread) : smem_(smem), thread_(thread) {}

  LIQUIDCP_DEVICE void store(const f32 (&o)[OUT_TILES][4]) const {
#pragma unroll
    for (i32 n = 0; n < OUT_TILES; ++n) ptx::st_shared_v4_f32(address(n, thread_), o[n]);
  }

  // Accumulator `n` of this thread: see warp_gemm.cuh.
  LIQUIDCP_DEVICE void get(i32 n, f32 (&o)[4]) const { ptx::ld_shared_v4_f32(address(n, thread_), o); }
  LIQUIDCP_DEVICE void set(i32 n, const f32 (&o)[4]) const { ptx::st_shared_v4_f32(address(n, thread_), o); }

  // Eight columns from 8 `chunk` on, in 16 bits, of a row of this thread's warp (0 .. 15): four lanes hold them.
  LIQUIDCP_DEVICE ptx::Vec16 chunk(i32 row, i32 chunk) const {
    u32 pairs[4];
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      f32 o[2];
      const i32 owner = (thread_ & ~31) + (row & 7) * 4 + i;
      ptx::ld_shared_v2_f32(address(chunk, owner) + (row >> 3) * 8, o);
      pairs[i] = pack_pair(o[0], o[1]);
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }

 private:
  // XORed, so that the chunks of one row lie in different banks.
  LIQUIDCP_DEVICE u32 address(i32 n, i32 thread) const {
    return smem_ + (n * config::NUM_THREADS + (thread ^ (n & 31))) * 16;
  }

  u32 smem_;
  i32 thread_;
};

}  // namespace liquidcp
