#pragma once
// Asynchronous copies of 16 bytes from global to shared memory (sm_80 and up).
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

// Copies 16 bytes, or writes 16 zero bytes and reads nothing if `valid` is false.
LIQUIDCP_DEVICE void cp_async_16(u32 smem, const void* gmem, bool valid) {
  const u32 bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(gmem), "r"(bytes) : "memory");
}
LIQUIDCP_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <i32 PENDING>
LIQUIDCP_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace liquidcp::ptx
