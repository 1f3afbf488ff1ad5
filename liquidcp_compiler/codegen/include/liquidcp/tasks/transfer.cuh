#pragma once
// Pulls of KV tiles, by comm CTAs, in queue order: one pull serves all local queries and heads.
#include <liquidcp/tasks/context.cuh>
#include <liquidcp/sync/prefix.cuh>

namespace liquidcp {

class TransferQueue {
 public:
  LIQUIDCP_DEVICE TransferQueue(const Context& context) : context_(context) {}

  // Whole CTA. Works until the queue is empty; false: the launch is given up.
  LIQUIDCP_DEVICE bool run() {
    const u32 num_transfers = static_cast<u32>(context_.plan.header().num_transfers);
    while (true) {
      if (threadIdx.x == 0) context_.shared.ticket = take_ticket(context_.rank.tickets, context_.watch.epoch);
      __syncthreads();
      const u32 ticket = context_.shared.ticket;
      if (ticket >= num_transfers) return true;
      context_.watch.task = static_cast<i32>(ticket);
      // The barrier also keeps the ticket until all have read it.
      if (!__syncthreads_and(pull(context_.plan.transfers()[ticket]))) return false;
    }
  }

 private:
  LIQUIDCP_DEVICE bool pull(const TransferDesc& transfer) const {
    if (transfer.space != static_cast<i32>(Space::KV)) return true;  // nothing else is pulled in this form
    const RankParams& peer = context_.params.ranks[transfer.peer];
    const PlanView peer_plan(peer.plan);
    const bool is_there = threadIdx.x != 0 || wait_for_source(transfer, peer, peer_plan);
    if (!__syncthreads_and(is_there)) return false;
    const KvTileDesc& source = peer_plan.kv_tiles()[transfer.source];
    const KvTileDesc& target = context_.plan.kv_tiles()[transfer.target];
    const i64 row_bytes = static_cast<i64>(context_.params.num_heads_kv) * ROW_BYTES;
    copy(static_cast<u8*>(context_.rank.kv_buffer_k) + target.token * row_bytes,
         static_cast<const u8*>(peer.k) + source.token * row_bytes,
         static_cast<u8*>(context_.rank.kv_buffer_v) + target.token * row_bytes,
         static_cast<const u8*>(peer.v) + source.token * row_bytes, source.rows * row_bytes / 16);
    __syncthreads();  // all of the tile is stored before thread 0 releases it
    return threadIdx.x != 0 || publish(transfer);
  }

  LIQUIDCP_DEVICE bool wait_for_source(const TransferDesc& transfer, const RankParams& peer,
                                       const PlanView& peer_plan) const {
    const i32 signal = max_of(transfer.wait_signal, 0);  // -1 is the peer's READY, its signal 0
    const u32 expected = transfer.wait_signal < 0 ? 1 : peer_plan.signals()[signal].expected;
    return context_.watch.wait(peer.signals + signal, expected, ErrorCode::SIGNAL, transfer.peer, signal);
  }

  // K and V, each one contiguous run: a token's KV heads lie side by side. Eight loads are in flight a thread.
  LIQUIDCP_DEVICE void copy(u8* to_k, const u8* from_k, u8* to_v, const u8* from_v, i64 num_chunks) const {
    constexpr i32 UNROLL = 4;
    for (i64 base = threadIdx.x; base < num_chunks; base += UNROLL * config::NUM_THREADS) {
      ptx::Vec16 k[UNROLL], v[UNROLL];
#pragma unroll
      for (i32 i = 0; i < UNROLL; ++i) {
        const i64 chunk = base + i * config::NUM_THREADS;
        if (chunk < num_chunks) {
          k[i] = ptx::ld_v4_stream(from_k + chunk * 16);
          v[i] = ptx::ld_v4_stream(from_v + chunk * 16);
        }
      }
#pragma unroll
      for (i32 i = 0; i < UNROLL; ++i) {
        const i64 chunk = base + i * config::NUM_THREADS;
        if (chunk < num_chunks) {
          ptx::st_v4(to_k + chunk * 16, k[i]);
          ptx::st_v4(to_v + chunk * 16, v[i]);
        }
      }
    }
  }

  // Thread 0: rows that wait for this very tile watch its signal, rows that form by readiness the prefix.
  LIQUIDCP_DEVICE bool publish(const TransferDesc& transfer) const {
    if (transfer.signal >= 0) {
      ptx::st_release_gpu(context_.rank.signals + transfer.signal, tagged(context_.watch.epoch, 1));
      return true;
    }
    if (transfer.sequence < 0) return true;
    return publish_arrival(context_.watch, context_.rank, context_.plan.sequences()[transfer.sequence],
                           transfer.sequence, transfer.target, transfer.arrival_class != 0);
  }

  const Context& context_;
};

}  // namespace liquidcp
