#pragma once
// Emulated: shared memory belongs to the CTA of the current fiber.
#include <emulator/memory.h>
#include <liquidcp/common/types.cuh>

namespace liquidcp {

LIQUIDCP_DEVICE u32 dynamic_smem_address() { return 0; }

template <class T>
LIQUIDCP_DEVICE T& static_smem() {
  return emulator::static_shared<T>();
}

}  // namespace liquidcp
