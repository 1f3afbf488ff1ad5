"""Pass ``insert-sync``: signals and waits from the dependence edges. The only pass that knows of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import PassError
from liquidcp_compiler.ir.arrivals import arrival_classes
from liquidcp_compiler.ir.dependencies import SPACES, items_of
from liquidcp_compiler.ir.graph import PlannedGraph, SignalTable, SyncedGraph
from liquidcp_compiler.ir.intervals import IntArray, expand, sort_by
from liquidcp_compiler.ir.layout import Formation, SignalKind, Space
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.passes.base import Pass, PassContext


@dataclass(frozen=True)
class InsertSync(Pass[PlannedGraph, SyncedGraph]):
    """Gives every item that is not there from the start a signal, and every read of one a wait.

    Every rank has READY (its inputs are in place) and DONE (ranks that have finished pulling from it). A pulled tile
    has TILE, except KV tiles of a sequence whose rows form by readiness: these count in the sequence's PREFIX. A
    partial state has STATE, or RESULT where a peer pulls it or it has been pulled (paper sections 6.1, 6.2, A.3).

    before:  %0 transfer kv 2 from 1 to 0 ; %1 compute @0 q 0 kv 0:3 -> out 0
    after:   %0 waits for READY of rank 1 and adds 1 to TILE kv 2 of rank 0 ; %1 waits for that signal
    """

    name: ClassVar[str] = "insert-sync"

    def apply(self, graph: PlannedGraph, context: PassContext) -> SyncedGraph:
        if not isinstance(graph, PlannedGraph) or isinstance(graph, SyncedGraph):
            raise PassError(self.name, f"needs a planned graph; this one is {graph.stage}")
        return graph.advance(SyncedGraph, signals=_Signals(graph).table())


class _Signals:
    """Numbers the signals of one graph and lists their waits and sets."""

    def __init__(self, graph: PlannedGraph) -> None:
        self.graph, self.index = graph, items_of(graph)
        self.producer = self.index.producer
        self.num_sequences = max(graph.problem.num_sequences, 1)
        self.prefix_value = self._prefix_values()
        self.kind, self.rank, self.space, self.item, self.expected = self._number()

    def _prefix_values(self) -> IntArray:
        """int64 [world * num_sequences]: pulled KV tiles of each ready-formed (rank, sequence), else -1."""
        g, t = self.graph, self.graph.tasks
        keys = np.full(g.world * self.num_sequences, -1, np.int64)
        ready = np.flatnonzero(t.formation == Formation.READY)
        sequence = g.q_tiles.sequence[t.reads.lo[t.reads.ptr[ready]]]
        keys[t.rank[ready] * self.num_sequences + sequence] = 0
        pulls = np.flatnonzero(t.kind == TaskKind.TRANSFER)
        pulls = pulls[t.reads.space[t.reads.ptr[pulls]] == Space.KV]
        key = t.rank[pulls] * self.num_sequences + g.kv_tiles.sequence[t.reads.lo[t.reads.ptr[pulls]]]
        key = key[keys[key] >= 0]
        return keys + np.bincount(key, minlength=len(keys))

    def _number(self) -> tuple[IntArray, ...]:
        g = self.graph
        ranks = np.arange(g.world)
        pulls = g.tasks.kind == TaskKind.TRANSFER
        reads = np.zeros((g.world, g.world), bool)
        reads[g.tasks.peer[pulls], g.tasks.rank[pulls]] = True
        none = np.full(g.world, Space.NONE)
        zero = np.zeros(g.world, np.int64)
        columns = [
            (np.full(g.world, SignalKind.READY), ranks, none, zero, zero + 1),
            (np.full(g.world, SignalKind.DONE), ranks, none, zero, reads.sum(axis=1)),
        ]
        key = np.flatnonzero(self.prefix_value > 0)
        columns.append(
            (np.full(len(key), SignalKind.PREFIX), key // self.num_sequences, np.full(len(key), Space.NONE),
             key % self.num_sequences, self.prefix_value[key])
        )  # fmt: skip
        columns += [self._item_signals(space) for space in SPACES]
        stacked = [np.concatenate(c).astype(np.int64) for c in zip(*columns, strict=True)]
        order = sort_by(stacked[1])
        return tuple(c[order] for c in stacked)

    def _item_signals(self, space: Space) -> tuple[IntArray, ...]:
        """Signals of the written items of one space that are not counted in a prefix."""
        g, n = self.graph, self.index.counts[space]
        flat = np.arange(self.index.bases[space], self.index.bases[space] + n * g.world)
        made = flat[self.producer[flat] >= 0]
        rank, item = (made - self.index.bases[space]) // max(n, 1), (made - self.index.bases[space]) % max(n, 1)
        kind = np.full(len(made), SignalKind.TILE)
        if space == Space.KV:
            counted = self.prefix_value[rank * self.num_sequences + g.kv_tiles.sequence[item]] >= 0
            rank, item, kind = rank[~counted], item[~counted], kind[~counted]
        elif space == Space.STATE:
            by_transfer = g.tasks.kind[self.producer[made]] == TaskKind.TRANSFER
            travels = np.zeros(n, bool)
            travels[item[by_transfer]] = True
            kind = np.where(travels[item], SignalKind.RESULT, SignalKind.STATE)
        return kind, rank, np.full(len(rank), space), item, np.ones(len(rank), np.int64)

    def table(self) -> SignalTable:
        """The finished table."""
        waits = [np.concatenate(c) for c in zip(*self._waits(), strict=True)]
        sets = [np.concatenate(c) for c in zip(*self._sets(), strict=True)]
        big = max(len(self.kind), 1)
        by_wait, by_set = sort_by(waits[0] * big + waits[1]), sort_by(sets[0] * big + sets[1])
        return SignalTable(
            kind=self.kind,
            rank=self.rank,
            space=self.space,
            item=self.item,
            expected=self.expected,
            wait_task=waits[0][by_wait],
            wait_signal=waits[1][by_wait],
            wait_value=waits[2][by_wait],
            set_task=sets[0][by_set],
            set_signal=sets[1][by_set],
        )

    @cached_property
    def _lookups(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """(signal of each item or -1, READY of each rank, DONE of each rank, PREFIX of each key or -1)."""
        ids = np.arange(len(self.kind))
        of_item = np.full(self.index.total, -1, np.int64)
        own = self.space != Space.NONE
        of_item[self.index.flat(self.space[own], self.rank[own], self.item[own])] = ids[own]
        prefix = np.full(len(self.prefix_value), -1, np.int64)
        p = self.kind == SignalKind.PREFIX
        prefix[self.rank[p] * self.num_sequences + self.item[p]] = ids[p]
        return of_item, ids[self.kind == SignalKind.READY], ids[self.kind == SignalKind.DONE], prefix

    def _waits(self):
        """(task, signal, value) lists."""
        g, t = self.graph, self.graph.tasks
        of_item, ready, _, prefix = self._lookups
        row, lo, hi = self.index.read_task, self.index.read_lo, self.index.read_hi
        pull = t.kind[row] == TaskKind.TRANSFER
        input_pull = pull & (t.reads.space != Space.STATE)
        yield row[input_pull], ready[t.peer[row[input_pull]]], np.ones(int(input_pull.sum()), np.int64)
        counted = (t.reads.space == Space.KV) & (t.formation[row] == Formation.READY)
        rest = ~counted
        task, signal = np.repeat(row[rest], (hi - lo)[rest]), of_item[expand(lo[rest], hi[rest])]
        task, signal = task[signal >= 0], signal[signal >= 0]
        yield task, signal, np.ones(len(task), np.int64)
        classes = arrival_classes(g)
        keep = (t.formation[classes.task] == Formation.READY) & (classes.remote > 0)
        yield classes.task[keep], prefix[classes.key[keep]], classes.remote[keep]

    def _sets(self):
        """(task, signal) lists."""
        g, t = self.graph, self.graph.tasks
        of_item, _, done, prefix = self._lookups
        item = np.flatnonzero(self.producer >= 0)
        task, signal = self.producer[item], of_item[item]
        lone = signal < 0
        sequence = g.kv_tiles.sequence[t.reads.lo[t.reads.ptr[task[lone]]]]
        signal[lone] = prefix[t.rank[task[lone]] * self.num_sequences + sequence]
        yield task, signal
        pulls = np.flatnonzero(t.kind == TaskKind.TRANSFER)
        last = np.full(g.world * g.world, -1, np.int64)
        last[t.rank[pulls] * g.world + t.peer[pulls]] = pulls
        last = np.sort(last[last >= 0])
        yield last, done[t.peer[last]]
