"""Rules of synced graphs: every read is ordered by a wait, and every wait can be met."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.arrivals import arrival_classes
from liquidcp_compiler.ir.dependencies import Items, items_of
from liquidcp_compiler.ir.graph import SyncedGraph, format_items
from liquidcp_compiler.ir.intervals import IntArray, expand
from liquidcp_compiler.ir.layout import Formation, SignalKind, Space
from liquidcp_compiler.ir.tasks import TaskKind

Findings = Iterator[tuple[int, str]]


def signals_of_ranks(graph: SyncedGraph) -> Findings:
    """Signals go rank by rank; each rank's begin with its READY, expecting 1, and its DONE, which the last pull of
    every other rank from it sets; an item or a sequence of a rank has one signal at most."""
    s, world = graph.signals, graph.world
    start = np.searchsorted(s.rank, np.arange(world))
    if (np.diff(s.rank) < 0).any():
        yield -1, "signals must be sorted by rank"
        return
    for place, kind in ((start, SignalKind.READY), (start + 1, SignalKind.DONE)):
        found = np.flatnonzero(s.kind == kind)
        if not np.array_equal(found, place) or not np.array_equal(s.rank[found], np.arange(world)):
            yield -1, f"the signals of each rank begin with one ready and one done; {kind.name.lower()} is not so"
            return
    for i in start[s.expected[start] != 1][:1]:
        yield -1, f"{signal_name(graph, int(i))} expects {s.expected[i]}; the rank itself sets it, once"
    big = max(graph.problem.num_sequences, *(graph.num_items(space) for space in Space if space), 1)
    key = ((s.rank * 2 + (s.kind == SignalKind.PREFIX)) * len(Space) + s.space) * big + s.item
    named = np.flatnonzero((s.space != Space.NONE) | (s.kind == SignalKind.PREFIX))
    first = np.unique(key[named], return_index=True)[1]
    for i in np.delete(named, first)[:1]:
        yield -1, f"{signal_name(graph, int(i))} is there twice"
    yield from _done_by_last_pulls(graph)


def _done_by_last_pulls(graph: SyncedGraph) -> Findings:
    """DONE of a rank is set by each other rank's last pull from it."""
    s, t, world = graph.signals, graph.tasks, graph.world
    pulls = np.flatnonzero(t.kind == TaskKind.TRANSFER)
    last = np.full(world * world, -1, np.int64)
    last[t.rank[pulls] * world + t.peer[pulls]] = pulls
    last = last[last >= 0]
    of_done = s.kind[s.set_signal] == SignalKind.DONE
    wanted, given = last * world + t.peer[last], s.set_task[of_done] * world + s.rank[s.set_signal[of_done]]
    for i in np.setxor1d(wanted, given)[:1]:
        task, rank = int(i // world), i % world
        yield task, f"done of rank {rank} is set by each rank's last pull from it, and by nothing else"


def signals_are_set(graph: SyncedGraph) -> Findings:
    """Every signal is set as often as it expects (READY once, by its rank's staging), and no wait asks for more."""
    s = graph.signals
    sets = np.bincount(s.set_signal, minlength=len(s))
    sets[s.kind == SignalKind.READY] += 1
    bad = sets != s.expected
    asks = np.zeros(len(s), np.int64)
    np.maximum.at(asks, s.wait_signal, s.wait_value)
    for i in np.flatnonzero(bad)[:1]:
        waiters = s.wait_task[s.wait_signal == i]
        task = int(waiters[0]) if len(waiters) else _puller(graph, int(i))
        yield task, f"{signal_name(graph, int(i))} expects {s.expected[i]}, and is set {sets[i]} times"
    for i in np.flatnonzero(asks > s.expected)[:1]:
        task = int(s.wait_task[(s.wait_signal == i) & (s.wait_value == asks[i])][0])
        yield task, f"it waits for {signal_name(graph, int(i))} to reach {asks[i]}; it ends at {s.expected[i]}"


def _puller(graph: SyncedGraph, done: int) -> int:
    """A pull from the rank of a DONE signal, of a rank that does not set it if there is one; -1 without pulls."""
    s, t = graph.signals, graph.tasks
    pulls = np.flatnonzero((t.kind == TaskKind.TRANSFER) & (t.peer == s.rank[done]))
    silent = pulls[~np.isin(t.rank[pulls], t.rank[s.set_task[s.set_signal == done]])]
    return int((silent if len(silent) else pulls)[-1]) if len(pulls) else -1


def reads_are_waited_for(graph: SyncedGraph) -> Findings:
    """Each read of something that a task writes has a wait for that item's signal, set by that task."""
    s, t, items = graph.signals, graph.tasks, items_of(graph)
    task, lo, hi = items.read_task, items.read_lo, items.read_hi
    counted = (t.formation[task] == Formation.READY) & (t.reads.space == Space.KV)
    consumer, item = np.repeat(task[~counted], (hi - lo)[~counted]), expand(lo[~counted], hi[~counted])
    written = items.producer[item] >= 0
    consumer, item = consumer[written], item[written]
    big = max(len(s), 1)
    waits, sets = s.wait_task * big + s.wait_signal, s.set_task * big + s.set_signal
    if (np.diff(waits) < 0).any() or (np.diff(sets) < 0).any():
        yield -1, "waits and sets must be sorted by task and signal"
        return
    of_item = _signal_of_item(graph, items)
    have = (of_item[item] >= 0) & _contains(waits, consumer * big + of_item[item])
    for i in np.flatnonzero(~have)[:1]:
        what = format_items(graph.task(int(consumer[i])).reads)
        yield int(consumer[i]), f"it reads {what} without a wait for all of it"
    made = np.flatnonzero((items.producer >= 0) & (of_item >= 0))
    unset = ~_contains(sets, items.producer[made] * big + of_item[made])
    for i in made[np.flatnonzero(unset)[:1]]:
        yield int(items.producer[i]), f"it does not set {signal_name(graph, int(of_item[i]))}"
    yield from _ready_waits(graph, waits, big)
    yield from _pulls_wait(graph, waits, big)


def _contains(table: IntArray, values: IntArray) -> NDArray[np.bool_]:
    """Which values a sorted table holds."""
    if not len(table):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(table, values), len(table) - 1)
    return table[at] == values


