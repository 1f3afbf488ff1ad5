"""Kernels by specification: generated, compiled and loaded once a process and device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_runtime.module import LoadedKernel, arch_of, load_kernel
from liquidcp_runtime.nvrtc import compile_cubin


class KernelSource(Protocol):
    """What the runtime needs to know of a generated kernel."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def smem_bytes(self) -> int: ...


Emit = Callable[[KernelSpec], KernelSource]


def default_emit() -> Emit:
    """The code generator, found by name and on first use only.

    The runtime does not depend on codegen: it takes any :data:`Emit`, and a process that is given one (or kernels that
    are loaded already) never imports the generator.
    """
    return importlib.import_module("liquidcp_compiler.codegen.emitter").emit


class KernelCache:
    """Loaded kernels of one process. ``emit`` generates what is missing; None takes :func:`default_emit`."""

    def __init__(self, emit: Emit | None = None) -> None:
        self._emit = emit
        self._loaded: dict[tuple[KernelSpec, torch.device], LoadedKernel] = {}

    def get(self, spec: KernelSpec, device: torch.device) -> LoadedKernel:
        """The kernel for ``spec`` on ``device``. Raises CodegenError, NvrtcError, DriverError, OutOfResources."""
        key = (spec, device)
        if key not in self._loaded:
            kernel = (self._emit or default_emit())(spec)
            compiled = compile_cubin(kernel.source, kernel.headers, arch_of(device), name=f"{kernel.name}.cu")
            self._loaded[key] = load_kernel(
                compiled.cubin,
                kernel.name,
                num_threads=kernel.num_threads,
                smem_bytes=kernel.smem_bytes,
                device=device,
            )
        return self._loaded[key]
