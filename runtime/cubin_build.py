"""A kernel's cubin from the first of three places that has it: a bundle, the cache on disk, the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from liquidcp_compiler import options
from liquidcp_compiler.errors import DriverError, NvrtcError
from liquidcp_runtime import nvrtc
from liquidcp_runtime.bundle import Bundle
from liquidcp_runtime.cubin_cache import CubinCache
from liquidcp_runtime.cubin_key import cubin_key, source_key
from liquidcp_runtime.kernel_source import KernelSource


class Origin(StrEnum):
    """Where a cubin came from."""

    BUNDLE = "bundle"
    DISK = "disk"
    COMPILED = "compiled"


@dataclass(frozen=True, kw_only=True)
class BuiltCubin:
    """A cubin, where it came from, and the key of its sources."""

    cubin: bytes
    origin: Origin
    source_key: str


def build_cubin(kernel: KernelSource, arch: str, bundles: Sequence[Path] | None = None) -> BuiltCubin:
    """The cubin of ``kernel`` for ``arch``; ``bundles`` are folders, None takes ``LIQUIDCP_KERNELS``.

    NVRTC is needed only where no bundle has the kernel. Raises NvrtcError; InvalidField for an arch or a bundle that
    makes no sense.
    """
    key = source_key(kernel, arch)
    for folder in options.kernels() if bundles is None else bundles:
        cubin = Bundle.read(folder).cubin(kernel.name, arch, key)
        if cubin is not None:
            return BuiltCubin(cubin=cubin, origin=Origin.BUNDLE, source_key=key)
    try:
        nvrtc.check_arch(arch)
    except (NvrtcError, DriverError) as error:  # no library, no binding, or one that is too old
        hint = f"{kernel.name} is in no bundle ({options.KERNELS.name}), so it must be compiled for {arch}"
        raise NvrtcError(f"{hint}: {error}") from error
    cubin, compiled = CubinCache().get(
        cubin_key(kernel, arch, nvrtc.nvrtc_version()), lambda: compile_kernel(kernel, arch).cubin
    )
    return BuiltCubin(cubin=cubin, origin=Origin.COMPILED if compiled else Origin.DISK, source_key=key)


def compile_kernel(kernel: KernelSource, arch: str) -> nvrtc.CompiledCubin:
    """Compile; sources that fail are saved where ``LIQUIDCP_DUMP_IR`` says. Raises NvrtcError, InvalidField."""
    dump = options.dump_ir()
    return nvrtc.compile_cubin(kernel.source, kernel.headers, arch, name=f"{kernel.name}.cu", dump_dir=dump)
