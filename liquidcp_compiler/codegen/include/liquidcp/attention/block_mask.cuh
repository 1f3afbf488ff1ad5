#pragma once
// Block sparse: for each block of queries (by index, not by position), a bit for each block of keys.
#include <liquidcp/attention/key_bits.cuh>

namespace liquidcp {

class BlockBits {
 public:
  LIQUIDCP_DEVICE explicit BlockBits(const i32* data)
      : block_(data[0]), words_a_row_(data[1]), words_(reinterpret_cast<const u32*>(data + 2)) {}

  LIQUIDCP_DEVICE i32 block() const { return block_; }
  LIQUIDCP_DEVICE const u32* row(i32 query_block) const {
    return words_ + static_cast<i64>(query_block) * words_a_row_;
  }

 private:
  i32 block_, words_a_row_;
  const u32* words_;
};

class BlockTile {
 public:
  LIQUIDCP_DEVICE BlockTile(const i32* data, i32, const QueryRange& rows) : bits_(data), rows_(rows) {}

  LIQUIDCP_DEVICE bool sees(const KeyRange& step) const {
    const i32 first = step.position / bits_.block(), last = (step.position + step.num_keys - 1) / bits_.block();
    const i32 last_query_block = (rows_.index + rows_.rows - 1) / bits_.block();
    for (i32 query_block = rows_.index / bits_.block(); query_block <= last_query_block; ++query_block) {
      if (has_one(bits_.row(query_block), first, last)) return true;
    }
    return false;
  }

 private:
  // Is one of the bits first .. last set?
  LIQUIDCP_DEVICE static bool has_one(const u32* words, i32 first, i32 last) {
    for (i32 w = first >> 5; w <= last >> 5; ++w) {
      u32 wanted = ~0u;
      if (w == first >> 5) wanted &= ~0u << (first & 31);
      if (w == last >> 5) wanted &= ~0u >> (31 - (last & 31));
      if ((words[w] & wanted) != 0) return true;
    }
    return false;
  }

  BlockBits bits_;
  QueryRange rows_;
};

class BlockCover {
 public:
  LIQUIDCP_DEVICE BlockCover(const i32* data, i32, const QueryRange& rows) : bits_(data), rows_(rows) {}

  // KV_STEP keys, and every row sees all of them?
  LIQUIDCP_DEVICE bool sees_all(const KeyRange& step) const {
    if (step.num_keys != config::KV_STEP) return false;
    const i32 last = (step.position + step.num_keys - 1) / bits_.block();
    const i32 last_query_block = (rows_.index + rows_.rows - 1) / bits_.block();
    for (i32 query_block = rows_.index / bits_.block(); query_block <= last_query_block; ++query_block) {
      const u32* words = bits_.row(query_block);
      for (i32 b = step.position / bits_.block(); b <= last; ++b) {
        if ((words[b >> 5] >> (b & 31) & 1) == 0) return false;
      }
    }
    return true;
  }

 private:
  BlockBits bits_;
  QueryRange rows_;
};

class BlockRows {
 public:
  LIQUIDCP_DEVICE BlockRows(const i32* data, i32, const QueryRange& tile, i32 first_row, i32 lane) : data_(data) {
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const i32 row = min_of(first_row + (lane >> 2) + 8 * r, tile.rows - 1);
      query_block_[r] = (tile.index + row) / BlockBits(data).block();
    }
  }

  // Whole warp.
  LIQUIDCP_DEVICE StepView look(const KeyRange& step) const {
    const KeyBits first = keys(0, step), second = keys(1, step);
    StepView view;
    view.any = __any_sync(FULL_WARP, (first | second) != 0);
    view.all = !__any_sync(FULL_WARP, (first & second) != ALL_KEYS);
    return view;
  }

  LIQUIDCP_DEVICE KeyBits keys(i32 r, const KeyRange& step) const {
    const BlockBits bits(data_);
    const u32* words = bits.row(query_block_[r]);
    KeyBits seen = 0;
    for (i32 b = step.position / bits.block(); b * bits.block() < step.position + step.num_keys; ++b) {
      const i32 begin = b * bits.block() - step.position;
      if (words[b >> 5] >> (b & 31) & 1) seen |= first_keys(begin + bits.block()) & ~first_keys(begin);
    }
    return seen & first_keys(step.num_keys);
  }

 private:
  const i32* data_;
  i32 query_block_[2];
};

}  // namespace liquidcp
