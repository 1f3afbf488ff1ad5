"""Dependencies, derived from what tasks read and write; never written by hand.

An item is one tile, state or output on one rank. Items that a rank owns are there from the start; every other item is
available once the tasks that write it on that rank are done.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.graph import TaskGraph, owned_matrix
from liquidcp_compiler.ir.intervals import IntArray, expand
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.tasks import TaskKind

SPACES = (Space.Q, Space.KV, Space.STATE)


class ItemIndex:
    """Numbers the items of all ranks and spaces one after another: base[space] + rank * count + item."""

    def __init__(self, graph: TaskGraph) -> None:
        self.counts = {s: graph.num_items(s) for s in SPACES}
        bases, total = {}, 0
        for s in SPACES:
            bases[s] = total
            total += self.counts[s] * graph.world
        self.bases, self.total = bases, total
        self._base_of = np.zeros(8, np.int64)
        self._count_of = np.zeros(8, np.int64)
        for s in SPACES:
            self._base_of[s], self._count_of[s] = bases[s], self.counts[s]

    def flat(self, space: NDArray, rank: IntArray, item: IntArray) -> IntArray:
        """Item numbers."""
        return self._base_of[space] + self._count_of[space] * rank + item

    def owned(self, graph: TaskGraph) -> NDArray[np.bool_]:
        """bool [total]: items there from the start."""
        return np.concatenate([owned_matrix(graph, s).ravel() for s in SPACES])


def read_intervals(graph: TaskGraph, index: ItemIndex) -> tuple[IntArray, IntArray, IntArray]:
    """(task, lo, hi) of every read, as intervals of item numbers."""
    t = graph.tasks
    row = t.reads.row
    rank = np.where(t.kind[row] == TaskKind.TRANSFER, t.peer[row], t.rank[row])
    lo = index.flat(t.reads.space, rank, t.reads.lo)
    return row, lo, lo + (t.reads.hi - t.reads.lo)


def write_items(graph: TaskGraph, index: ItemIndex) -> tuple[IntArray, IntArray]:
    """(task, item number) of every single-writer write (outputs, which merge, are left out)."""
    t = graph.tasks
    keep = t.writes.space != Space.OUT
    row, lo, hi = t.writes.row[keep], t.writes.lo[keep], t.writes.hi[keep]
    start = index.flat(t.writes.space[keep], t.rank[row], lo)
    return np.repeat(row, hi - lo), expand(start, start + (hi - lo))


def producers(graph: TaskGraph, index: ItemIndex) -> IntArray:
    """int64 [total]: the task that writes each item, -1 if none (the last one where a graph is wrong)."""
    out = np.full(index.total, -1, np.int64)
    task, item = write_items(graph, index)
    out[item] = task
    return out


def dependence_edges(graph: TaskGraph) -> tuple[IntArray, IntArray]:
    """(producer, consumer) task pairs, sorted by consumer, each pair once."""
    index = ItemIndex(graph)
    producer_of = producers(graph, index)
    row, lo, hi = read_intervals(graph, index)
    consumer, producer = np.repeat(row, hi - lo), producer_of[expand(lo, hi)]
    keep = producer >= 0
    pairs = np.unique(consumer[keep] * len(graph.tasks) + producer[keep])
    return pairs % max(len(graph.tasks), 1), pairs // max(len(graph.tasks), 1)


def run_order(graph: TaskGraph, queues: Queues | None = None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Runs the graph symbolically: repeatedly finishes every task whose reads are available.

    With ``queues``, a task also waits until all earlier tasks of its queue are done: one CTA a queue, the worst case of
    the engine. Returns (done [num_tasks], available [items]); tasks left undone wait for something that nobody writes,
    or for each other.
    """
    index = ItemIndex(graph)
    n = len(graph.tasks)
    task, lo, hi = read_intervals(graph, index)
    wtask, witem = write_items(graph, index)
    available = index.owned(graph)
    done = np.zeros(n, bool)
    while True:
        prefix = np.concatenate(([0], np.cumsum(available)))
        missing = (prefix[hi] - prefix[lo]) < (hi - lo)
        ready = np.bincount(task[missing], minlength=n) == 0
        if queues is not None:
            ready = queues.heads(ready)
        if not (ready & ~done).any():
            return done, available
        done |= ready
        available[witem[done[wtask]]] = True


class Queues:
    """The engine's queues with one CTA a role: per rank one of transfers (comm), and one of compute rows, then
    reductions into states, then reductions into outputs (compute), each in table order."""

    def __init__(self, graph: TaskGraph) -> None:
        t = graph.tasks
        first_write = np.minimum(t.writes.ptr[:-1], max(len(t.writes.lo) - 1, 0))
        final = (t.writes.space[first_write] == Space.OUT) if len(t.writes.lo) else np.zeros(len(t), bool)
        self.stage = np.where(t.kind == TaskKind.REDUCTION, 1 + final, 0)
        self.queue = t.rank * 2 + (t.kind != TaskKind.TRANSFER)
        self.order = np.lexsort((self.stage, self.queue))
        sorted_queue = self.queue[self.order]
        self._first = np.ones(len(t), bool)
        self._first[1:] = sorted_queue[1:] != sorted_queue[:-1]

    def heads(self, ready: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of the ready tasks, those before which no task of their queue is unready."""
        bad = ~ready[self.order]
        blocked = np.cumsum(bad)
        start = np.maximum.accumulate(np.where(self._first, blocked - bad, 0))
        out = np.empty(len(ready), bool)
        out[self.order] = blocked == start
        return out
