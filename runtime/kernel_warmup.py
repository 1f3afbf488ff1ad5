"""Kernels made ready ahead, so that no request waits for a compiler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_runtime.cache import KernelCache
from liquidcp_runtime.cubin import KernelResources
from liquidcp_runtime.cubin_build import Origin
from liquidcp_runtime.kernel_cost import kernel_cost
from liquidcp_runtime.module import arch_of


@dataclass(frozen=True, kw_only=True)
class WarmKernel:
    """A kernel that is ready: where its cubin came from, and what a thread and a CTA of it need."""

    name: str
    arch: str
    origin: Origin
    num_threads: int
    smem_bytes: int
    resources: KernelResources


def warmup(
    specs: Iterable[KernelSpec],
    *,
    arch: str | None = None,
    device: torch.device | str | int | None = None,
    kernels: KernelCache | None = None,
) -> tuple[WarmKernel, ...]:
    """Compile or find every kernel of ``specs`` (``plan.spec`` of each plan), and load it if a device is given.

    Args:
        specs: equal ones count once; what comes back has their order.
        arch: e.g. ``"sm_90a"``: fills the cache on disk for that architecture, and needs no GPU.
        device: a CUDA device: fills the cache on disk for its architecture, and loads into ``kernels``.
        kernels: the cache that shall hold the loaded kernels; None makes one for this call.

    Raises InvalidField unless one of ``arch`` and ``device`` is given, and what :meth:`KernelCache.get` raises.
    """
    if (arch is None) == (device is None):
        raise InvalidField("arch, device", (arch, device), "exactly one of the two")
    cache = kernels or KernelCache()
    chosen = None if device is None else _cuda(device)
    return tuple(_warm(cache, spec, arch, chosen) for spec in dict.fromkeys(specs))


def _cuda(device: torch.device | str | int) -> torch.device:
    found = torch.device(device)
    if found.type != "cuda":
        raise InvalidField("device", str(device), "a CUDA device", "Without a GPU, give arch")
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def _warm(cache: KernelCache, spec: KernelSpec, arch: str | None, device: torch.device | None) -> WarmKernel:
    if device is not None:
        cache.get(spec, device)
        arch = arch_of(device)
    assert arch is not None  # one of the two is given
    kernel = cache.source(spec, arch)
    built = cache.build(kernel, arch)
    return WarmKernel(
        name=kernel.name,
        arch=arch,
        origin=built.origin,
        num_threads=kernel.num_threads,
        smem_bytes=kernel.smem_bytes,
        resources=kernel_cost(built.cubin, kernel.name),
    )
