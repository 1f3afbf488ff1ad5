"""Generated CUDA on disk, compiled, with what it costs: shared by ``dump`` and ``demo``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liquidcp_compiler.cli.output import Output
from liquidcp_compiler.ir.atomic_file import write_file

if TYPE_CHECKING:
    from liquidcp_compiler.codegen.emitter import GeneratedKernel
    from liquidcp_compiler.ir.kernel_spec import KernelSpec


def write_kernels(
    spec: KernelSpec, folder: Path, archs: Sequence[str], out: Output, path: str | None = None
) -> list[dict[str, Any]]:
    """Write each kernel that one of ``archs`` runs as one .cu file, and its cubins; returns paths and resource use.

    Without ``archs`` nothing is compiled, and the kernel is that of the path, or the portable one. ``path`` as in
    ``emit``. Raises CodegenError where no kernel can be generated, InvalidField or NvrtcError for an architecture.
    """
    from liquidcp_compiler.codegen.emitter import emit
    from liquidcp_compiler.codegen.support import HOPPER_ARCH
    from liquidcp_compiler.ir.kernel_path import HOPPER
    from liquidcp_runtime.nvrtc import check_arch

    for arch in archs:
        check_arch(arch)
    if not archs:
        return [_write_source(emit(spec, HOPPER_ARCH if path == HOPPER else "sm_80", path=path), folder)]
    kernels = [emit(spec, arch, path=path) for arch in archs]
    written = {kernel.name: _write_source(kernel, folder) for kernel in kernels}
    for kernel, arch in zip(kernels, archs, strict=True):
        written[kernel.name]["compiled"].append(_compile(kernel, arch, folder, out))
    return list(written.values())


def print_kernels(kernels: list[dict[str, Any]], out: Output) -> None:
    """The paths and, for each architecture, what a CTA needs."""
    for data in kernels:
        out.line(f"CUDA      {data['source']}")
    names = ("arch", "registers", "local_bytes", "spill_store_bytes", "spill_load_bytes", "static_smem_bytes")
    rows = [
        [*(str(c[n]) for n in names), str(data["smem_bytes"]), str(data["num_threads"]), f"{c['seconds']:.1f} s"]
        for data in kernels
        for c in data["compiled"]
    ]
    headings = ["arch", "registers", "local", "spill st", "spill ld", "static smem", "dynamic smem", "threads", "time"]
    if rows:
        out.table(headings, rows, left=[0])


def _write_source(kernel: GeneratedKernel, folder: Path) -> dict[str, Any]:
    source = write_file(folder / f"{kernel.name}.cu", kernel.self_contained())
    sizes = {"num_threads": kernel.num_threads, "smem_bytes": kernel.smem_bytes}
    return {"source": str(source), "path": kernel.path, **sizes, "compiled": []}


def _compile(kernel: GeneratedKernel, arch: str, folder: Path, out: Output) -> dict[str, Any]:
    from liquidcp_runtime.nvrtc import compile_cubin

    with out.working(f"compiling {kernel.name} for {arch}"):
        done = compile_cubin(kernel.source, kernel.headers, arch, name=f"{kernel.name}.cu")
    cubin = write_file(folder / f"{kernel.name}.{arch}.cubin", done.cubin)
    return {"arch": arch, "cubin": str(cubin), "seconds": done.seconds, **_cost(done.cubin)}


def _cost(cubin: bytes) -> dict[str, Any]:
    from dataclasses import asdict

    from liquidcp_runtime.cubin import resources

    (cost,) = resources(cubin).values()
    return asdict(cost)
