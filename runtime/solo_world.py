"""One rank of several with the whole GPU: how fast a rank is, measured on one device.

The peers' keys and values lie in this device's memory, where the kernel pulls them from as it would from peers. Peers
are images of the rank itself: one is ready when this rank is, since all ranks stage alike, and a model of the link
slows the pulls. What the other ranks would send of results is not here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from liquidcp_compiler.errors import PlanError, TensorError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem_fields import whole_number
from liquidcp_runtime.cache import Emit
from liquidcp_runtime.device_options import DeviceOptions
from liquidcp_runtime.device_world import DeviceWorld, check_world_size, cuda_device
from liquidcp_runtime.link_model import LinkModel
from liquidcp_runtime.memory_sizes import MemorySizes
from liquidcp_runtime.plan_check import check_is_plan
from liquidcp_runtime.plan_slot import PlanSlot
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.sharding import shard_kv
from liquidcp_runtime.tensor_check import LAYOUT, check_kind, check_local


class SoloWorld(DeviceWorld):
    """Rank ``rank`` of ``world_size``. Make one with :func:`solo`."""

    _peers: Tensor | None = None  # the staging slots that peers were loaded into last

    @property
    def rank(self) -> int:
        """The rank that runs."""
        return self.first_rank

    @torch.no_grad()
    def load_peers(self, plan: Plan | PlanSlot, k: Tensor, v: Tensor) -> None:
        """Put the peers' keys and values where the rank pulls them from.

        k, v: [total_kv, num_heads_kv, head_dim] of the whole batch, on this world's device. They stay until other
        peers are loaded; a larger plan that makes the memory grow wants them again. Raises TensorError.
        """
        held = plan.plan if isinstance(plan, PlanSlot) else plan
        self._check_plan(held)
        p = held.problem
        for name, x in (("k", k), ("v", v)):
            check_local(name, x, (p.total_kv, p.num_heads_kv, p.head_dim), p.dtype.torch, self.device)
        with self._order.turn():
            self._room(MemorySizes(stage=MemorySizes.of(held).stage))
            stage = plan.stage if isinstance(plan, PlanSlot) else self.heap.stage
            for peer in range(self.world_size):
                if peer == self.rank or not int(held.header(peer)["num_staged_list"]):
                    continue
                for which, x in enumerate((k, v)):
                    shard = shard_kv(held, peer, x).contiguous().flatten().view(torch.uint8)
                    stage[peer, which, :, : len(shard)] = shard
            self._peers = stage

    def run(
        self,
        plan: Plan | PlanSlot,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        sinks: Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of the rank's own queries, on the current stream; does not wait.

        q: [local tokens, num_heads_q, head_dim]; k, v: [local KV tokens, num_heads_kv, head_dim]; out like q; lse fp32
        [num_heads_q, local tokens], natural log; sinks fp32 [num_heads_q]. Raises like ``LoopbackWorld.run``.
        """
        held = plan.plan if isinstance(plan, PlanSlot) else plan
        check_is_plan(held)
        check_kind("q", q, held.problem.dtype.torch, self.device)
        if q.dim() != 3:
            raise TensorError("q", "shape", tuple(q.shape), LAYOUT)
        out = q.new_empty(q.shape) if out is None else out
        lse = q.new_empty(q.shape[1::-1], dtype=torch.float32) if lse is None else lse
        tensors = RankTensors(q=q, k=k, v=v, out=out, lse=lse, sinks=sinks)

        def check() -> None:
            tensors.check(held, self.rank, self.device, exact=not isinstance(plan, PlanSlot))

        self._check_peers(plan)
        self.launch(plan, [tensors], check)
        return out, lse

    def _check_peers(self, plan: Plan | PlanSlot) -> None:
        """Raises PlanError where the rank would pull from memory that holds nothing."""
        held = plan.plan if isinstance(plan, PlanSlot) else plan
        if not int(held.header(self.rank)["num_transfers"]):
            return
        stage = plan.stage if isinstance(plan, PlanSlot) else self.heap.stage
        if self._peers is not stage or not self.heap.fits(MemorySizes.of(held).stage):
            raise PlanError("the peers' keys and values are not in this memory; call load_peers with this plan first")


def solo(
    rank: int,
    world_size: int,
    *,
    device: torch.device | str | int | None = None,
    emit: Emit | None = None,
    link: LinkModel | None = LinkModel(),  # noqa: B008 (frozen)
    **options: Any,
) -> SoloWorld:
    """Rank ``rank`` of ``world_size`` on a GPU of its own.

    Args:
        device: a CUDA device; None is torch's current one.
        link: how pulls are slowed; None does not slow them.
        emit: what generates kernels; None is LiquidCP's own generator.
        options: the other fields of :class:`DeviceOptions`.

    Raises InvalidField.
    """
    world_size = check_world_size(world_size)
    rank = whole_number("rank", rank, 0, world_size - 1)
    chosen = DeviceOptions(link=link, **options)
    return SoloWorld(world_size, cuda_device(device), chosen, first_rank=rank, num_ranks=1, emit=emit)
