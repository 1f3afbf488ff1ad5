"""The three kinds of task, as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.intervals import AccessTable, IntArray, as_int, concat
from liquidcp_compiler.ir.layout import Formation, Role


class TaskKind(IntEnum):
    """Paper section 3."""

    TRANSFER = 1  #: make an operand tile or a partial state available on the consuming rank
    COMPUTE = 2  #: evaluate one attention region: partial (out, lse)
    REDUCTION = 3  #: merge partial states of one query tile


class Direction(IntEnum):
    """Which attention pass a task belongs to."""

    FORWARD = 0
    BACKWARD = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskTable:
    """Tasks of all ranks, one row each; the row order is the order of every queue.

    Fields (columns [num_tasks]):
        kind: TaskKind. rank: executing (transfer: receiving) rank. peer: transfer source, else -1.
        role: Role of a compute, else NONE. formation, tau_min, tau_max: see ``Formation``; static rows hold 0, 0.
        direction: Direction. loc: index in the graph's ``locs``.
        reads, writes: intervals of tiles, states and outputs. A transfer reads on ``peer`` and writes on ``rank``;
            everything else happens on ``rank``. Writes to OUT merge; everything else is written once.
    """

    kind: NDArray[np.uint8]
    rank: IntArray
    peer: IntArray
    role: NDArray[np.uint8]
    formation: NDArray[np.uint8]
    tau_min: IntArray
    tau_max: IntArray
    direction: NDArray[np.uint8]
    loc: IntArray
    reads: AccessTable
    writes: AccessTable

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def make(cls, kind: TaskKind, rank: IntArray, reads: AccessTable, writes: AccessTable, **columns) -> TaskTable:
        """Tasks of one kind; columns left out take their neutral value."""
        n = len(rank)

        def col(name: str, default: int, dtype: type = np.int64) -> NDArray:
            value = columns.get(name, default)
            return np.full(n, value, dtype) if np.ndim(value) == 0 else np.asarray(value, dtype)

        static = Formation.STATIC if kind == TaskKind.COMPUTE else Formation.NONE
        return cls(
            kind=np.full(n, kind, np.uint8),
            rank=as_int(rank),
            peer=col("peer", -1),
            role=col("role", Role.NONE, np.uint8),
            formation=col("formation", static, np.uint8),
            tau_min=col("tau_min", 0),
            tau_max=col("tau_max", 0),
            direction=col("direction", Direction.FORWARD, np.uint8),
            loc=col("loc", 0),
            reads=reads,
            writes=writes,
        )

    def take(self, rows: IntArray) -> TaskTable:
        """The tasks of the given rows in the given order."""
        plain = {name: getattr(self, name)[rows] for name in PLAIN_COLUMNS}
        return TaskTable(**plain, reads=self.reads.take(rows), writes=self.writes.take(rows))

    def with_columns(self, **columns) -> TaskTable:
        """A copy with some columns replaced."""
        return replace(self, **columns)

    def of_kind(self, kind: TaskKind) -> IntArray:
        """Rows of one kind."""
        return np.flatnonzero(self.kind == kind)


PLAIN_COLUMNS = ("kind", "rank", "peer", "role", "formation", "tau_min", "tau_max", "direction", "loc")


def concat_tasks(tables: list[TaskTable]) -> TaskTable:
    """Several tables one after another."""
    plain = {name: np.concatenate([getattr(t, name) for t in tables]) for name in PLAIN_COLUMNS}
    return TaskTable(**plain, reads=concat([t.reads for t in tables]), writes=concat([t.writes for t in tables]))
