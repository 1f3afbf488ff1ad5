"""Worlds whose launches run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_runtime.device_options import DeviceOptions
from liquidcp_runtime.device_world import DeviceWorld
from liquidcp_runtime.loopback_world import LoopbackWorld
from liquidcp_runtime.prepared_launch import PreparedLaunch
from liquidcp_runtime.solo_world import SoloWorld
from tests.emulator.build import EmulatedKernel


class NoStreams:
    """The order of launches where each is over before the next begins."""

    in_capture = False

    def capturing(self) -> bool:
        return False

    @contextmanager
    def turn(self) -> Iterator[int]:
        yield 0

    def finish(self) -> None: ...

    def wait(self) -> None: ...


class _Emulated(DeviceWorld):
    """What replaces the device: a fixed grid of ``ctas_per_rank`` CTAs a rank, and built kernels.

    Args:
        kernels: the built kernel for a specification, with the variant that the options ask for.
        ctas_per_rank, num_comm_ctas: the grid.
        wait_budget, entry_budget: seconds of emulated time: 1 ns for each switch between threads, and all sleeps.
        seed: of the order in which threads run; each launch takes the next one.
        options: other fields of DeviceOptions.
    """

    def __init__(
        self,
        world_size: int,
        kernels: Callable[..., EmulatedKernel],
        *,
        ctas_per_rank: int = 2,
        num_comm_ctas: int = 1,
        wait_budget: float = 1.0,
        entry_budget: float = 1.0,
        seed: int = 0,
        poison: bool = True,
        ranks: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        chosen = DeviceOptions(wait_budget=wait_budget, entry_budget=entry_budget, poison=poison, **options)
        first_rank, num_ranks = (0, world_size) if ranks is None else ranks
        super().__init__(
            world_size,
            torch.device("cpu"),
            chosen,
            first_rank=first_rank,
            num_ranks=num_ranks,
            order=NoStreams(),  # type: ignore[arg-type]
        )
        variant = {"faults": chosen.faults is not None, "trace": chosen.trace}
        self._emulated = lambda spec: kernels(spec, **variant)
        self._fixed_grid, self._seed = (ctas_per_rank, num_comm_ctas), seed

    def grid(self, spec: KernelSpec) -> tuple[int, int]:
        return self._fixed_grid

    def kernel(self, spec: KernelSpec) -> Any:
        return self._emulated(spec)

    def _launch_kernel(self, launch: PreparedLaunch, stream: int) -> None:
        self._seed += 1
        kernel: Any = launch.kernel
        kernel.launch(launch.num_ctas, launch.params, self._seed)


class EmulatedWorld(_Emulated, LoopbackWorld):
    """A LoopbackWorld whose device is the CPU."""


class EmulatedSolo(_Emulated, SoloWorld):
    """A SoloWorld whose device is the CPU."""

    def __init__(self, rank: int, world_size: int, kernels: Callable[..., EmulatedKernel], **options: Any) -> None:
        super().__init__(world_size, kernels, ranks=(rank, 1), poison=False, **options)
