"""Compile kernels into a bundle, and refuse those that must not be shipped."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_runtime import nvrtc
from liquidcp_runtime.bundle import Bundle, BundledKernel, write_bundle
from liquidcp_runtime.cubin_build import compile_kernel
from liquidcp_runtime.cubin_key import source_key
from liquidcp_runtime.kernel_cost import check_shipped, kernel_cost
from liquidcp_runtime.kernel_source import Emit, KernelSource, default_emit


def build_bundle(
    folder: Path,
    specs: Iterable[KernelSpec],
    archs: Sequence[str],
    *,
    emit: Emit | None = None,
) -> Bundle:
    """Compile every kernel of ``specs`` for every one of ``archs``, anew and with its log, and write the bundle.

    Nothing is written unless all kernels pass. Raises KernelCostError for one that spills or lost speed; InvalidField,
    CodegenError, NvrtcError, OSError.
    """
    if not archs:
        raise InvalidField("archs", list(archs), "at least one architecture, e.g. sm_90a")
    for arch in archs:
        nvrtc.check_arch(arch)
    make = emit or default_emit()
    kernels = {}  # specifications can have a kernel in common
    for spec, arch in itertools.product(dict.fromkeys(specs), dict.fromkeys(archs)):
        kernel = make(spec, arch)
        kernels.setdefault((kernel.name, arch), (spec, kernel))
    built = [_build(spec, arch, kernel) for (_, arch), (spec, kernel) in kernels.items()]
    if not built:
        raise InvalidField("specs", [], "at least one kernel")
    return write_bundle(folder, built)


def _build(spec: KernelSpec, arch: str, kernel: KernelSource) -> tuple[BundledKernel, bytes]:
    compiled = compile_kernel(kernel, arch)
    cost = kernel_cost(compiled.cubin, kernel.name)
    check_shipped(kernel.name, arch, cost, compiled.log)
    bundled = BundledKernel(
        name=kernel.name,
        arch=arch,
        source_key=source_key(kernel, arch),
        nvrtc=".".join(map(str, compiled.nvrtc_version)),
        size=len(compiled.cubin),
        sha256=hashlib.sha256(compiled.cubin).hexdigest(),
        num_threads=kernel.num_threads,
        smem_bytes=kernel.smem_bytes,
        path=kernel.path,
        boxes=kernel.boxes,
        resources=cost,
        spec=spec.to_json(),
    )
    return bundled, compiled.cubin
