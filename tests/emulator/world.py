"""All ranks of a plan in one emulated launch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.loopback_world import LoopbackWorld
from tests.emulator.build import EmulatedKernel


class EmulatedWorld(LoopbackWorld):
    """A LoopbackWorld whose device is the CPU.

    Args:
        world_size: ranks, 1 to 8.
        kernels: the built kernel for a specification.
        ctas_per_rank, num_comm_ctas: the grid.
        wait_budget: seconds of emulated time: 1 ns for each switch between threads, and all sleeps.
        seed: of the order in which threads run; each launch takes the next one.
    """

    def __init__(
        self,
        world_size: int,
        kernels: Callable[[KernelSpec], EmulatedKernel],
        *,
        ctas_per_rank: int = 2,
        num_comm_ctas: int = 1,
        wait_budget: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(world_size, torch.device("cpu"), num_comm_ctas, wait_budget, None)
        self._emulated, self._num_comm_ctas = kernels, num_comm_ctas
        self._ctas_per_rank, self._seed = ctas_per_rank, seed

    def grid(self, plan: Plan) -> tuple[int, int]:
        return self._ctas_per_rank, self._num_comm_ctas

    def _run_kernel(self, plan: Plan, params: np.ndarray) -> None:
        self._seed += 1
        self._emulated(plan.spec).launch(self._ctas_per_rank * self.world_size, params, self._seed)
