#pragma once
// Emulated: 16-bit floats in bits, rounded to nearest even.
#include <bit>
#include <cmath>
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE f32 bf16_to_float(u16 h) { return std::bit_cast<f32>(static_cast<u32>(h) << 16); }

LIQUIDCP_DEVICE f32 f16_to_float(u16 h) {
  const u32 magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
  const bool finite = magnitude < 0x7c00u;
  const f32 scaled = std::bit_cast<f32>(magnitude << 13) * 0x1p112f;  // the exponents' biases differ by 112
  return std::bit_cast<f32>(sign | (finite ? std::bit_cast<u32>(scaled) : 0x7f800000u | magnitude << 13));
}

LIQUIDCP_DEVICE u16 float_to_bf16(f32 x) {
  const u32 bits = std::bit_cast<u32>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

LIQUIDCP_DEVICE u16 float_to_f16(f32 x) {
  const u32 bits = std::bit_cast<u32>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  const f32 size = std::fabs(x);
  u32 h;
  if (std::isnan(x)) {
    return 0x7fff;
  } else if (size >= 65520.0f) {  // half a step above the largest
    h = 0x7c00u;
  } else if (size < 0x1p-14f) {  // subnormal: multiples of 2^-24
    h = static_cast<u32>(std::lrint(size * 0x1p24f));
  } else {
    h = (magnitude + 0xfffu + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  }
  return static_cast<u16>(sign | h);
}

LIQUIDCP_DEVICE f32 ex2(f32 x) { return std::exp2(x); }
LIQUIDCP_DEVICE f32 rcp(f32 x) { return 1.0f / x; }
LIQUIDCP_DEVICE u32 cvt_f16x2(f32 lo, f32 hi) { return static_cast<u32>(float_to_f16(hi)) << 16 | float_to_f16(lo); }
LIQUIDCP_DEVICE u32 cvt_bf16x2(f32 lo, f32 hi) {
  return static_cast<u32>(float_to_bf16(hi)) << 16 | float_to_bf16(lo);
}

}  // namespace liquidcp::ptx
