#pragma once
// Copies the keys and values that peers will pull into the symmetric heap, by comm CTAs, tile by tile.
#include <liquidcp/sync/page.cuh>
#include <liquidcp/tasks/context.cuh>

namespace liquidcp {

class StagingQueue {
 public:
  LIQUIDCP_DEVICE StagingQueue(const Context& context) : context_(context) {}

  // Whole CTA. Works until no tile is left to take; false: the launch is given up.
  LIQUIDCP_DEVICE bool run() const {
    const u32 num_tiles = static_cast<u32>(context_.plan.header().num_staged_list);
    context_.watch.role = CtaRole::STAGE;
    context_.watch.task = -1;
    bool may_write = false;
    for (i32 tasks_done = 0; !fault_stops(context_.watch, tasks_done); ++tasks_done) {
      if (threadIdx.x == 0) {
        context_.shared.ticket = take_ticket(context_.rank.tickets + STAGES_TAKEN, context_.watch.epoch);
      }
      __syncthreads();
      const u32 ticket = context_.shared.ticket;
      if (ticket == 0 && num_tiles == 0 && threadIdx.x == 0) publish_ready(context_.watch, context_.plan);
      if (ticket >= num_tiles) return true;
      context_.watch.task = static_cast<i32>(ticket);
      if (!may_write && !wait_done(context_.watch)) return false;
      may_write = true;
      stage(context_.plan.staged_list()[ticket], num_tiles);
    }
    return false;
  }

 private:
  LIQUIDCP_DEVICE void stage(i32 kv_tile, u32 num_tiles) const {
    const u64 begin = trace_begin();
    fault_delay(context_.watch, DelayPoint::STAGE);
    const KvTileDesc& tile = context_.plan.kv_tiles()[kv_tile];
    const PeerParams& shown = context_.params.peers[context_.watch.rank];
    const RankParams& rank = context_.rank;
    const u32 slot = context_.watch.epoch & 1;
    gather(shown.stage_k[slot], rank.k, rank.k_token_stride, rank.k_head_stride, tile);
    gather(shown.stage_v[slot], rank.v, rank.v_token_stride, rank.v_head_stride, tile);
    __syncthreads();  // all of the tile is stored before thread 0 counts it
    if (threadIdx.x == 0 && count_done(context_.rank.tickets + STAGES_DONE, context_.watch.epoch) == num_tiles) {
      publish_ready(context_.watch, context_.plan);
    }
    context_.record(TraceKind::STAGE, context_.watch.task, 0, begin);
  }

  // Rows of a strided tensor to their place in a packed one.
  LIQUIDCP_DEVICE void gather(void* to, const void* from, i64 token_stride, i64 head_stride,
                              const KvTileDesc& tile) const {
    const i32 heads = context_.params.num_heads_kv, num_chunks = tile.rows * heads * ROW_CHUNKS;
    u8* target = static_cast<u8*>(to) + static_cast<i64>(tile.token) * heads * ROW_BYTES;
#pragma unroll 4
    for (i32 i = static_cast<i32>(threadIdx.x); i < num_chunks; i += config::NUM_THREADS) {
      const i32 chunk = i % ROW_CHUNKS, head = i / ROW_CHUNKS % heads, row = i / ROW_CHUNKS / heads;
      const i64 element = (tile.token + row) * token_stride + head * head_stride;
      const u8* source = static_cast<const u8*>(from) + element * ELEMENT_BYTES + chunk * 16;
      ptx::st_v4(target + static_cast<i64>(i) * 16, ptx::ld_v4_stream(source));
    }
  }

  const Context& context_;
};

}  // namespace liquidcp
