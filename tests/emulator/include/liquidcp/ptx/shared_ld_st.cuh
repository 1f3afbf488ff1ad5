#pragma once
// Emulated: floats in shared memory.
#include <emulator/memory.h>
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE void ld_shared_v4_f32(u32 address, f32 (&v)[4]) { memcpy(v, emulator::shared_bytes(address, 16), 16); }
LIQUIDCP_DEVICE void ld_shared_v2_f32(u32 address, f32 (&v)[2]) { memcpy(v, emulator::shared_bytes(address, 8), 8); }
LIQUIDCP_DEVICE void st_shared_v4_f32(u32 address, const f32 (&v)[4]) {
  memcpy(emulator::shared_bytes(address, 16), v, 16);
}

}  // namespace liquidcp::ptx
