"""Partial results of a ring, merged: one fused kernel on a GPU, the same arithmetic in torch elsewhere."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from liquidcp_runtime import driver_api
from liquidcp_runtime.module import arch_of
from liquidcp_runtime.nvrtc import compile_cubin

_THREADS = 256
_SOURCE = """
extern "C" __global__ void __launch_bounds__(256) merge(float* out, float* lse, const uint4* part,
                                                        const float* part_lse, int tokens, int heads, int chunks,
                                                        long long lse_stride) {
  const long long item = blockIdx.x * 256ll + threadIdx.x;  // eight columns of a (token, head)
  const long long row = item / chunks;
  if (row >= static_cast<long long>(tokens) * heads) return;
  const int token = row / heads, head = row % heads;
  const float a = lse[head * lse_stride + token], b = part_lse[static_cast<long long>(head) * tokens + token];
  const float top = fmaxf(a, b);
  const float wa = a == -INFINITY ? 0.0f : __expf(a - top), wb = b == -INFINITY ? 0.0f : __expf(b - top);
  const float inverse = wa + wb > 0.0f ? 1.0f / (wa + wb) : 0.0f;
  float4* to = reinterpret_cast<float4*>(out) + item * 2;
  const uint4 p = part[item];
  float4 low = to[0], high = to[1];
  const float fa = wa * inverse, fb = wb * inverse;
  low.x = fa * low.x + fb * __uint_as_float(p.x << 16);
  low.y = fa * low.y + fb * __uint_as_float(p.x & 0xffff0000u);
  low.z = fa * low.z + fb * __uint_as_float(p.y << 16);
  low.w = fa * low.w + fb * __uint_as_float(p.y & 0xffff0000u);
  high.x = fa * high.x + fb * __uint_as_float(p.z << 16);
  high.y = fa * high.y + fb * __uint_as_float(p.z & 0xffff0000u);
  high.z = fa * high.z + fb * __uint_as_float(p.w << 16);
  high.w = fa * high.w + fb * __uint_as_float(p.w & 0xffff0000u);
  to[0] = low;
  to[1] = high;
}
extern "C" __global__ void __launch_bounds__(256) merge_lse(float* lse, const float* part_lse, int tokens, int heads,
                                                            long long lse_stride) {
  const int item = blockIdx.x * 256 + threadIdx.x;
  if (item >= tokens * heads) return;
  float& a = lse[(item / tokens) * lse_stride + item % tokens];
  const float b = part_lse[item], top = fmaxf(a, b);
  a = top == -INFINITY ? top : top + __logf(__expf(a - top) + __expf(b - top));
}
"""


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a partial result into ``out`` fp32 [tokens, heads, d] and ``lse`` fp32 [heads, tokens], in place.

    part: bf16 like out; part_lse: like lse. ``out`` is contiguous; ``lse`` may be a slice of longer rows.
    """
    if not out.is_cuda:
        both = torch.logaddexp(lse, part_lse)
        weight = torch.exp(part_lse - both).nan_to_num(0.0).T[..., None]
        out.mul_(torch.exp(lse - both).nan_to_num(0.0).T[..., None]).add_(weight * part.float())
        lse.copy_(both)
        return
    tokens, heads, d = out.shape
    first, second = _kernels(out.device)
    part, part_lse = part.contiguous(), part_lse.contiguous()
    pointers = (out.data_ptr(), lse.data_ptr(), part.data_ptr(), part_lse.data_ptr())
    numbers = (ctypes.c_int(tokens), ctypes.c_int(heads), ctypes.c_int(d // 8), ctypes.c_longlong(lse.stride(0)))
    _launch(first, tokens * heads * (d // 8), *map(ctypes.c_void_p, pointers), *numbers)
    _launch(
        second, tokens * heads, *map(ctypes.c_void_p, (pointers[1], pointers[3])), numbers[0], numbers[1], numbers[3]
    )


@cache
def _kernels(device: torch.device) -> tuple[object, object]:
    source = "#define INFINITY __int_as_float(0x7f800000)\n" + _SOURCE
    cubin = compile_cubin(source, {}, arch_of(device), name="merge.cu").cubin
    module = driver_api.call("cuModuleLoadData", cubin)
    first, second = (driver_api.call("cuModuleGetFunction", module, name) for name in (b"merge", b"merge_lse"))
    return first, second


def _launch(function: object, items: int, *values: ctypes._SimpleCData) -> None:
    arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    stream = torch.cuda.current_stream().cuda_stream
    blocks = -(-items // _THREADS)
    driver_api.call("cuLaunchKernel", function, blocks, 1, 1, _THREADS, 1, 1, 0, stream, ctypes.addressof(arguments), 0)
