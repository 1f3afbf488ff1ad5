"""All ranks of a plan in one emulated launch."""

from __future__ import annotations

import mmap
import tempfile
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
        sinks: fp32 [num_heads_q], if the problem has any.
        layout: puts a local tensor [tokens, heads, head_dim] into other memory, with strides; None: packed.
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
        sinks: torch.Tensor | None = None,
        layout: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__(world_size, torch.device("cpu"), num_comm_ctas, wait_budget, None)
        self._emulated, self._num_comm_ctas = kernels, num_comm_ctas
        self._ctas_per_rank, self._seed = ctas_per_rank, seed
        self._sinks, self._layout = sinks, layout

    def grid(self, plan: Plan) -> tuple[int, int]:
        return self._ctas_per_rank, self._num_comm_ctas

    def _launch(self, plan: Plan, q: list, k: list, v: list, out: list, lse: list) -> None:
        if self._layout is None:
            super()._launch(plan, q, k, v, out, lse)
            return
        spread = [[self._layout(tensor) for tensor in tensors] for tensors in (q, k, v, out)]
        super()._launch(plan, *spread, lse)
        for packed, strided in zip(out, spread[3], strict=True):
            packed.copy_(strided)

    def _run_kernel(self, plan: Plan, params: np.ndarray) -> None:
        self._seed += 1
        if self._sinks is not None:
            params["ranks"]["sinks"][0, : self.world_size] = self._sinks.data_ptr()
        self._emulated(plan.spec).launch(self._ctas_per_rank * self.world_size, params, self._seed)


def heads_first(tensor: torch.Tensor) -> torch.Tensor:
    """The same [tokens, heads, head_dim] over memory [heads, tokens, head_dim + 8] whose gaps are NaN."""
    tokens, heads, head_dim = tensor.shape
    memory = torch.full((heads, tokens, head_dim + 8), float("nan"), dtype=tensor.dtype)
    return memory[..., :head_dim].transpose(0, 1).copy_(tensor)


def far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same with 2 ** 25 elements from a token to the next, in a file of holes: only what is touched exists."""
    tokens, heads, head_dim = tensor.shape
    stride = 2**25
    with tempfile.TemporaryFile() as file:
        file.truncate(tokens * stride * tensor.element_size())
        memory = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=tensor.dtype)
    return memory.as_strided((tokens, heads, head_dim), (stride, head_dim, 1)).copy_(tensor)
