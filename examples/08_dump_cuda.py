"""The generated kernel on disk: one file that plain nvcc also compiles, and what it costs on two architectures."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import liquidcp_runtime
from liquidcp_compiler import PrefillProblem, plan
from liquidcp_compiler.codegen.emitter import emit
from liquidcp_runtime.cubin import resources
from liquidcp_runtime.nvrtc import compile_cubin
from liquidcp_runtime.reference import error_report


def main() -> None:
    problem = PrefillProblem(lengths=(500, 130), num_heads_q=2, num_heads_kv=1, head_dim=64)
    batch = plan(problem, 2)

    # The specification holds what needs a new compile: no lengths, no ranks, no order of anything.
    print(batch.spec)
    assert plan(PrefillProblem(lengths=(900,), num_heads_q=8, num_heads_kv=2, head_dim=64), 4).spec == batch.spec

    kernel = emit(batch.spec)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kernel.name}.cu"
        path.write_text(kernel.self_contained())
        lines = len(path.read_text().splitlines())
        print(f"{path.name}: {lines} lines, which nvcc -std=c++20 -arch=sm_80 -cubin compiles")

    # NVRTC needs neither a toolkit nor a GPU. An architecture may have a faster kernel of its own.
    for arch in ("sm_80", "sm_90a"):
        kernel = emit(batch.spec, arch)
        compiled = compile_cubin(kernel.source, kernel.headers, arch)
        cost = resources(compiled.cubin)[kernel.name]
        memory = f"{kernel.smem_bytes} bytes of shared memory"
        print(f"{arch}: the {kernel.path} path, {cost.registers} registers, {memory}, no spills")
        assert cost.spill_store_bytes == cost.spill_load_bytes == 0

    # Without a GPU the same plan runs in the interpreter.
    q = torch.randn(problem.total_q, 2, 64).bfloat16()
    k, v = (torch.randn(problem.total_kv, 1, 64).bfloat16() for _ in "kv")
    out, lse = liquidcp_runtime.cpu(2).run(batch, q, k, v)
    assert error_report(problem, out, lse, q, k, v).ok()


if __name__ == "__main__":
    main()
