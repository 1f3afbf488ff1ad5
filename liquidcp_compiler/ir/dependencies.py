"""Dependencies, derived from what tasks read and write; never written by hand.

An item is one tile or state on one rank. Items that a rank owns are there from the start; every other item is available
once the task that writes it on that rank is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.graph import TaskGraph, owned_matrix
from liquidcp_compiler.ir.intervals import IntArray, expand, sort_by
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.memo import once_a_graph
from liquidcp_compiler.ir.tasks import TaskKind

SPACES: tuple[Space, ...] = (Space.Q, Space.KV, Space.STATE)


@dataclass(frozen=True, eq=False)
class Items:
    """All items of a graph, numbered base[space] + rank * count[space] + item, and who reads and writes them.

    Fields:
        owned: bool [total], there from the start.
        producer: int64 [total], the task that writes it, -1 if none (the last one where a graph is wrong).
        read_task, read_lo, read_hi: every read, as an interval of item numbers, in task order.
        write_task, write_item: every write of a tile or state, in task order.
    """

    bases: dict[Space, int]
    counts: dict[Space, int]
    total: int
    owned: NDArray[np.bool_]
    producer: IntArray
    read_task: IntArray
    read_lo: IntArray
    read_hi: IntArray
    write_task: IntArray
    write_item: IntArray
    _base_of: IntArray
    _count_of: IntArray

    def flat(self, space: NDArray, rank: IntArray, item: IntArray) -> IntArray:
        """Item numbers."""
        return self._base_of[space] + self._count_of[space] * rank + item

    def describe(self, number: int) -> str:
        """An item in words."""
        for space in reversed(SPACES):
            if self.counts[space] and number >= self.bases[space]:
                rank, item = divmod(number - self.bases[space], self.counts[space])
                return f"{space.name.lower()} {item} on rank {rank}"
        return f"item {number}"


@once_a_graph
def items_of(graph: TaskGraph) -> Items:
    """The items of a graph."""
    counts = {s: graph.num_items(s) for s in SPACES}
    sizes = [counts[s] * graph.world for s in SPACES]
    bases = dict(zip(SPACES, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    base_of, count_of = np.zeros(8, np.int64), np.zeros(8, np.int64)
    for s in SPACES:
        base_of[s], count_of[s] = bases[s], counts[s]
    t = graph.tasks
    row = t.reads.row
    rank = np.where(t.kind[row] == TaskKind.TRANSFER, t.peer[row], t.rank[row])
    lo = base_of[t.reads.space] + count_of[t.reads.space] * rank + t.reads.lo
    keep = t.writes.space != Space.OUT
    w_row, w_space, size = t.writes.row[keep], t.writes.space[keep], (t.writes.hi - t.writes.lo)[keep]
    w_lo = base_of[w_space] + count_of[w_space] * t.rank[w_row] + t.writes.lo[keep]
    write_task, write_item = np.repeat(w_row, size), expand(w_lo, w_lo + size)
    producer = np.full(sum(sizes), -1, np.int64)
    producer[write_item] = write_task
    return Items(
        bases=bases,
        counts=counts,
        total=sum(sizes),
        owned=np.concatenate([owned_matrix(graph, s).ravel() for s in SPACES]),
        producer=producer,
        read_task=row,
        read_lo=lo,
        read_hi=lo + (t.reads.hi - t.reads.lo),
        write_task=write_task,
        write_item=write_item,
        _base_of=base_of,
        _count_of=count_of,
    )


def dependence_edges(graph: TaskGraph) -> tuple[IntArray, IntArray]:
    """(producer, consumer) task pairs, sorted by consumer, each pair once."""
    items = items_of(graph)
    consumer = np.repeat(items.read_task, items.read_hi - items.read_lo)
    producer = items.producer[expand(items.read_lo, items.read_hi)]
    keep = producer >= 0
    n = max(len(graph.tasks), 1)
    pairs = np.unique(consumer[keep] * n + producer[keep])
    return pairs % n, pairs // n


def run_order(graph: TaskGraph, queues: Queues | None = None) -> NDArray[np.bool_]:
    """Runs the graph symbolically: repeatedly finishes every task whose reads are available.

    With ``queues``, a task also waits until all earlier tasks of its queue are done: one CTA a queue, the worst case of
    the engine. Returns done, bool [num_tasks]; tasks left undone wait for something that nobody writes, or for each
    other.
    """
    items, n = items_of(graph), len(graph.tasks)
    available, done = items.owned.copy(), np.zeros(n, bool)
    size = items.read_hi - items.read_lo
    prefix = np.zeros(items.total + 1, np.int32)
    while True:
        np.cumsum(available, out=prefix[1:], dtype=np.int32)
        missing = prefix[items.read_hi] - prefix[items.read_lo] < size
        ready = np.ones(n, bool)
        ready[items.read_task[missing]] = False
        if queues is not None:
            ready = queues.heads(ready)
        if not (ready & ~done).any():
            return done
        done |= ready
        if done.all():
            return done
        available[items.write_item[done[items.write_task]]] = True


@once_a_graph
def done_by_queues(graph: TaskGraph) -> NDArray[np.bool_]:
    """:func:`run_order` with the graph's own queues."""
    return run_order(graph, queues_of(graph))


@dataclass(frozen=True, eq=False)
class Queues:
    """The engine's queues with one CTA a role.

    Per rank one queue of transfers (comm), and one of compute rows, then reductions into states, then reductions into
    outputs (compute), each in table order.

    Fields: ``queue`` and ``stage`` of every task; ``order``, tasks by (queue, stage, table order).
    """

    queue: IntArray
    stage: IntArray
    order: IntArray
    _first: NDArray[np.bool_]

    def heads(self, ready: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of the ready tasks, those before which no task of their queue is unready."""
        bad = ~ready[self.order]
        blocked = np.cumsum(bad)
        start = np.maximum.accumulate(np.where(self._first, blocked - bad, 0))
        out = np.empty(len(ready), bool)
        out[self.order] = blocked == start
        return out


@once_a_graph
def queues_of(graph: TaskGraph) -> Queues:
    """The queues of a graph."""
    t = graph.tasks
    final = np.zeros(len(t), bool)
    if len(t.writes.lo):
        first_write = np.minimum(t.writes.ptr[:-1], len(t.writes.lo) - 1)
        final = t.writes.space[first_write] == Space.OUT
    stage = np.where(t.kind == TaskKind.REDUCTION, 1 + final, 0)
    queue = t.rank * 2 + (t.kind != TaskKind.TRANSFER)
    order = sort_by(queue * 4 + stage)
    first = np.ones(len(t), bool)
    first[1:] = queue[order][1:] != queue[order][:-1]
    return Queues(queue=queue, stage=stage, order=order, _first=first)
