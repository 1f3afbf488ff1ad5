#pragma once
// Pulls of KV tiles, by comm CTAs, in queue order: one pull serves all local queries and heads.
#include <liquidcp/tasks/context.cuh>
#include <liquidcp/sync/link.cuh>
#include <liquidcp/sync/page.cuh>
#include <liquidcp/sync/prefix.cuh>

namespace liquidcp {

class TransferQueue {
 public:
  LIQUIDCP_DEVICE TransferQueue(const Context& context) : context_(context) {}

  // Whole CTA. Works until the queue is empty; false: the launch is given up.
  LIQUIDCP_DEVICE bool run() {
    const u32 num_transfers = static_cast<u32>(context_.plan.header().num_transfers);
    context_.watch.role = CtaRole::COMM;
    context_.watch.task = -1;
    for (i32 tasks_done = 0; !fault_stops(context_.watch, tasks_done); ++tasks_done) {
      __syncthreads();  // nobody still reads the last ticket
      if (threadIdx.x == 0) {
        context_.shared.ticket = take_ticket(context_.rank.tickets + TRANSFERS_TAKEN, context_.watch.epoch);
      }
      __syncthreads();
      const u32 ticket = context_.shared.ticket;
      if (ticket == 0 && num_transfers == 0 && threadIdx.x == 0) publish_done(context_.watch);
      if (ticket >= num_transfers) return true;
      context_.watch.task = static_cast<i32>(ticket);
      const u64 begin = trace_begin();
      if (!__syncthreads_and(pull(context_.plan.transfers()[ticket]))) return false;
      if (threadIdx.x == 0) count(num_transfers);
      context_.record(TraceKind::TRANSFER, context_.watch.task, 0, begin);
    }
    return false;
  }

 private:
  LIQUIDCP_DEVICE bool pull(const TransferDesc& transfer) {
    if (transfer.space != static_cast<i32>(Space::KV)) return true;  // nothing else is pulled in this form
    const bool is_there = threadIdx.x != 0 || wait_for_source(transfer.peer);
    if (!__syncthreads_and(is_there)) return false;
    const KvTileDesc& target = context_.plan.kv_tiles()[transfer.target];
    const PeerParams& peer = context_.params.peers[transfer.peer];
    const u32 slot = context_.watch.epoch & 1;
    const i64 row_bytes = static_cast<i64>(context_.params.num_heads_kv) * ROW_BYTES;
    const u64 arrival = threadIdx.x == 0 ? reserve_link(context_.watch, 2 * transfer.rows * row_bytes) : 0;
    copy(static_cast<u8*>(context_.rank.kv_buffer_k) + target.token * row_bytes,
         static_cast<const u8*>(peer.stage_k[slot]) + transfer.source_token * row_bytes,
         static_cast<u8*>(context_.rank.kv_buffer_v) + target.token * row_bytes,
         static_cast<const u8*>(peer.stage_v[slot]) + transfer.source_token * row_bytes,
         transfer.rows * row_bytes / 16);
    __syncthreads();  // all of the tile is stored before thread 0 releases it
    if (threadIdx.x != 0) return true;
    wait_link(context_.watch, arrival);
    return publish(transfer);
  }

  // Thread 0, behind a barrier after the pull: with the last one, peers may stage anew.
  LIQUIDCP_DEVICE void count(u32 num_transfers) const {
    if (count_done(context_.rank.tickets + TRANSFERS_DONE, context_.watch.epoch) == num_transfers) {
      publish_done(context_.watch);
    }
  }

  // Thread 0. A peer that was ready stays so.
  LIQUIDCP_DEVICE bool wait_for_source(i32 peer) {
    if ((ready_peers_ >> peer & 1) == 0) {
      if (!wait_ready(context_.watch, context_.plan, peer)) return false;
      ready_peers_ |= 1u << peer;
    }
    return true;
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
      fault_delay(context_.watch, DelayPoint::SIGNAL);
      if (fault_drops(context_.watch, FaultKind::TILE, transfer.signal)) return true;
      ptx::st_release_gpu(context_.rank.signals + transfer.signal, tagged(context_.watch.epoch, 1));
      return true;
    }
    if (transfer.sequence < 0) return true;
    return publish_arrival(context_.watch, context_.rank, context_.plan.sequences()[transfer.sequence],
                           transfer.sequence, transfer.target, transfer.arrival_class != 0);
  }

  const Context& context_;
  u32 ready_peers_ = 0;  // one bit a peer whose READY was seen
};

}  // namespace liquidcp
