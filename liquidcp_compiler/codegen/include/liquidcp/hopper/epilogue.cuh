#pragma once
// Where a warpgroup's 64 rows of a finished task go: into the running state of their (query tile, head, half), or out
// of the kernel. A half has a word of its own, which counts merged KV tiles and is the lock as well.
#include <liquidcp/hopper/softmax.cuh>
#include <liquidcp/hopper/wait.cuh>
#include <liquidcp/ptx/tma.cuh>
#include <liquidcp/sync/faults.cuh>

namespace liquidcp::hopper {

constexpr i32 EPILOGUE_BARRIER = 1;  // the named barrier of warpgroup 1; the next is warpgroup 2's
constexpr u32 GIVEN_UP = LOCKED;     // found in a lock word: the lock was not to be had

class Epilogue {
 public:
  LIQUIDCP_DEVICE Epilogue(const Context& context, const RankMaps& maps, const AttentionTask& task, i32 half)
      : context_(context), maps_(maps), task_(task), half_(half), thread_(ptx::thread_idx() & 127) {}

  // Whole warpgroup. True: its first thread's stores still read `q_buffer`, the task's own query buffer.
  LIQUIDCP_DEVICE bool finish(f32 (&o)[OUTS], const Rows& rows, u32 q_buffer) const {
    f32 lse[2];
    normalise(o, rows, lse);
    if (num_rows() <= 0) return false;
    const i32 contributions = max_of(task_.num_tiles, 1), wanted = tile().merge_count;
    if (contributions != wanted && !merge(o, lse, static_cast<u32>(contributions), static_cast<u32>(wanted))) {
      return false;
    }
    if (context_.rank.sinks != nullptr) add_sink(o, lse);
    return write(o, lse, q_buffer);
  }

 private:
  LIQUIDCP_DEVICE i32 lane() const { return thread_ & 31; }
  LIQUIDCP_DEVICE i32 row() const { return (thread_ >> 5) * 16 + (lane() >> 2); }  // the thread's first one
  LIQUIDCP_DEVICE i32 num_rows() const { return min_of(task_.queries.rows - half_ * WARPGROUP_ROWS, WARPGROUP_ROWS); }
  LIQUIDCP_DEVICE const QTileDesc& tile() const { return context_.plan.q_tiles()[task_.q_tile]; }
  LIQUIDCP_DEVICE void sync() const { ptx::bar_sync(EPILOGUE_BARRIER + half_, 128); }
  LIQUIDCP_DEVICE i64 slot() const {
    return (static_cast<i64>(task_.q_tile) * context_.params.num_heads_q + task_.head) * MERGE_WORDS + half_;
  }
  LIQUIDCP_DEVICE u64* word() const { return context_.rank.merged + slot(); }

  // Divides by the sums; lse is natural log. A row that saw no key becomes (0, -inf).
  LIQUIDCP_DEVICE void normalise(f32 (&o)[OUTS], const Rows& rows, f32 (&lse)[2]) const {
    f32 inverse[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const f32 sum = quad_sum(rows.sum[r]);
      const bool empty = sum == 0.0f;  // a NaN is not empty: it must be seen
      inverse[r] = empty ? 0.0f : ptx::rcp(sum);
      lse[r] = empty ? neg_inf() : rows.reference[r] * LN_2 + logf(sum);
    }
    scale_rows(o, inverse[0], inverse[1]);
  }

  // Adds the rows to the running state. True: they were the last, and are the whole now.
  LIQUIDCP_DEVICE bool merge(f32 (&o)[OUTS], f32 (&lse)[2], u32 contributions, u32 wanted) const {
    if (thread_ == 0) state().lock[half_] = lock();
    sync();
    const u32 before = state().lock[half_];
    if (before == GIVEN_UP) return false;
    const bool last = before + contributions == wanted;
    if (before > 0) merge_state(o, lse);
    if (!last) store_state(o, lse);
    sync();  // the state is read and written before the first thread lets go of it
    if (thread_ == 0 && !fault_drops(context_.watch, FaultKind::LOCK, task_.q_tile)) {
      ptx::st_release_gpu(word(), tagged(context_.watch.epoch, before + contributions));
    }
    return last;
  }

  // One thread: KV tiles merged before. Between this and the release nothing waits for another CTA, nor for the other
  // warpgroup, so lock holders always get on.
  LIQUIDCP_DEVICE u32 lock() const {
    context_.watch.role = CtaRole::COMPUTE;
    context_.watch.task = task_.row;
    fault_delay(context_.watch, DelayPoint::WAIT);
    const u64 held = tagged(context_.watch.epoch, LOCKED);
    u64 start = 0;
    while (true) {
      const u64 old = ptx::ld_relaxed_gpu(word());
      if (old != held && ptx::atom_cas_acquire_gpu(word(), old, held) == old) {
        return value_of(old, context_.watch.epoch);
      }
      const u64 now = ptx::globaltimer_ns();
      if (start == 0) start = now;
      if (context_.watch.aborted()) return GIVEN_UP;
      if (now - start > context_.params.budget_ns) {
        context_.watch.fail(ErrorCode::LOCK, context_.watch.rank, task_.q_tile, 0, 1, now - start);
        return GIVEN_UP;
      }
      ptx::nanosleep(50);
    }
  }

