#pragma once
// CTAs of a cluster and each other's shared memory (sm_90).
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all CTAs of the cluster.
LIQUIDCP_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// At the same place in CTA `rank`. Plain, not .release.cluster: that would be a fence of the whole GPU.
LIQUIDCP_DEVICE void mbarrier_arrive_at(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank) : "memory");
}
// 16 bytes to the same place in CTA `rank`, which counts them at its barrier.
LIQUIDCP_DEVICE void st_async_v4(u32 to, u32 barrier, u32 rank, i32 a, i32 b, i32 c, i32 d) {
  asm volatile(
      "{\n.reg .b32 there, counter;\nmapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, %6}, [counter];\n}"
      ::"r"(to), "r"(barrier), "r"(rank), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

}  // namespace liquidcp::ptx
