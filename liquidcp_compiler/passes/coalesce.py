"""Pass ``coalesce``: readiness-driven formation and its thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import InvalidField, PassError
from liquidcp_compiler.ir.arrivals import arrival_classes
from liquidcp_compiler.ir.graph import PlannedGraph, TaskGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.layout import Formation, Role, Space
from liquidcp_compiler.ir.problem_fields import MAX_INT32, positive_float
from liquidcp_compiler.passes.base import Pass, PassContext


@dataclass(frozen=True)
class Coalesce(Pass[PlannedGraph, PlannedGraph]):
    """Lets the engine form tasks from the ready, unclaimed interval of a row (paper section 4.1, equations 2 and 3).

    tau_min = max(1, H / 2) and tau_max = 4 H, where H = ceil(tiles / (2 g)) is a zigzag half-shard of the sequence in
    KV tiles and g its CP degree. Rows whose pulled tiles are not a prefix of the arrival order (any mask but causal and
    full, and decode) keep static formation.

    before:  compute @1 q 3 kv 0:4 -> out 3
    after:   compute @1 q 3 kv 0:4 -> out 3 ready(1, 4)

    Fields:
        formation: ``ready``, or ``static`` to make every row one task (merges then come in plan order).
        min_factor, max_factor: tau_min and tau_max in units of H.
    """

    name: ClassVar[str] = "coalesce"
    formation: str = "ready"
    min_factor: float = 0.5
    max_factor: float = 4.0

    def __post_init__(self) -> None:
        if self.formation not in ("ready", "static"):
            raise InvalidField("formation", self.formation, "ready, static")
        for name in ("min_factor", "max_factor"):
            positive_float(name, getattr(self, name))
        if self.min_factor > self.max_factor:
            raise InvalidField("min_factor", self.min_factor, f"above 0, at most max_factor = {self.max_factor}")

    def apply(self, graph: PlannedGraph, context: PassContext) -> PlannedGraph:
        if not isinstance(graph, PlannedGraph):
            raise PassError(self.name, f"needs a planned graph; this one is {graph.stage}")
        if self.formation == "static":
            return self._all_static(graph)
        classes = arrival_classes(graph)
        rows = classes.task[classes.prefix[classes.key]]
        rows = rows[(graph.tasks.role[rows] == Role.SELF) & _one_output(graph)[rows]]
        half = half_shard(graph)[graph.q_tiles.sequence[_q_tile(graph, rows)]]
        t = graph.tasks
        formation, tau_min, tau_max = t.formation.copy(), t.tau_min.copy(), t.tau_max.copy()
        formation[rows] = Formation.READY
        tau_min[rows] = np.clip(half * self.min_factor, 1, MAX_INT32).astype(np.int64)
        tau_max[rows] = np.clip(half * self.max_factor, tau_min[rows], MAX_INT32).astype(np.int64)
        return graph.with_changes(tasks=t.with_columns(formation=formation, tau_min=tau_min, tau_max=tau_max))

    @staticmethod
    def _all_static(graph: PlannedGraph) -> PlannedGraph:
        t = graph.tasks
        ready = t.formation == Formation.READY
        if not ready.any():
            return graph
        formation = np.where(ready, Formation.STATIC, t.formation).astype(np.uint8)
        tau_min, tau_max = np.where(ready, 0, t.tau_min), np.where(ready, 0, t.tau_max)
        return graph.with_changes(tasks=t.with_columns(formation=formation, tau_min=tau_min, tau_max=tau_max))


def half_shard(graph: TaskGraph) -> IntArray:
    """H of every sequence: KV tiles of half a shard, ceil(tiles / (2 g)), g = ranks that own some of it."""
    tiles, n = graph.kv_tiles, graph.problem.num_sequences
    count = np.bincount(tiles.sequence, minlength=n)
    owners = np.unique(tiles.sequence * graph.world + np.maximum(tiles.rank, 0)) // max(graph.world, 1)
    degree = np.maximum(np.bincount(owners, minlength=n), 1)
    return -(-count // (2 * degree))


def _one_output(graph: TaskGraph) -> NDArray[np.bool_]:
    """bool [num_tasks]: the task writes one output and nothing else."""
    writes = graph.tasks.writes
    out = np.diff(writes.ptr) == 1
    entry = writes.ptr[:-1][out]
    out[out] = (writes.space[entry] == Space.OUT) & (writes.hi[entry] == writes.lo[entry] + 1)
    return out


def _q_tile(graph: TaskGraph, rows: IntArray) -> IntArray:
    """First query tile each compute reads (its first read is a query tile)."""
    reads = graph.tasks.reads
    return reads.lo[reads.ptr[rows]]
