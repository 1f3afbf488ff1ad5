#pragma once
// Barriers in shared memory that count arrivals and bytes (sm_90). A phase is named by its parity.
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After all inits, before a barrier of the CTA: the copy engine sees them.
LIQUIDCP_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

LIQUIDCP_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// One arrival, and `bytes` that copies will bring.
LIQUIDCP_DEVICE void mbarrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Is the phase of that parity over? Never blocks.
LIQUIDCP_DEVICE bool mbarrier_test(u32 barrier, u32 parity) {
  u32 over;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
  return over != 0;
}
// The same, after waiting for a while that the hardware chooses.
LIQUIDCP_DEVICE bool mbarrier_try(u32 barrier, u32 parity) {
  u32 over;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
      : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
  return over != 0;
}

}  // namespace liquidcp::ptx
