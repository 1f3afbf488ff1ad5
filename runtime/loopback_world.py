"""All ranks of a plan on one GPU: symmetric buffers in one memory, SMs divided, ranks that really signal each other.

One cooperative launch holds every rank, so that all CTAs run at the same time and no rank can wait for one that has not
started. For tests of the protocol and for examples; its speed says nothing of several GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.cache import Emit
from liquidcp_runtime.device_options import DeviceOptions
from liquidcp_runtime.device_world import DeviceWorld, check_world_size, cuda_device
from liquidcp_runtime.plan_slot import PlanSlot
from liquidcp_runtime.rank_tensors import RankTensors, check_apart
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from liquidcp_runtime.tensor_check import check_global, check_results, check_sinks


class LoopbackWorld(DeviceWorld):
    """``world_size`` virtual ranks on one device. Make one with :func:`loopback`."""

    @torch.no_grad()
    def run(
        self,
        plan: Plan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        sinks: Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of the whole batch, on the current stream; does not wait.

        Args:
            q: [total_q, num_heads_q, head_dim] of the problem's dtype on this world's device, of any strides; k, v:
                [total_kv, num_heads_kv, head_dim]; or [B, L, heads, head_dim] where all sequences have length L.
                Sharded by the plan's tables on the way in, gathered on the way out.
            sinks: [num_heads_q], exactly where the problem has sinks.
            out, lse: where to write, if given: like q; fp32 [num_heads_q, total_q], natural log.

        Raises TensorError, PlanError, UnsupportedError, CodegenError, NvrtcError, DriverError, OutOfResources; and
        what an earlier launch ended with, such as DeviceWaitError. What this one ends with, ``wait`` or the next
        ``run`` raises.
        """
        self._check_plan(plan)
        problem, device = plan.problem, self.device
        check_global(problem, q, k, v, device)
        check_sinks(problem, sinks, device)
        check_results(q, k, v, sinks, out, lse, (problem.num_heads_q, problem.total_q), device)
        sinks = None if sinks is None else sinks.detach().to(torch.float32).contiguous()
        flat_q, flat_k, flat_v = (x.detach().reshape(-1, *x.shape[-2:]) for x in (q, k, v))
        local = [self._local(plan, r, flat_q, flat_k, flat_v, sinks) for r in range(self.world_size)]
        if problem.total_q:
            self.launch(plan, local)
        flat_out = unshard(plan, [x.out for x in local]).view(q.shape)
        lse = unshard_lse(plan, [x.lse for x in local], lse)
        return (flat_out if out is None else out.copy_(flat_out)), lse

    def run_local(self, plan: Plan | PlanSlot, tensors: Sequence[RankTensors]) -> None:
        """The same on the local tensors of every rank, which are written in place; allocates nothing after ``warmup``.

        With a slot, tensors may have room for more tokens than the plan in it has; a rank's lse is then the first
        num_heads_q * tokens elements. This is what a CUDA graph can hold. Raises like ``run``.
        """
        if len(tensors) != self.world_size:
            raise TensorError("tensors", "length", len(tensors), self.world_size, "one RankTensors a rank")
        slot = isinstance(plan, PlanSlot)
        held = plan.plan if isinstance(plan, PlanSlot) else plan
        self._check_plan(held)

        def check() -> None:
            for rank, local in enumerate(tensors):
                local.check(held, rank, self.device, exact=not slot)
            check_apart(tensors)

        self.launch(plan, tensors, check)

    def _local(self, plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> RankTensors:
        local_q = shard_q(plan, rank, q)
        out, lse = torch.empty_like(local_q), local_q.new_empty(local_q.shape[1::-1], dtype=torch.float32)
        if self.options.poison:
            out.fill_(float("nan"))
            lse.fill_(float("nan"))
        return RankTensors(
            q=local_q, k=shard_kv(plan, rank, k), v=shard_kv(plan, rank, v), out=out, lse=lse, sinks=sinks
        )


def loopback(
    world_size: int, *, device: torch.device | str | int | None = None, emit: Emit | None = None, **options: Any
) -> LoopbackWorld:
    """A world of ``world_size`` ranks on one GPU.

    Args:
        world_size: 1 to 8.
        device: a CUDA device; None is torch's current one.
        emit: what generates kernels; None is LiquidCP's own generator.
        options: the fields of :class:`DeviceOptions`.

    Raises InvalidField.
    """
    world_size = check_world_size(world_size)
    return LoopbackWorld(world_size, cuda_device(device), DeviceOptions(**options), emit=emit)
