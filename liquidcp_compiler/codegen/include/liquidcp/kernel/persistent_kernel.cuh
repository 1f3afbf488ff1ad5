#pragma once
// The kernel, as an assembly of its parts. One cooperative launch holds all ranks: rank = CTA index / CTAs a rank.
#include <liquidcp/common/shared_memory.cuh>
#include <liquidcp/tasks/context.cuh>
#include <liquidcp/kernel/scheduler.cuh>
#include <liquidcp/tasks/compute.cuh>
#include <liquidcp/tasks/transfer.cuh>

namespace liquidcp {

// One thread. Is the plan in memory the one that this kernel and this launch were made for?
LIQUIDCP_DEVICE bool check_plan(const Context& context) {
  const PlanHeader& header = context.plan.header();
  const u64 expected[2] = {LAYOUT_HASH, context.params.fingerprint};
  const u64 seen[2] = {header.layout_hash, header.fingerprint};
  if (seen[0] != expected[0]) {
    context.watch.fail(ErrorCode::LAYOUT, context.watch.rank, -1, expected[0], seen[0], 0);
    return false;
  }
  if (seen[1] != expected[1]) {
    context.watch.fail(ErrorCode::FINGERPRINT, context.watch.rank, -1, expected[1], seen[1], 0);
    return false;
  }
  return true;
}

// Claims and computes until nothing is left.
LIQUIDCP_DEVICE void run_compute(const Context& context) {
  context.watch.role = CtaRole::COMPUTE;
  context.watch.task = -1;
  ClaimScan scan(context);
  while (true) {
    __syncthreads();  // nobody still reads the last claim, or shared memory of its task
    if (threadIdx.x < 32) {
      Claim claim = {};
      const bool found = scan.next(claim);
      if (threadIdx.x == 0) {
        context.shared.claim = claim;
        context.shared.has_claim = found;
      }
    }
    __syncthreads();
    if (!context.shared.has_claim) return;
    const Claim claim = context.shared.claim;
    context.watch.task = claim.row;
    if (!ComputeTask(context, claim).run()) return;
  }
}

// The last CTA out starts the next epoch. A peer that may still read this rank's K and V would need a DONE signal first:
// here the end of the one launch that holds all ranks says the same.
LIQUIDCP_DEVICE void leave(const KernelParams& params, u32 epoch) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::fence_acq_rel_gpu();
  if (ptx::atom_add_relaxed_gpu(params.exits, 1) + 1 == gridDim.x) {
    ptx::st_relaxed_gpu(params.exits, 0);
    ptx::st_relaxed_gpu(params.epoch, static_cast<u64>(epoch) + 1);
  }
}

LIQUIDCP_DEVICE void persistent_kernel(const KernelParams& params) {
  SharedWords& shared = static_smem<SharedWords>();
  const i32 rank_idx = static_cast<i32>(blockIdx.x) / params.ctas_per_rank;
  const i32 cta_idx = static_cast<i32>(blockIdx.x) % params.ctas_per_rank;
  if (threadIdx.x == 0) shared.epoch = static_cast<u32>(ptx::ld_relaxed_gpu(params.epoch));
  __syncthreads();
  const u32 epoch = shared.epoch;
  const RankParams& rank = params.ranks[rank_idx];
  Watch watch = {params, epoch, rank_idx, cta_idx, CtaRole::COMM, -1};
  const Context context = {params, rank, PlanView(rank.plan), shared, watch, dynamic_smem_address()};

  bool going = __syncthreads_and(threadIdx.x != 0 || check_plan(context));
  // Q, K and V of this launch are in place: earlier work of the stream wrote them.
  if (going && cta_idx == 0 && threadIdx.x == 0) ptx::st_release_sys(rank.signals, tagged(epoch, 1));
  if (going && cta_idx < params.num_comm_ctas) going = TransferQueue(context).run();
  if (going) run_compute(context);
  leave(params, epoch);
}

}  // namespace liquidcp
