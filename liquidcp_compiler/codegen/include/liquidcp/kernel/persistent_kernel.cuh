#pragma once
// The kernel, as an assembly of its parts. One cooperative launch holds all ranks: rank = CTA index / CTAs a rank.
#include <liquidcp/common/shared_memory.cuh>
#include <liquidcp/tasks/claim_scan.cuh>
#include <liquidcp/tasks/context.cuh>
#include <liquidcp/tasks/staging.cuh>
#include <liquidcp/tasks/transfer.cuh>

namespace liquidcp {

// One thread. May this launch begin: nothing has gone wrong before, and the plan is one that this kernel reads?
LIQUIDCP_DEVICE bool may_begin(const Context& context) {
  if (context.watch.aborted()) return false;
  const u64 seen = context.plan.header().layout_hash;
  if (seen == LAYOUT_HASH) return true;
  context.watch.fail(ErrorCode::LAYOUT, context.watch.rank, 0, LAYOUT_HASH, seen, 0);
  return false;
}

// The last CTA out starts the next epoch.
LIQUIDCP_DEVICE void leave(const Context& context) {
  const KernelParams& params = context.params;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (config::TRACE) params.trace_counts[blockIdx.x] = context.shared.num_records;
  ptx::fence_acq_rel_gpu();
  if (ptx::atom_add_relaxed_gpu(params.exits, 1) + 1 == gridDim.x) {
    ptx::st_relaxed_gpu(params.exits, 0);
    ptx::st_relaxed_gpu(params.epoch, static_cast<u64>(context.watch.epoch) + 1);
  }
}

// `compute.run(context, going)`: the whole CTA claims and computes until nothing is left, or does nothing.
template <class Compute>
LIQUIDCP_DEVICE void persistent_kernel(const KernelParams& params, const Compute& compute) {
  SharedWords& shared = static_smem<SharedWords>();
  const i32 rank_idx = static_cast<i32>(blockIdx.x) / params.ctas_per_rank;
  const i32 cta_idx = static_cast<i32>(blockIdx.x) % params.ctas_per_rank;
  if (threadIdx.x == 0) {
    shared.epoch = static_cast<u32>(ptx::ld_relaxed_gpu(params.epoch));
    shared.num_records = 0;
    ClaimScan::begin(shared);
  }
  __syncthreads();
  const RankParams& rank = params.ranks[rank_idx];
  Watch watch = {params, shared.epoch, params.first_rank + rank_idx, cta_idx, CtaRole::COMM, -1,
                 rank.tickets + ENTRY_WAITERS};
  const Context context = {params, rank, PlanView(rank.plan), shared, watch, dynamic_smem_address()};

  bool going = __syncthreads_and(threadIdx.x != 0 || may_begin(context));
  if (going && cta_idx < params.num_comm_ctas) going = StagingQueue(context).run() && TransferQueue(context).run();
  compute.run(context, going);
  leave(context);
}

}  // namespace liquidcp
