#pragma once
// Logical tiles of a row -> physical tiles. Own tiles come first in the order of a ready row, then arrivals in the
// order of the committed prefix.
#include <liquidcp/sync/prefix.cuh>
#include <liquidcp/tasks/context.cuh>

namespace liquidcp {

constexpr i32 STEPS_PER_TILE = config::BLOCK_KV / config::KV_STEP;

// Index in `kv_tiles`.
LIQUIDCP_DEVICE i32 physical_tile(const Context& context, const RowDesc& row, const SequenceDesc& sequence, i32 tile) {
  if (row.formation == static_cast<i32>(Formation::STATIC)) return context.plan.kv_list()[row.kv_list + tile];
  const i32 num_local = row.local_hi - row.local_lo;
  if (tile < num_local) return row.local_lo + tile;
  return arrival_at(context.rank, sequence, tile - num_local);
}

}  // namespace liquidcp
