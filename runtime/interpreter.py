"""Replays a schedule with real data: all ranks of a plan in one process, on CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from liquidcp_compiler.errors import ScheduleError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_core import COMPUTE, LAND
from liquidcp_runtime.plan_view import rank_view
from liquidcp_runtime.rank_buffers import RankBuffers
from liquidcp_runtime.scheduling import Schedule


@torch.no_grad()
def interpret(
    plan: Plan,
    schedule: Schedule,
    q: Sequence[Tensor],
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    sinks: Tensor | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Run every event of ``schedule`` and return (out, lse) of each rank.

    Args:
        q, k, v: one local tensor a rank, as ``sharding.shard_q`` and ``shard_kv`` give them.
        sinks: [num_heads_q] of any float dtype, for problems with sinks.

    Returns: per rank out [local tokens, local heads, head_dim] in the problem's dtype, lse fp32 [local heads, tokens].

    Raises ScheduleError, naming the task, for a read before ready, a double or a missing contribution.
    """
    pairs: set[tuple[int, int]] = set()
    sinks = None if sinks is None else sinks.detach().float()
    ranks = [RankBuffers(plan, r, q[r], k[r], v[r], sinks, pairs) for r in range(plan.world)]
    for time, begin, _, rank, _, kind, index, lo, hi in schedule.events.tolist():
        if kind == LAND:
            _land(plan, ranks, rank, index, begin, time)
        elif kind == COMPUTE:
            ranks[rank].compute(index, lo, hi, begin, time)
        else:
            ranks[rank].reduce(index, begin, time)
    return [buffers.finish() for buffers in ranks]


def _land(plan: Plan, ranks: list[RankBuffers], rank: int, index: int, begin: float, time: float) -> None:
    transfer = ranks[rank].view.transfers[index]
    check_source(plan, rank, index)
    task = plan.task_name(rank, "transfers", index)
    first, second = ranks[transfer.peer].payload(transfer.space, transfer.source, begin, rank, task)
    ranks[rank].land(index, first, second, time)


def check_source(plan: Plan, rank: int, index: int) -> None:
    """Raise ``ScheduleError`` unless the peer's item is the one that the transfer's target describes."""
    view = rank_view(plan, rank)
    transfer = view.transfers[index]
    wanted = view.item(transfer.space, transfer.target)
    found = rank_view(plan, transfer.peer).item(transfer.space, transfer.source)
    if wanted != found:
        name = plan.task_name(rank, "transfers", index)
        raise ScheduleError(rank, name, f"rank {transfer.peer} holds {found} there, not {wanted}")
