#pragma once
// One step through the keys of a task: up to KV_STEP rows of one KV tile.
#include <liquidcp/generated/config.cuh>

namespace liquidcp {

struct KvStep {
  const u8 *k, *v;         // first row, of one KV head
  u32 k_stride, v_stride;  // from a row to the next, in 16-byte chunks
  i32 position;            // of the first row in its sequence
  i32 num_keys;            // 1 .. KV_STEP
};

}  // namespace liquidcp
