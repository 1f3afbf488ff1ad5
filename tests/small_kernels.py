"""Kernels of a few lines in place of generated ones, which compile in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liquidcp_compiler.ir.kernel_path import TensorBoxes
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.problem import PrefillProblem

SOURCE = """#include <liquidcp/value.cuh>
extern "C" __global__ void {name}(int* x) {{ *x = VALUE; }}
"""

SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* x) {
    float a[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; ++i) x[i * 1024 + (threadIdx.x ^ 1)] = a[i] * a[95 - i];
}
"""

#: ptxas ignores setmaxnreg without launch bounds, and says so: C7508. For sm_90a and newer.
IGNORED_SETMAXNREG = """
extern "C" __global__ void ignored(int* x) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    *x = 1;
}
"""


@dataclass(frozen=True, kw_only=True)
class SmallKernel:
    """What the runtime asks of a generated kernel."""

    name: str
    source: str
    headers: Mapping[str, str] = field(default_factory=dict)
    num_threads: int = 1
    smem_bytes: int = 0
    path: str = "portable"
    boxes: TensorBoxes | None = None


def constant_kernel(value: int = 1, name: str = "constant") -> SmallKernel:
    """A kernel that stores ``value``, which only a header says."""
    headers = {"liquidcp/value.cuh": f"#pragma once\n#define VALUE {value}\n", "liquidcp/unused.cuh": "#pragma once\n"}
    return SmallKernel(name=name, source=SOURCE.format(name=name), headers=headers)


def emit_constant(value: int = 1, name: str | None = None) -> Callable[[KernelSpec, str], SmallKernel]:
    """An emitter of :func:`constant_kernel`, by default under the name of the specification."""
    return lambda spec, arch: constant_kernel(value, name or spec.name)


def a_spec(**problem: Any) -> KernelSpec:
    """The specification of a plan with one sequence."""
    from liquidcp_compiler.driver import plan

    fields: dict[str, Any] = {"lengths": (300,), "num_heads_q": 2, "num_heads_kv": 1, "head_dim": 64, **problem}
    return plan(PrefillProblem(**fields), 2).spec


def entry_names(cache_dir: Path) -> list[str]:
    return [path.name for path in (cache_dir / "cubins").iterdir() if path.is_dir() and path.name[0] != "."]
