"""Graphs: one immutable type a stage.

``AuthoredGraph`` says what attends to what. A placement makes a ``PlacedGraph`` of it: tiles with owners, and tasks
with ranks whose reads may still be remote. ``insert-transfers`` makes a ``PlannedGraph``: every read is available on
its rank. ``insert-sync`` makes a ``SyncedGraph``: with the signals that order the tasks at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import GraphError
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.problem import Problem
from liquidcp_compiler.ir.tasks import TaskKind, TaskTable
from liquidcp_compiler.ir.tiles import TileTable

if TYPE_CHECKING:
    import networkx


Later = TypeVar("Later", bound="TaskGraph")


class Stage(StrEnum):
    """How far a graph has come."""

    AUTHORED = "authored"
    PLACED = "placed"
    PLANNED = "planned"
    SYNCED = "synced"


@dataclass(frozen=True, eq=False, kw_only=True)
class RegionTable:
    """Attention regions before placement, one row each (int64 columns): queries [q_lo, q_hi) of a sequence attend to
    its keys [kv_lo, kv_hi) under the problem's mask."""

    sequence: IntArray
    role: IntArray
    q_lo: IntArray
    q_hi: IntArray
    kv_lo: IntArray
    kv_hi: IntArray
    loc: IntArray

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, eq=False, kw_only=True)
class AuthoredGraph:
    """What attends to what, before any rank is named. ``locs`` are the places in the user's code, "file:line"."""

    stage: ClassVar[Stage] = Stage.AUTHORED
    problem: Problem
    regions: RegionTable
    locs: tuple[str, ...] = ("",)


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskGraph:
    """Tiles, partial states and tasks of all ranks.

    Fields:
        problem: what is computed.
        world: number of ranks.
        tile: tokens of a full KV tile.
        q_tiles, kv_tiles: placed tiles. Output i is the finished rows of query tile i.
        states: int64 [num_states], the query tile of each partial state.
        tasks: the tasks; their order is the order of every queue.
        locs: places in the user's code that tasks came from.
    """

    stage: ClassVar[Stage]
    problem: Problem
    world: int
    tile: int
    q_tiles: TileTable
    kv_tiles: TileTable
    states: IntArray
    tasks: TaskTable
    locs: tuple[str, ...] = ("",)

    def task(self, index: int) -> TaskView:
        """One task, for reading and printing."""
        if not 0 <= index < len(self.tasks):
            raise GraphError(f"task {index} does not exist; the graph has {len(self.tasks)} tasks")
        return TaskView(self, index)

    def __iter__(self) -> Iterator[TaskView]:
        return (TaskView(self, i) for i in range(len(self.tasks)))

    def task_name(self, index: int) -> str:
        """Short name of a task, e.g. ``%12 transfer kv 3 from 1 to 0``."""
        return self.task(index).name

    def with_changes(self, **changes) -> Self:
        """A copy with some fields replaced, of the same stage."""
        return replace(self, **changes)

    def advance(self, stage_type: type[Later], **changes) -> Later:
        """The same graph as another stage's type."""
        own = {f.name: getattr(self, f.name) for f in fields(TaskGraph)}
        return stage_type(**(own | changes))

    def num_items(self, space: int) -> int:
        """Tiles, states or outputs there are."""
        return {Space.Q: len(self.q_tiles), Space.KV: len(self.kv_tiles), Space.STATE: len(self.states)}.get(
            Space(space), len(self.q_tiles)
        )

    def to_networkx(self) -> networkx.DiGraph:
        """Tasks as nodes (attributes kind, rank, name), derived dependencies as edges; for analysis and drawing."""
        import networkx

        from liquidcp_compiler.ir.dependencies import dependence_edges

        graph = networkx.DiGraph()
        for view in self:
            graph.add_node(view.index, kind=view.kind.name.lower(), rank=view.rank, name=view.name)
        producer, consumer = dependence_edges(self)
        graph.add_edges_from(zip(producer.tolist(), consumer.tolist(), strict=True))
        return graph


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedGraph(TaskGraph):
    """Tiles have owners and tasks have ranks; a read may be of a tile or state that another rank holds."""

    stage = Stage.PLACED


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedGraph(TaskGraph):
    """Every read is available on its rank: owned, or written by a task of that rank."""

    stage = Stage.PLANNED


