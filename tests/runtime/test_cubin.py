"""Resources read from a cubin agree with what ptxas says about the same compilation."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from liquidcp_compiler.errors import InvalidField
from liquidcp_runtime import cubin, nvrtc

SOURCE = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2.0f; }

extern "C" __global__ void __launch_bounds__(256) shared_tile(float* x) {
    __shared__ float tile[1024];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[1023 - threadIdx.x];
}

extern "C" __global__ void indexed_array(float* x, int n) {
    float a[64];
    #pragma unroll 1
    for (int i = 0; i < 64; ++i) a[(i * n) & 63] = x[i];
    x[threadIdx.x] = a[n & 63] + a[threadIdx.x & 63];
}

extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x) {
    float a[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; ++i) x[i * 1024 + (threadIdx.x ^ 1)] = a[i] * a[95 - i];
}

__device__ __noinline__ float helper(float* x, int n) {
    float a[32];
    #pragma unroll 1
    for (int i = 0; i < 32; ++i) a[(i * n) & 31] = x[i];
    return a[n & 31] + a[threadIdx.x & 31];
}
extern "C" __global__ void calls(float* x, int n) { x[threadIdx.x] = helper(x, n) + helper(x + 5, n + 1); }

template <int N> __global__ void __launch_bounds__(N) mangled(float* x) { x[threadIdx.x] = N; }
template __global__ void mangled<96>(float*);
"""

KERNELS = ["_Z7mangledILi96EEvPf", "calls", "indexed_array", "plain", "shared_tile", "spills"]
# sm_100a needs the kilobyte of reserved shared memory as sm_90a does.
ARCHS = ["sm_80", "sm_90a", "sm_100a"]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    data: bytes
    log: str
    resources: dict[str, cubin.KernelResources]


@pytest.fixture(scope="module", params=ARCHS)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    result = nvrtc.compile_cubin(SOURCE, {}, request.param)
    return Compiled(data=result.cubin, log=result.log, resources=cubin.resources(result.cubin))


def logged(log: str, kernel: str) -> str:
    """What ptxas says about one kernel, without line breaks."""
    after = log.split(f"Compiling entry function '{kernel}'")[1]
    return " ".join(after.split("Compile time")[0].split())


def number(text: str, pattern: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def test_names_are_the_kernels(compiled: Compiled) -> None:
    assert list(compiled.resources) == KERNELS


@pytest.mark.parametrize("kernel", KERNELS)
def test_resources_are_those_of_the_log(compiled: Compiled, kernel: str) -> None:
    text, found = logged(compiled.log, kernel), compiled.resources[kernel]
    assert found.registers == number(text, r"Used (\d+) registers")
    assert found.static_smem_bytes == number(text, r"(\d+) bytes smem")
    assert found.spill_store_bytes == number(text, r"(\d+) bytes spill stores")
    assert found.spill_load_bytes == number(text, r"(\d+) bytes spill loads")
    frame, cumulative = (
        number(text, r"(\d+) bytes stack frame"),
        number(text, r"(\d+) bytes cumulative stack"),
    )
    assert found.local_bytes == max(frame, cumulative)


def test_the_kernels_exercise_each_field(compiled: Compiled) -> None:
    found = compiled.resources
    assert found["shared_tile"].static_smem_bytes == 4096
    assert found["indexed_array"].local_bytes == 256
    assert found["indexed_array"].spill_store_bytes == 0
    assert found["calls"].local_bytes >= 128
    assert found["spills"].registers == 32
    assert found["spills"].local_bytes > 0
    assert found["spills"].spill_store_bytes >= found["spills"].local_bytes
    assert found["spills"].spill_load_bytes > 0
    assert found["plain"].local_bytes == 0


def test_launch_bounds(compiled: Compiled) -> None:
    limits = {name: found.max_threads for name, found in compiled.resources.items()}
    assert limits == {
        "_Z7mangledILi96EEvPf": 96,
        "calls": None,
        "indexed_array": None,
        "plain": None,
        "shared_tile": 256,
        "spills": 1024,
    }


def test_a_file_that_is_no_cubin_is_refused(compiled: Compiled) -> None:
    host_program = bytearray(compiled.data)
    host_program[18:20] = (62).to_bytes(2, "little")  # the machine field of an x86-64 program
    for data in (b"", b"\x7fELF", b"PK" + bytes(200), bytes(host_program)):
        with pytest.raises(InvalidField, match="cubin"):
            cubin.resources(data)


def test_a_torn_cubin_is_refused(compiled: Compiled) -> None:
    for size in range(6, len(compiled.data), len(compiled.data) // 40):
        with pytest.raises(InvalidField, match="cubin"):
            cubin.resources(compiled.data[:size])
