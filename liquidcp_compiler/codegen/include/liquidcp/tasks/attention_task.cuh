#pragma once
// One task of a compute CTA: one query tile and head against the KV tiles of a claim.
#include <liquidcp/attention/key_bits.cuh>
#include <liquidcp/common/shared_memory.cuh>
#include <liquidcp/tasks/context.cuh>

namespace liquidcp {

// Lies in shared memory and is read where it is needed: accumulators need the registers.
struct AttentionTask {
  i32 row, unit;
  i32 first_tile, num_tiles;  // KV tiles, in the row's order
  i32 q_tile;                 // index in `q_tiles`
  i32 head, kv_head;
  QueryRange queries;
};

LIQUIDCP_DEVICE AttentionTask& shared_task() { return static_smem<AttentionTask>(); }

LIQUIDCP_DEVICE AttentionTask make_task(const Context& context, const Claim& claim) {
  const RowDesc& row = context.plan.rows()[claim.row];
  const SequenceDesc& sequence = context.plan.sequences()[row.sequence];
  const i32 q_tile = context.plan.q_list()[row.q_lo + claim.unit / context.params.num_heads_q];
  const i32 head = claim.unit % context.params.num_heads_q;
  const QTileDesc& tile = context.plan.q_tiles()[q_tile];
  return {claim.row,
          claim.unit,
          claim.lo,
          claim.hi - claim.lo,
          q_tile,
          head,
          head / context.params.qheads_per_kvhead,
          {tile.position, tile.position + sequence.kv_length - sequence.q_length, tile.rows}};
}

}  // namespace liquidcp
