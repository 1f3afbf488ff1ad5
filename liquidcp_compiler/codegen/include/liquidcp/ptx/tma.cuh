#pragma once
// Tiles by the tensor copy engine (sm_90): boxes of {columns, head, tokens} of a tensor [tokens, heads, HEAD_DIM].
#include <liquidcp/generated/layout.cuh>

namespace liquidcp::ptx {

// Global to shared. What lies outside the tensor becomes zero; the barrier counts the whole box all the same.
LIQUIDCP_DEVICE void tma_load(u32 to, const TensorMap& map, u32 barrier, i32 column, i32 head, i32 token) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(token) : "memory");
}
// The same into the CTAs of the cluster that `ctas` has a bit for: to the same place, counted at each one's barrier.
LIQUIDCP_DEVICE void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, u16 ctas, i32 column, i32 head,
                                        i32 token) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;"
      ::"r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(token), "h"(ctas) : "memory");
}
// Shared to global; what lies outside the tensor is not written.
LIQUIDCP_DEVICE void tma_store(const TensorMap& map, u32 from, i32 column, i32 head, i32 token) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(&map), "r"(from), "r"(column), "r"(head), "r"(token) : "memory");
}
LIQUIDCP_DEVICE void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until this thread's stores have read shared memory.
LIQUIDCP_DEVICE void tma_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Until they are done.
LIQUIDCP_DEVICE void tma_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// `bytes` (a multiple of 16) from `from` on are likely to be read soon.
LIQUIDCP_DEVICE void prefetch_l2(const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Ordinary accesses to shared memory before this come before those of the copy engine and the tensor cores after it.
LIQUIDCP_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
LIQUIDCP_DEVICE void fence_proxy_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace liquidcp::ptx
