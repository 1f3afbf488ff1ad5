#pragma once
// The compute role of a CTA on the portable path: one task after another, by all warps.
#include <liquidcp/tasks/claim_scan.cuh>
#include <liquidcp/tasks/compute.cuh>

namespace liquidcp {

struct PortableCompute {
  LIQUIDCP_DEVICE void run(const Context& context, bool going) const {
    if (!going) return;
    context.watch.role = CtaRole::COMPUTE;
    context.watch.task = -1;
    for (i32 tasks_done = 0; !fault_stops(context.watch, tasks_done); ++tasks_done) {
      const u64 begin = trace_begin();
      if (threadIdx.x == 0) fault_delay(context.watch, DelayPoint::CLAIM);
      __syncthreads();  // nobody still reads the last claim, or shared memory of its task
      if (threadIdx.x < 32) {
        Claim claim = {};
        const bool found = ClaimScan(context).next(claim);
        if (threadIdx.x == 0) {
          context.shared.claim = claim;
          context.shared.has_claim = found;
        }
      }
      __syncthreads();
      if (!context.shared.has_claim) return;
      const Claim claim = context.shared.claim;
      context.watch.task = claim.row;
      context.record(TraceKind::WAIT, claim.row, claim.unit, begin);
      if (!ComputeTask(context, claim).run()) return;
    }
  }
};

}  // namespace liquidcp
