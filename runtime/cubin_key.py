"""A compilation as one key: all that changes the cubin is in it, and nothing of where anything is installed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property

from liquidcp_compiler.ir.layout import LAYOUT_HASH
from liquidcp_runtime.kernel_source import KernelSource
from liquidcp_runtime.nvrtc import compile_flags


@dataclass(frozen=True, kw_only=True)
class CubinKey:
    """Parts of a cache key.

    Fields: ``name`` of the kernel; ``arch``, e.g. ``sm_90a``; ``source_key``, see :func:`source_key`; ``layout_hash``
    of the descriptors, 16 hex digits; ``nvrtc``, the compiler's version, e.g. ``12.9``.
    """

    name: str
    arch: str
    source_key: str
    layout_hash: str
    nvrtc: str

    @cached_property
    def digest(self) -> str:
        """sha256 over all parts, 64 hex digits."""
        return _digest(f"{name}={value}" for name, value in asdict(self).items())


def layout_hash() -> str:
    """The hash of this version's descriptors as 16 hex digits."""
    return f"{LAYOUT_HASH:016x}"


def source_key(kernel: KernelSource, arch: str) -> str:
    """sha256 (hex) of what any compiler is given: name, exact source, headers in their order, flags in theirs."""
    headers = [part for item in kernel.headers.items() for part in item]
    counts = f"{len(headers)} parts of headers"  # so that no text can pass for a flag
    return _digest([kernel.name, kernel.source, counts, *headers, *compile_flags(arch)])


def cubin_key(kernel: KernelSource, arch: str, nvrtc: tuple[int, int]) -> CubinKey:
    """The key of ``kernel`` compiled for ``arch`` by that version of NVRTC."""
    return CubinKey(
        name=kernel.name,
        arch=arch,
        source_key=source_key(kernel, arch),
        layout_hash=layout_hash(),
        nvrtc=f"{nvrtc[0]}.{nvrtc[1]}",
    )


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
