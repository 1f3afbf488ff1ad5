"""Compile every shipped kernel with NVRTC, on all cores, and print what each costs.

    python tools/build_kernels.py [--covering] [--arch sm_80 sm_90a sm_100a] [--jobs N]

Fails on a kernel that does not compile, spills or uses local memory, or whose log has a warning that costs speed: wgmma
that was serialised (C7508, C7510, C7520).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from liquidcp_compiler.codegen.build_all import ARCH_OPTIONS, covering_specs, kernel_jobs, specs
from liquidcp_compiler.codegen.emitter import emit
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_runtime.cubin import KernelResources, resources
from liquidcp_runtime.nvrtc import compile_cubin

ARCHS = tuple(ARCH_OPTIONS)
_COSTLY_WARNING = re.compile(r"C75(08|10|20)")
_HEADING = f"{'kernel':<58} {'arch':<8} {'registers':>9} {'spilled':>7} {'local':>5} {'shared':>7} {'seconds':>7}"


@dataclass(frozen=True, kw_only=True)
class BuiltKernel:
    """One compiled kernel. ``smem_bytes``: static and dynamic shared memory of a CTA; ``seconds`` inside NVRTC."""

    name: str
    arch: str
    resources: KernelResources
    smem_bytes: int
    seconds: float
    log: str

    @property
    def row(self) -> str:
        """A line of the table."""
        r = self.resources
        spilled = r.spill_store_bytes + r.spill_load_bytes
        costs = f"{r.registers:>9} {spilled:>7} {r.local_bytes:>5} {self.smem_bytes:>7} {self.seconds:>7.2f}"
        return f"{self.name:<58} {self.arch:<8} {costs}"

    @property
    def fault(self) -> str:
        """Why it may not be shipped; empty if it may."""
        r = self.resources
        if r.spill_store_bytes or r.spill_load_bytes or r.local_bytes:
            return f"{self.name} spills on {self.arch}"
        warning = _COSTLY_WARNING.search(self.log)
        return f"{self.name} on {self.arch}: {warning.group()} in the log" if warning else ""


def build(spec: KernelSpec, arch: str) -> BuiltKernel:
    """Emit and compile one kernel. Raises CodegenError, NvrtcError."""
    kernel = emit(spec, arch)
    compiled = compile_cubin(kernel.source, kernel.headers, arch, name=f"{kernel.name}.cu")
    cost = resources(compiled.cubin)[kernel.name]
    return BuiltKernel(
        name=kernel.name,
        arch=arch,
        resources=cost,
        smem_bytes=kernel.smem_bytes + cost.static_smem_bytes,
        seconds=compiled.seconds,
        log=compiled.log,
    )


def build_many(wanted: Iterable[KernelSpec], archs: Sequence[str], jobs: int) -> Iterator[BuiltKernel]:
    """Each kernel for each architecture, in order, ``jobs`` at a time. Raises what :func:`build` raises."""
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(build, *zip(*kernel_jobs(wanted, archs), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the command line: 0, or 1 if a kernel may not be shipped."""
    parser = argparse.ArgumentParser(prog="build_kernels", description="Compile every shipped kernel with NVRTC.")
    parser.add_argument("--covering", action="store_true", help="only the smaller set that covers every choice")
    parser.add_argument("--arch", nargs="+", choices=ARCHS, default=ARCHS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="kernels at a time (default: cores)")
    options = parser.parse_args(arguments)
    begin, built = time.perf_counter(), []
    print(_HEADING)
    for kernel in build_many(covering_specs() if options.covering else specs(), options.arch, options.jobs):
        print(kernel.row, flush=True)
        built.append(kernel)
    faults = [kernel.fault for kernel in built if kernel.fault]
    slowest, largest = max(built, key=lambda k: k.seconds), max(built, key=lambda k: k.resources.registers)
    print(f"{len(built)} kernels in {time.perf_counter() - begin:.0f} s, {options.jobs} at a time")
    print(f"slowest: {slowest.name} {slowest.arch}, {slowest.seconds:.2f} s")
    print(f"most registers: {largest.name} {largest.arch}, {largest.resources.registers}")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