def _signal_of_item(graph: SyncedGraph, items: Items) -> IntArray:
    s = graph.signals
    out = np.full(items.total, -1, np.int64)
    own = np.flatnonzero(s.space != Space.NONE)
    out[items.flat(s.space[own], s.rank[own], s.item[own])] = own
    return out


def _ready_waits(graph: SyncedGraph, waits: IntArray, big: int) -> Findings:
    """A ready-formed compute with pulled tiles waits for its sequence's prefix, up to the tiles that are its own."""
    s, classes = graph.signals, arrival_classes(graph)
    keep = (graph.tasks.formation[classes.task] == Formation.READY) & (classes.remote > 0)
    prefix = np.full(len(classes.prefix), -1, np.int64)
    p = np.flatnonzero(s.kind == SignalKind.PREFIX)
    prefix[s.rank[p] * classes.num_sequences + s.item[p]] = p
    task, signal, value = classes.task[keep], prefix[classes.key[keep]], classes.remote[keep]
    have = (signal >= 0) & _contains(waits, task * big + signal)
    for i in np.flatnonzero(~have)[:1]:
        yield int(task[i]), "it does not wait for the prefix of its sequence"
    at = np.searchsorted(s.wait_task * big + s.wait_signal, task[have] * big + signal[have])
    for i in np.flatnonzero(s.wait_value[at] != value[have])[:1]:
        yield int(task[have][i]), f"it waits for {s.wait_value[at[i]]} arrivals; its pulled tiles are {value[have][i]}"


def _pulls_wait(graph: SyncedGraph, waits: IntArray, big: int) -> Findings:
    """A pull of an input waits for its peer's READY."""
    s, t = graph.signals, graph.tasks
    ready = np.full(graph.world, -1, np.int64)
    r = np.flatnonzero(s.kind == SignalKind.READY)
    ready[s.rank[r]] = r
    row, _, _ = t.reads.of_space(Space.STATE)
    pulls = np.flatnonzero(t.kind == TaskKind.TRANSFER)
    of_state = np.zeros(len(t), bool)
    of_state[row] = True
    pulls = pulls[~of_state[pulls]]
    signal = ready[t.peer[pulls]]
    have = (signal >= 0) & _contains(waits, pulls * big + signal)
    for i in np.flatnonzero(~have)[:1]:
        yield int(pulls[i]), f"it pulls an input without waiting for READY of rank {t.peer[pulls[i]]}"


def signal_name(graph: SyncedGraph, i: int) -> str:
    """A signal in words."""
    s = graph.signals
    kind, space = SignalKind(int(s.kind[i])), Space(int(s.space[i]))
    if kind == SignalKind.PREFIX:
        return f"prefix of sequence {s.item[i]} on rank {s.rank[i]}"
    what = "" if space == Space.NONE else f" {space.name.lower()} {s.item[i]}"
    return f"{kind.name.lower()}{what} of rank {s.rank[i]}"
