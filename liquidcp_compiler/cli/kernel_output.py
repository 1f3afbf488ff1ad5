"""Generated CUDA on disk, compiled, with what it costs: shared by ``dump`` and ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from liquidcp_compiler.cli.output import Output
from liquidcp_compiler.ir.atomic_file import write_file

if TYPE_CHECKING:
    from liquidcp_compiler.ir.kernel_spec import KernelSpec


def write_kernel(spec: KernelSpec, folder: Path, archs: list[str], out: Output) -> dict[str, Any]:
    """Write the kernel as one .cu file and a cubin for each of ``archs``; returns paths and resource use.

    Raises CodegenError where no kernel can be generated, InvalidField or NvrtcError for an architecture.
    """
    from liquidcp_compiler.codegen.emitter import emit
    from liquidcp_runtime.nvrtc import check_arch, compile_cubin

    for arch in archs:
        check_arch(arch)
    kernel = emit(spec)
    source = write_file(folder / f"{kernel.name}.cu", kernel.self_contained())
    data: dict[str, Any] = {"source": str(source), "num_threads": kernel.num_threads}
    data |= {"smem_bytes": kernel.smem_bytes, "compiled": []}
    for arch in archs:
        with out.working(f"compiling {kernel.name} for {arch}"):
            done = compile_cubin(kernel.source, kernel.headers, arch, name=f"{kernel.name}.cu")
        cubin = write_file(folder / f"{kernel.name}.{arch}.cubin", done.cubin)
        data["compiled"].append({"arch": arch, "cubin": str(cubin), "seconds": done.seconds, **_cost(done.cubin)})
    return data


def print_kernel(data: dict[str, Any], out: Output) -> None:
    """The paths and, for each architecture, what a CTA needs."""
    out.line(f"CUDA      {data['source']}")
    if not data["compiled"]:
        return
    names = ("arch", "registers", "local_bytes", "spill_store_bytes", "spill_load_bytes", "static_smem_bytes")
    rows = [
        [*(str(c[n]) for n in names), str(data["smem_bytes"]), str(data["num_threads"]), f"{c['seconds']:.1f} s"]
        for c in data["compiled"]
    ]
    headings = ["arch", "registers", "local", "spill st", "spill ld", "static smem", "dynamic smem", "threads", "time"]
    out.table(headings, rows, left=[0])


def _cost(cubin: bytes) -> dict[str, Any]:
    from dataclasses import asdict

    from liquidcp_runtime.cubin import resources

    (cost,) = resources(cubin).values()
    return asdict(cost)