@dataclass(frozen=True, eq=False, kw_only=True)
class SignalTable:
    """Signals and their use.

    Fields:
        kind, rank, space, item, expected: int64 [num_signals]; what a signal word means (``SignalKind``), the rank in
            whose memory it lies, the tile, state or sequence (PREFIX) it speaks of, and its value at completion.
        wait_task, wait_signal, wait_value: int64 [num_waits], sorted by task: the task starts only when the signal has
            reached the value (ready-formed computes: takes part by part up to it).
        set_task, set_signal: int64 [num_sets], sorted by task: at its end the task adds 1 to the signal.
    """

    kind: IntArray
    rank: IntArray
    space: IntArray
    item: IntArray
    expected: IntArray
    wait_task: IntArray
    wait_signal: IntArray
    wait_value: IntArray
    set_task: IntArray
    set_signal: IntArray

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False, kw_only=True)
class SyncedGraph(PlannedGraph):
    """A planned graph with the signals that order it at run time."""

    stage = Stage.SYNCED
    signals: SignalTable


AnyGraph = AuthoredGraph | TaskGraph

STAGE_TYPES: dict[Stage, type] = {
    Stage.AUTHORED: AuthoredGraph,
    Stage.PLACED: PlacedGraph,
    Stage.PLANNED: PlannedGraph,
    Stage.SYNCED: SyncedGraph,
}


@dataclass(frozen=True, eq=False)
class TaskView:
    """One row of a graph's task table."""

    graph: TaskGraph
    index: int

    @property
    def kind(self) -> TaskKind:
        """Transfer, compute or reduction."""
        return TaskKind(int(self.graph.tasks.kind[self.index]))

    @property
    def rank(self) -> int:
        """Executing rank."""
        return int(self.graph.tasks.rank[self.index])

    @property
    def role(self) -> Role:
        """What a compute attends to."""
        return Role(int(self.graph.tasks.role[self.index]))

    @property
    def loc(self) -> str:
        """Place in the user's code."""
        return self.graph.locs[int(self.graph.tasks.loc[self.index])]

    def _entries(self, table: str) -> list[tuple[Space, int, int]]:
        t = getattr(self.graph.tasks, table)
        a, b = t.ptr[self.index], t.ptr[self.index + 1]
        return [(Space(int(s)), int(lo), int(hi)) for s, lo, hi in zip(t.space[a:b], t.lo[a:b], t.hi[a:b], strict=True)]

    @property
    def reads(self) -> list[tuple[Space, int, int]]:
        """(space, lo, hi) of what it reads."""
        return self._entries("reads")

    @property
    def writes(self) -> list[tuple[Space, int, int]]:
        """(space, lo, hi) of what it writes."""
        return self._entries("writes")

    @property
    def name(self) -> str:
        """Short name, e.g. ``%12 transfer kv 3 from 1 to 0``."""
        if self.kind == TaskKind.TRANSFER:
            peer = int(self.graph.tasks.peer[self.index])
            return f"%{self.index} transfer {format_items(self.reads)} from {peer} to {self.rank}"
        if self.kind == TaskKind.COMPUTE:
            return f"%{self.index} compute @{self.rank} {format_items([r for r in self.reads if r[0] == Space.Q])}"
        return f"%{self.index} reduce @{self.rank} into {format_items(self.writes)}"


def format_items(entries: list[tuple[Space, int, int]]) -> str:
    """Intervals as the text form writes them: ``q 0 kv 3 5:8``."""
    words, last = [], None
    for space, lo, hi in entries:
        if space != last:
            words.append(space.name.lower())
            last = space
        words.append(str(lo) if hi == lo + 1 else f"{lo}:{hi}")
    return " ".join(words)


def owned_matrix(graph: TaskGraph, space: int) -> NDArray[np.bool_]:
    """bool [world, num_items]: which tiles each rank holds before anything runs (states and outputs: none)."""
    owned = np.zeros((graph.world, graph.num_items(space)), bool)
    if space in (Space.Q, Space.KV):
        rank = graph.q_tiles.rank if space == Space.Q else graph.kv_tiles.rank
        items = np.arange(len(rank))
        owned[np.maximum(rank, 0), items] = True
        owned[:, rank < 0] = True
    return owned
