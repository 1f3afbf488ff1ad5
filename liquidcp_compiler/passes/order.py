"""Pass ``order``: the order of every queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import InvalidField, PassError
from liquidcp_compiler.ir.dependencies import queues_of
from liquidcp_compiler.ir.graph import PlannedGraph
from liquidcp_compiler.ir.intervals import IntArray, sort_by
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.passes.base import Pass, PassContext

POLICIES = ("fifo", "longest-first")


@dataclass(frozen=True)
class Order(Pass[PlannedGraph, PlannedGraph]):
    """Sorts the tasks into queue order: by rank, transfers, then computes (chunk before history, paper section 5.1),
    then reductions into states, then reductions into outputs.

    before:  reduce @0 … ; compute @1 q 0 kv 0 ; compute @1 q 3 kv 0:4 ; transfer … to 0
    after:   transfer … to 0 ; reduce @0 … ; compute @1 q 0 kv 0 ; compute @1 q 3 kv 0:4
    after, longest-first:  …           ; compute @1 q 3 kv 0:4 ; compute @1 q 0 kv 0

    Fields:
        policy: ``fifo`` keeps the order that tasks were made in. ``longest-first`` puts a rank's computes in descending
            number of KV tiles, equal ones as fifo does, so that no long one begins when the others end. It is for
            computes over whole sequences: decode and mixed batches keep fifo, or order by release (paper section 5.2).

    Raises InvalidField for another policy, PassError for longest-first with computes of a decode batch.
    """

    name: ClassVar[str] = "order"
    policy: str = "fifo"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidField("policy", self.policy, ", ".join(POLICIES))

    def apply(self, graph: PlannedGraph, context: PassContext) -> PlannedGraph:
        if not isinstance(graph, PlannedGraph):
            raise PassError(self.name, f"needs a planned graph; this one is {graph.stage}")
        t = graph.tasks
        queues = queues_of(graph)
        history = (t.kind == TaskKind.COMPUTE) & (t.role == Role.HISTORY)
        place = (queues.queue * 4 + queues.stage) * 2 + history
        order = sort_by(place) if self.policy == "fifo" else np.lexsort((-_length(graph), place))
        return graph.with_changes(tasks=t.take(order))


def _length(graph: PlannedGraph) -> IntArray:
    """KV tiles that each compute attends to, 0 for other tasks. Raises PassError for a compute of a decode batch."""
    t = graph.tasks
    compute = t.kind == TaskKind.COMPUTE
    for i in np.flatnonzero(compute & (t.role != Role.SELF))[:1]:
        what = f"{graph.task_name(int(i))} has role {Role(int(t.role[i])).name.lower()}"
        raise PassError(Order.name, f"longest-first is for computes over whole sequences; {what}. Take fifo")
    row, lo, hi = t.reads.of_space(Space.KV)
    tiles = np.zeros(len(t), np.int64)
    np.add.at(tiles, row, hi - lo)
    return np.where(compute, tiles, 0)
