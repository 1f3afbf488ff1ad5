#pragma once
// The compute role of a CTA on the Hopper path: one warpgroup feeds, two attend.
#include <liquidcp/hopper/consumer.cuh>
#include <liquidcp/hopper/loader.cuh>
#include <liquidcp/hopper/scheduler_warp.cuh>

namespace liquidcp {

struct HopperCompute {
  const TensorMaps& maps;

  LIQUIDCP_DEVICE void run(const Context& context) const {
    const RankMaps& rank = maps.ranks[context.watch.rank - context.params.first_rank];
    if (threadIdx.x == 0) hopper::init_state();
    __syncthreads();
    const i32 warpgroup = __shfl_sync(FULL_WARP, static_cast<i32>(threadIdx.x) >> 7, 0);
    if (warpgroup == 0) {
      ptx::setmaxnreg_dec<config::PRODUCER_REGISTERS>();
      if (threadIdx.x < 32) {
        hopper::SchedulerWarp(context).run();
      } else if (threadIdx.x == 32) {
        hopper::Loader(context, rank).run();
      }
    } else {
      ptx::setmaxnreg_inc<config::CONSUMER_REGISTERS>();
      hopper::Consumer(context, rank, warpgroup - 1).run();
    }
    __syncthreads();
    if (threadIdx.x == 0) hopper::report_broken(context.watch);
  }
};

}  // namespace liquidcp
