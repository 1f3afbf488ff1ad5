"""Kernels by specification: generated, built or found, and loaded once a process and device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_runtime.bundle import Bundle
from liquidcp_runtime.cubin_build import BuiltCubin, Origin, build_cubin
from liquidcp_runtime.cubin_key import source_key
from liquidcp_runtime.kernel_source import Emit as Emit
from liquidcp_runtime.kernel_source import KernelSource, default_emit
from liquidcp_runtime.module import LoadedKernel, arch_of, load_kernel


@dataclass(frozen=True, kw_only=True)
class KernelCounts:
    """How many kernels a :class:`KernelCache` has had compiled, and how many it found on disk and in bundles."""

    compiled: int
    from_disk: int
    from_bundle: int


class KernelCache:
    """Loaded kernels of one process.

    Two kernels of one name and different sources are two kernels: what counts is the content.

    Args:
        emit: generates sources; None takes :func:`~liquidcp_runtime.kernel_source.default_emit`.
        bundles: folders of prebuilt kernels, looked through in this order before the cache on disk; None takes
            ``LIQUIDCP_KERNELS`` as it is when a kernel is first asked for. Raises InvalidField for one that is none.
    """

    def __init__(self, emit: Emit | None = None, *, bundles: Sequence[str | Path] | None = None) -> None:
        self._emit = emit
        self._bundles = None if bundles is None else tuple(Bundle.read(folder).folder for folder in bundles)
        self._loaded: dict[tuple[str, torch.device], LoadedKernel] = {}
        self._known: dict[tuple[KernelSpec, torch.device], LoadedKernel] = {}
        self._built: dict[str, BuiltCubin] = {}

    @property
    def counts(self) -> KernelCounts:
        """Where the kernels of this cache came from so far, one count a kernel and architecture."""
        found = Counter(built.origin for built in self._built.values())
        return KernelCounts(
            compiled=found[Origin.COMPILED], from_disk=found[Origin.DISK], from_bundle=found[Origin.BUNDLE]
        )

    def get(self, spec: KernelSpec, device: torch.device) -> LoadedKernel:
        """The kernel for ``spec`` on ``device``.

        Raises CodegenError, NvrtcError, DriverError, OutOfResources; InvalidField for a wrong folder or bundle.
        """
        known = (spec, device)
        if known not in self._known:
            arch = arch_of(device)
            kernel = self.source(spec, arch)
            key = (source_key(kernel, arch), device)
            if key not in self._loaded:
                self._loaded[key] = self._load(kernel, arch, device)
            self._known[known] = self._loaded[key]
        return self._known[known]

    def source(self, spec: KernelSpec, arch: str) -> KernelSource:
        """The generated kernel for ``spec`` on ``arch``. Raises CodegenError."""
        return (self._emit or default_emit())(spec, arch)

    def build(self, kernel: KernelSource, arch: str) -> BuiltCubin:
        """The cubin of ``kernel`` for ``arch``, built once; needs no GPU. Raises NvrtcError, InvalidField."""
        key = source_key(kernel, arch)
        if key not in self._built:
            self._built[key] = build_cubin(kernel, arch, self._bundles)
        return self._built[key]

    def _load(self, kernel: KernelSource, arch: str, device: torch.device) -> LoadedKernel:
        return load_kernel(
            self.build(kernel, arch).cubin,
            kernel.name,
            num_threads=kernel.num_threads,
            smem_bytes=kernel.smem_bytes,
            path=kernel.path,
            boxes=kernel.boxes,
            device=device,
        )
