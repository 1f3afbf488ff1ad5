"""Pass ``order``: the order of every queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from liquidcp_compiler.errors import InvalidField, PassError
from liquidcp_compiler.ir.dependencies import queues_of
from liquidcp_compiler.ir.graph import PlannedGraph
from liquidcp_compiler.ir.intervals import sort_by
from liquidcp_compiler.ir.layout import Role
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.passes.base import Pass, PassContext


@dataclass(frozen=True)
class Order(Pass[PlannedGraph, PlannedGraph]):
    """Sorts the tasks into queue order: by rank, transfers, then computes (chunk before history, paper section 5.1),
    then reductions into states, then reductions into outputs; ``fifo`` keeps the order they were made in.

    before:  reduce @0 … ; compute @1 … ; transfer … to 0
    after:   transfer … to 0 ; reduce @0 … ; compute @1 …

    Fields:
        policy: ``fifo``.
    """

    name: ClassVar[str] = "order"
    policy: str = "fifo"

    def __post_init__(self) -> None:
        if self.policy != "fifo":
            raise InvalidField("policy", self.policy, "fifo")

    def apply(self, graph: PlannedGraph, context: PassContext) -> PlannedGraph:
        if not isinstance(graph, PlannedGraph):
            raise PassError(self.name, f"needs a planned graph; this one is {graph.stage}")
        t = graph.tasks
        queues = queues_of(graph)
        history = (t.kind == TaskKind.COMPUTE) & (t.role == Role.HISTORY)
        order = sort_by((queues.queue * 4 + queues.stage) * 2 + history)
        return graph.with_changes(tasks=t.take(order))
