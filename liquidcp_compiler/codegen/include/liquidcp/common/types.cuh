#pragma once
// Fixed-width names, since neither NVRTC nor these headers have a standard library.

#define LIQUIDCP_DEVICE __device__ __forceinline__

namespace liquidcp {

using u8 = unsigned char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using f32 = float;

constexpr u32 FULL_WARP = 0xffffffffu;
constexpr i32 MAX_I32 = 0x7fffffff;

LIQUIDCP_DEVICE constexpr i32 ceil_div(i32 a, i32 b) { return (a + b - 1) / b; }
LIQUIDCP_DEVICE constexpr i32 min_of(i32 a, i32 b) { return a < b ? a : b; }
LIQUIDCP_DEVICE constexpr i32 max_of(i32 a, i32 b) { return a > b ? a : b; }

}  // namespace liquidcp
