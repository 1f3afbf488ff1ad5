#pragma once
// The compute role of a CTA on the Hopper path: one warpgroup feeds, two attend.
#include <liquidcp/hopper/consumer.cuh>
#include <liquidcp/hopper/loader.cuh>
#include <liquidcp/hopper/scheduler_warp.cuh>

namespace liquidcp {

struct HopperCompute {
  const TensorMaps& maps;

  // `going`: may anything be done? All CTAs come here, since those of a cluster need each other to leave.
  LIQUIDCP_DEVICE void run(const Context& context, bool going) const {
    const RankMaps& rank = maps.ranks[context.watch.rank - context.params.first_rank];
    if (threadIdx.x == 0) hopper::init_state();
    sync();
    const i32 warpgroup = __shfl_sync(FULL_WARP, static_cast<i32>(threadIdx.x) >> 7, 0);
    if (warpgroup == 0) {
      ptx::setmaxnreg_dec<config::PRODUCER_REGISTERS>();
      if (threadIdx.x < 32) {
        hopper::SchedulerWarp(context).run(going);
      } else if (threadIdx.x == 32) {
        hopper::Loader(context, rank).run();
      }
    } else {
      ptx::setmaxnreg_inc<config::CONSUMER_REGISTERS>();
      hopper::Consumer(context, rank, warpgroup - 1).run();
    }
    sync();  // the other CTA of a cluster may still write here
    if (threadIdx.x == 0) hopper::report_broken(context.watch);
  }

 private:
  LIQUIDCP_DEVICE static void sync() {
    if constexpr (config::CLUSTER == 1) {
      __syncthreads();
    } else {
      __syncwarp();
      ptx::cluster_sync();
    }
  }
};

}  // namespace liquidcp
