#pragma once
// One step through the keys of a task: up to KV_STEP rows of one KV tile.
#include <liquidcp/generated/config.cuh>

namespace liquidcp {

// Keys that lie together in a sequence: what masks look at.
struct KeyRange {
  i32 position;  // of the first one
  i32 num_keys;
};

struct KvStep : KeyRange {  // 1 .. KV_STEP keys
  const u8 *k, *v;         // first row, of one KV head
  u32 k_stride, v_stride;  // from a row to the next, in 16-byte chunks
};

}  // namespace liquidcp
