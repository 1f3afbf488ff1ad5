"""Pass ``insert-transfers``: a Transfer for each read that its rank does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import PassError
from liquidcp_compiler.ir.arrivals import arrival_classes
from liquidcp_compiler.ir.graph import PlacedGraph, PlannedGraph, TaskGraph, owned_matrix
from liquidcp_compiler.ir.intervals import AccessTable, IntArray, rank_in_group
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.tasks import TaskKind, TaskTable, concat_tasks
from liquidcp_compiler.passes.base import Pass, PassContext


@dataclass(frozen=True)
class InsertTransfers(Pass[PlacedGraph, PlannedGraph]):
    """Pulls every tile and partial state that a task reads and its rank does not hold, once a rank.

    Queue order of a rank: query tiles in task order; KV tiles by sequence, those that front-half queries need first
    (paper section 6.1), round-robin over their owners starting from the next rank; then partial states in task order.

    before:  compute @0 q 0 kv 0:4 -> out 0          (rank 1 owns kv 2:4)
    after:   transfer kv 2 from 1 to 0
             transfer kv 3 from 1 to 0
             compute @0 q 0 kv 0:4 -> out 0
    """

    name: ClassVar[str] = "insert-transfers"

    def apply(self, graph: PlacedGraph, context: PassContext) -> PlannedGraph:
        if not isinstance(graph, PlacedGraph):
            raise PassError(self.name, f"needs a placed graph; this one is {graph.stage}")
        parts = [
            self._pull(graph, Space.Q, *self._needed(graph, Space.Q), owner=graph.q_tiles.rank),
            self._pull_kv(graph),
        ]
        states = []
        if len(graph.states):
            rank, item = self._needed(graph, Space.STATE)
            states = [self._pull(graph, Space.STATE, rank, item, owner=state_owner(graph))]
        tasks = concat_tasks([*parts, *states, graph.tasks])
        return graph.advance(PlannedGraph, tasks=tasks)

    def _needed(self, graph: TaskGraph, space: Space) -> tuple[IntArray, IntArray]:
        """(rank, item) of the remote reads in one space, sorted by rank and item."""
        n = graph.num_items(space)
        row, lo, hi = graph.tasks.reads.of_space(space)
        rank = graph.tasks.rank[row]
        delta = np.zeros((graph.world, n + 1), np.int64)
        np.add.at(delta, (rank, lo), 1)
        np.add.at(delta, (rank, hi), -1)
        needed = np.cumsum(delta, axis=1)[:, :n] > 0
        if space == Space.STATE:
            owner = state_owner(graph)
            keep = owner >= 0
            needed[owner[keep], np.flatnonzero(keep)] = False
        else:
            needed &= ~owned_matrix(graph, space)
        rank, item = np.nonzero(needed)
        return rank, item

    def _pull_kv(self, graph: TaskGraph) -> TaskTable:
        rank, item = self._needed(graph, Space.KV)
        owner, sequence = graph.kv_tiles.rank[item], graph.kv_tiles.sequence[item]
        arrival_class = arrival_classes(graph).class_of(rank, item)
        turn = (owner - rank) % graph.world
        key = ((rank * (sequence.max(initial=0) + 1) + sequence) * 2 + arrival_class) * graph.world + turn
        place = rank_in_group(key)
        order = np.lexsort((turn, place, arrival_class, sequence, rank))
        return self._pull(graph, Space.KV, rank[order], item[order], owner=graph.kv_tiles.rank)

    def _pull(self, graph: TaskGraph, space: Space, rank: IntArray, item: IntArray, owner: IntArray) -> TaskTable:
        peer = owner[item]
        if (peer < 0).any():
            lost = int(item[np.flatnonzero(peer < 0)[0]])
            raise PassError(self.name, f"{space.name.lower()} {lost} is read but no task writes it")
        access = AccessTable.single(space, item, item + 1)
        return TaskTable.make(TaskKind.TRANSFER, rank, access, access, peer=peer)


def state_owner(graph: TaskGraph) -> IntArray:
    """Rank whose compute or reduction writes each state; -1 if none."""
    owner = np.full(len(graph.states), -1, np.int64)
    t = graph.tasks
    row, lo, hi = t.writes.of_space(Space.STATE)
    made = t.kind[row] != TaskKind.TRANSFER
    row, lo, hi = row[made], lo[made], hi[made]
    counts = hi - lo
    items = np.repeat(lo, counts) + np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    owner[items] = np.repeat(t.rank[row], counts)
    return owner
