"""Loading and launching kernels on a GPU: from the compiler, the disk and a bundle; kernels of one name.

python3 -m pytest tests/gpu/test_kernel_cache.py -m gpu -q
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import liquidcp_runtime
from liquidcp_runtime.bundle_build import build_bundle
from liquidcp_runtime.cache import KernelCache, KernelCounts
from liquidcp_runtime.cubin_build import Origin
from liquidcp_runtime.module import LoadedKernel, arch_of, kernel_arguments
from tests.small_kernels import a_spec, emit_constant

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIQUIDCP_CACHE_DIR", str(tmp_path / "cache"))


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def stored_by(kernel: LoadedKernel) -> int:
    result = torch.zeros(1, dtype=torch.int32, device=device())
    stream = torch.cuda.current_stream()
    params = np.array([result.data_ptr()], np.uint64)
    kernel.launch_cooperative(1, kernel_arguments(params), stream.cuda_stream)
    stream.synchronize()
    return int(result.item())


def test_kernels_of_one_name_each_run_their_own_code(tmp_path: Path) -> None:
    """fault J4"""
    spec = a_spec()
    caches = [KernelCache(emit_constant(value, "constant")) for value in (11, 22)]
    kernels = [cache.get(spec, device()) for cache in caches]
    assert [stored_by(kernel) for kernel in (*kernels, kernels[0])] == [11, 22, 11]
    assert {kernel.name for kernel in kernels} == {"constant"}


def test_compiled_from_disk_and_from_a_bundle(tmp_path: Path) -> None:
    spec, emit = a_spec(), emit_constant(33)
    build_bundle(tmp_path / "bundle", [spec], [arch_of(device())], emit=emit)
    caches = [KernelCache(emit), KernelCache(emit), KernelCache(emit, bundles=[tmp_path / "bundle"])]
    assert [stored_by(cache.get(spec, device())) for cache in caches] == [33, 33, 33]
    assert [cache.counts for cache in caches] == [
        KernelCounts(compiled=1, from_disk=0, from_bundle=0),
        KernelCounts(compiled=0, from_disk=1, from_bundle=0),
        KernelCounts(compiled=0, from_disk=0, from_bundle=1),
    ]


def test_warmup_loads() -> None:
    spec, kernels = a_spec(), KernelCache(emit_constant(44))
    (warm,) = liquidcp_runtime.warmup([spec], device="cuda", kernels=kernels)
    loaded = kernels.get(spec, device())
    assert (warm.origin, warm.name, warm.arch) == (Origin.COMPILED, loaded.name, arch_of(device()))
    assert warm.resources.registers == loaded.registers
    assert stored_by(loaded) == 44
