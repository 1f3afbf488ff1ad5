#pragma once
// Emulated: time is the scheduler's.
#include <emulator/cuda.h>
#include <emulator/scheduler.h>
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE u64 globaltimer_ns() { return emulator::scheduler.now(); }
LIQUIDCP_DEVICE i32 sm_idx() { return static_cast<i32>(blockIdx.x); }
LIQUIDCP_DEVICE void nanosleep(u32 ns) { emulator::scheduler.sleep(ns); }

}  // namespace liquidcp::ptx
