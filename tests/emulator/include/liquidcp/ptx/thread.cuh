#pragma once
// Emulated: the index of the current fiber.
#include <emulator/scheduler.h>
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE i32 thread_idx() { return emulator::scheduler.current->idx; }

}  // namespace liquidcp::ptx
