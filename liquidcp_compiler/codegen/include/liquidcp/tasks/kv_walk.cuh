#pragma once
// The keys of a claim, step by step: logical tiles of a row -> physical tiles -> rows in memory.
#include <liquidcp/tasks/context.cuh>
#include <liquidcp/sync/prefix.cuh>

namespace liquidcp {

struct KvStep {
  const u8 *k, *v;  // first row, of one KV head
  i32 position;     // of that row in its sequence
  i32 num_keys;     // 1 .. KV_STEP
};

class KvWalk {
 public:
  LIQUIDCP_DEVICE KvWalk(const Context& context, const RowDesc& row, i32 kv_head, i32 lo, i32 hi)
      : context_(context), row_(row), kv_head_(kv_head), tile_(lo), hi_(hi) {
    if (more()) open_tile();
  }

  LIQUIDCP_DEVICE bool more() const { return tile_ < hi_; }

  LIQUIDCP_DEVICE KvStep take() {
    const i64 row_bytes = stride();
    const i64 offset = (static_cast<i64>(token_) + done_) * row_bytes + static_cast<i64>(kv_head_) * ROW_BYTES;
    const KvStep step = {k_ + offset, v_ + offset, position_ + done_, min_of(rows_ - done_, config::KV_STEP)};
    done_ += config::KV_STEP;
    if (done_ >= rows_) {
      ++tile_;
      if (more()) open_tile();
    }
    return step;
  }

  // Bytes between tokens.
  LIQUIDCP_DEVICE i64 stride() const { return static_cast<i64>(context_.params.num_heads_kv) * ROW_BYTES; }

 private:
  // Own tiles come first in the order of a ready row, then arrivals in the order of the committed prefix.
  LIQUIDCP_DEVICE i32 physical(i32 tile) const {
    if (row_.formation == static_cast<i32>(Formation::STATIC)) return context_.plan.kv_list()[row_.kv_list + tile];
    const i32 num_local = row_.local_hi - row_.local_lo;
    if (tile < num_local) return row_.local_lo + tile;
    return arrival_at(context_.rank, context_.plan.sequences()[row_.sequence], tile - num_local);
  }

  LIQUIDCP_DEVICE void open_tile() {
    const i32 index = physical(tile_);
    const KvTileDesc& tile = context_.plan.kv_tiles()[index];
    const bool own = index < context_.plan.header().num_local_kv_tiles;
    k_ = static_cast<const u8*>(own ? context_.rank.k : context_.rank.kv_buffer_k);
    v_ = static_cast<const u8*>(own ? context_.rank.v : context_.rank.kv_buffer_v);
    token_ = tile.token;
    rows_ = tile.rows;
    position_ = tile.position;
    done_ = 0;
  }

  const Context& context_;
  const RowDesc& row_;
  i32 kv_head_, tile_, hi_;
  const u8 *k_ = nullptr, *v_ = nullptr;
  i32 token_ = 0, rows_ = 0, position_ = 0, done_ = 0;
};

}  // namespace liquidcp
