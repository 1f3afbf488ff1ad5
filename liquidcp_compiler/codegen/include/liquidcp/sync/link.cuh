#pragma once
// A model of the link into a rank, for one GPU that stands for one of several: pulls share its bandwidth and pay its
// latency. Without a model nothing waits.
#include <liquidcp/sync/watch.cuh>

namespace liquidcp {

// One thread, before it pulls: when would `bytes` have arrived?
LIQUIDCP_DEVICE u64 reserve_link(const Watch& watch, i64 bytes) {
  const KernelParams& params = watch.params;
  if (params.link_bytes_per_ns <= 0.0f) return 0;
  u64* busy = params.link_busy + (watch.rank - params.first_rank);
  const u64 now = ptx::globaltimer_ns();
  const u64 duration = static_cast<u64>(static_cast<f32>(bytes) / params.link_bytes_per_ns);
  u64 old = ptx::ld_relaxed_gpu(busy);
  while (true) {
    const u64 end = (old > now ? old : now) + duration;
    const u64 seen = ptx::atom_cas_relaxed_gpu(busy, old, end);
    if (seen == old) return end + params.link_latency_ns;
    old = seen;
  }
}

// The same thread, after it has pulled.
LIQUIDCP_DEVICE void wait_link(const Watch& watch, u64 arrival) {
  while (ptx::globaltimer_ns() < arrival && !watch.aborted()) ptx::nanosleep(50);
}

}  // namespace liquidcp
