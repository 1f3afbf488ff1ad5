#pragma once
// Masks whose rows see one interval of keys, and perhaps a prefix before it: all but block sparse. Positions are
// indices in the sequence; those of queries are counted from the end of its keys (bottom-right alignment).
#include <liquidcp/attention/key_bits.cuh>

namespace liquidcp {

// The keys of one row: [begin, end), and those before `prefix` that come before `end`.
struct RowKeys {
  i32 begin, end, prefix;

  LIQUIDCP_DEVICE bool see_some(const KeyRange& step) const {
    return step.position < end && (step.position + step.num_keys > begin || step.position < prefix);
  }
  LIQUIDCP_DEVICE bool see_all(const KeyRange& step) const {
    const i32 step_end = step.position + step.num_keys;
    return step_end <= end && (step.position >= begin || step_end <= prefix);
  }
  LIQUIDCP_DEVICE KeyBits of(const KeyRange& step) const {
    return first_keys(min_of(end - step.position, step.num_keys)) &
           (~first_keys(begin - step.position) | first_keys(prefix - step.position));
  }
};

// Largest of `size` ascending entries that is at most `position`; the first entry is 0.
LIQUIDCP_DEVICE i32 document_start(const i32* starts, i32 size, i32 position) {
  i32 lo = 0, hi = size;  // starts[lo] <= position < starts[hi]
  while (hi - lo > 1) {
    const i32 middle = lo + (hi - lo) / 2;
    if (starts[middle] <= position) {
      lo = middle;
    } else {
      hi = middle;
    }
  }
  return starts[lo];
}

// `data`: the sequence's entries in `mask_data`, as ir/mask_data.py says.
LIQUIDCP_DEVICE RowKeys row_keys(const i32* data, i32 size, i32 position) {
  const i32 past_self = max_of(position + 1, 0);
  if constexpr (config::MASK == MaskKind::SLIDING_WINDOW) {
    const i64 end = static_cast<i64>(position) + data[1] + 1;
    return {position > data[0] ? position - data[0] : 0, end < 0 ? 0 : end > MAX_I32 ? MAX_I32 : static_cast<i32>(end),
            0};
  } else if constexpr (config::MASK == MaskKind::DOCUMENT) {
    return {document_start(data, size, position), past_self, 0};
  } else if constexpr (config::MASK == MaskKind::SHARED_PREFIX) {
    return {document_start(data + 1, size - 1, position), past_self, data[0]};
  } else {
    return {0, config::MASK == MaskKind::CAUSAL ? past_self : MAX_I32, 0};
  }
}

// The keys that some row of a query tile sees lie between these: both ends of an interval only grow from row to row.
class BandTile {
 public:
  LIQUIDCP_DEVICE BandTile(const i32* data, i32 size, const QueryRange& rows)
      : keys_(row_keys(data, size, rows.position)) {
    keys_.end = row_keys(data, size, rows.position + rows.rows - 1).end;
  }
  LIQUIDCP_DEVICE bool sees(const KeyRange& step) const { return keys_.see_some(step); }

 private:
  RowKeys keys_;
};

// The keys that every row of a query tile sees.
class BandCover {
 public:
  LIQUIDCP_DEVICE BandCover(const i32* data, i32 size, const QueryRange& rows)
      : keys_(row_keys(data, size, rows.position)) {
    keys_.begin = row_keys(data, size, rows.position + rows.rows - 1).begin;
  }
  // KV_STEP keys, and all of them?
  LIQUIDCP_DEVICE bool sees_all(const KeyRange& step) const {
    return step.num_keys == config::KV_STEP && keys_.see_all(step);
  }

 private:
  RowKeys keys_;
};

class BandRows {
 public:
  LIQUIDCP_DEVICE BandRows(const i32* data, i32 size, const QueryRange& tile, i32 first_row, i32 lane) {
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      keys_[r] = row_keys(data, size, tile.position + min_of(first_row + (lane >> 2) + 8 * r, tile.rows - 1));
    }
  }

  // Whole warp.
  LIQUIDCP_DEVICE StepView look(const KeyRange& step) const {
    const bool all = step.num_keys == config::MASK_KEYS && keys_[0].see_all(step) && keys_[1].see_all(step);
    StepView view;
    view.any = __any_sync(FULL_WARP, keys_[0].see_some(step) || keys_[1].see_some(step));
    view.all = !__any_sync(FULL_WARP, !all);
    return view;
  }

  LIQUIDCP_DEVICE KeyBits keys(i32 r, const KeyRange& step) const { return keys_[r].of(step); }

 private:
  RowKeys keys_[2];
};

}  // namespace liquidcp