  // Fragment order: 16 bytes a thread, one after another, so that every access is coalesced.
  LIQUIDCP_DEVICE f32* state_out() const {
    return context_.rank.state_out + slot() * WARPGROUP_ROWS * config::HEAD_DIM + thread_ * 4;
  }
  LIQUIDCP_DEVICE f32* state_lse() const { return context_.rank.state_lse + slot() * WARPGROUP_ROWS + row(); }

  LIQUIDCP_DEVICE void merge_state(f32 (&o)[OUTS], f32 (&lse)[2]) const {
    MergeWeights w[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      w[r] = merge_weights(ptx::ld_relaxed_gpu_f32(state_lse() + 8 * r), lse[r]);
      lse[r] = w[r].lse;
    }
    __syncwarp();  // lanes of a quad read the same lse, and one of them will store it
    const f32* from = state_out();
#pragma unroll
    for (i32 n = 0; n < OUTS / 4; ++n) {
      f32 before[4];
      ptx::ld_relaxed_gpu_v4_f32(from + n * 512, before);
#pragma unroll
      for (i32 e = 0; e < 4; ++e) o[4 * n + e] = liquidcp::merge(w[e >> 1], before[e], o[4 * n + e]);
    }
  }

  LIQUIDCP_DEVICE void store_state(const f32 (&o)[OUTS], const f32 (&lse)[2]) const {
    if ((lane() & 3) == 0) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) ptx::st_relaxed_gpu_f32(state_lse() + 8 * r, lse[r]);
    }
    f32* to = state_out();
#pragma unroll
    for (i32 n = 0; n < OUTS / 4; ++n) {
      const f32 rows[4] = {o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]};
      ptx::st_relaxed_gpu_v4_f32(to + n * 512, rows);
    }
  }

  // One more key, of score `sink` and value 0. Only here, where rows are finished: it counts once.
  LIQUIDCP_DEVICE void add_sink(f32 (&o)[OUTS], f32 (&lse)[2]) const {
    MergeWeights w[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      w[r] = merge_weights(lse[r], context_.rank.sinks[task_.head]);
      lse[r] = w[r].lse;
    }
#pragma unroll
    for (i32 i = 0; i < OUTS; ++i) o[i] = liquidcp::merge(w[i >> 1 & 1], o[i], 0.0f);
  }

  // Through the half's rows of the query buffer, which nobody reads any more once all four warps are here: by the copy
  // engine, or row by row where the tile ends before the half does and other rows follow.
  LIQUIDCP_DEVICE bool write(const f32 (&o)[OUTS], const f32 (&lse)[2], u32 q_buffer) const {
    const i32 rows = num_rows(), token = tile().token + half_ * WARPGROUP_ROWS;
    if ((lane() & 3) == 0) {
      f32* to = context_.rank.lse + task_.head * static_cast<i64>(context_.plan.header().num_local_q_tokens) + token;
#pragma unroll
      for (i32 r = 0; r < 2; ++r) {
        if (row() + 8 * r < rows) to[row() + 8 * r] = lse[r];
      }
    }
    sync();
    const u32 staged = q_buffer + half_ * WARPGROUP_ROWS * 128;
    stage(o, staged);
    ptx::fence_proxy_async();
    sync();
    if (rows < WARPGROUP_ROWS) {
      write_rows(staged, token, rows);
      return false;
    }
    if (thread_ == 0) {
#pragma unroll
      for (i32 b = 0; b < COLUMN_BLOCKS; ++b) {
        ptx::tma_store(maps_.out, staged + b * Q_BLOCK_BYTES, b * 64, task_.head, token);
      }
      ptx::tma_commit();
    }
    return true;
  }

  // 16-bit rows, swizzled as the copy engine expects them.
  LIQUIDCP_DEVICE void stage(const f32 (&o)[OUTS], u32 staged) const {
    const i32 matrix_row = (thread_ >> 5) * 16 + (lane() & 15), chunk = lane() >> 4;
#pragma unroll
    for (i32 i = 0; i < config::HEAD_DIM / 16; ++i) {
      ptx::stmatrix_x4(chunk_of(staged, matrix_row, 2 * i + chunk), pack_pair(o[8 * i], o[8 * i + 1]),
                       pack_pair(o[8 * i + 2], o[8 * i + 3]), pack_pair(o[8 * i + 4], o[8 * i + 5]),
                       pack_pair(o[8 * i + 6], o[8 * i + 7]));
    }
  }

  // 16 bytes, eight columns, of a row.
  LIQUIDCP_DEVICE static u32 chunk_of(u32 staged, i32 row, i32 chunk) {
    return staged + (chunk >> 3) * Q_BLOCK_BYTES + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
  }

  LIQUIDCP_DEVICE void write_rows(u32 staged, i32 token, i32 rows) const {
    const RankParams& rank = context_.rank;
    u8* to = static_cast<u8*>(rank.out) +
             (token * rank.out_token_stride + task_.head * rank.out_head_stride) * ELEMENT_BYTES;
    for (i32 i = thread_; i < rows * ROW_CHUNKS; i += 128) {
      const i32 row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
      ptx::st_v4(to + row * rank.out_token_stride * ELEMENT_BYTES + chunk * 16,
                 ptx::ld_shared_v4(chunk_of(staged, row, chunk)));
    }
    sync();  // nobody reads the buffer any more
  }

  const Context& context_;
  const RankMaps& maps_;
  const AttentionTask& task_;
  const i32 half_, thread_;
};

}  // namespace liquidcp::hopper
