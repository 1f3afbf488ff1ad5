"""One cache of built kernels a test session, which its processes share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from liquidcp_compiler.codegen.emitter import emit
from tests.emulator.build import EmulatedKernel, build


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of built kernels."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated-kernels"


@pytest.fixture(scope="session")
def kernels(kernel_cache: Path) -> Callable[..., EmulatedKernel]:
    """kernels(spec, faults=, trace=): the generated kernel, built for the CPU on first use."""
    return cache(lambda spec, **variant: build(emit(spec, **variant), kernel_cache))
