"""Rules of planned graphs: everything is where it is read, and the queues cannot block each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from liquidcp_compiler.ir.arrivals import arrival_classes
from liquidcp_compiler.ir.dependencies import done_by_queues, items_of, run_order
from liquidcp_compiler.ir.graph import TaskGraph, format_items
from liquidcp_compiler.ir.intervals import IntArray, expand
from liquidcp_compiler.ir.layout import Formation, Space
from liquidcp_compiler.ir.problem_fields import MAX_INT32
from liquidcp_compiler.ir.tasks import TaskKind

Findings = Iterator[tuple[int, str]]


def pulled_once(graph: TaskGraph) -> Findings:
    """A rank pulls a tile or state at most once, and never one that it holds."""
    items = items_of(graph)
    task, item = items.write_task, items.write_item
    count = np.bincount(item, minlength=items.total)
    for i in np.flatnonzero(count > 1)[:1]:
        yield int(task[item == i][1]), f"its rank gets the same thing {count[i]} times"
    held = items.owned[item]
    for i in np.flatnonzero(held)[:1]:
        yield int(task[i]), "its rank owns that already"


def source_holds_item(graph: TaskGraph) -> Findings:
    """A transfer reads what its peer owns, or what a task of the peer writes."""
    items = items_of(graph)
    there = items.owned | (items.producer >= 0)
    task, lo, hi = items.read_task, items.read_lo, items.read_hi
    pull = graph.tasks.kind[task] == TaskKind.TRANSFER
    prefix = np.concatenate(([0], np.cumsum(there)))
    missing = pull & (prefix[hi] - prefix[lo] < hi - lo)
    for i in task[missing][:1]:
        yield int(i), f"rank {graph.tasks.peer[i]} never holds {format_items(graph.task(int(i)).reads)}"


def states_with_their_tiles(graph: TaskGraph) -> Findings:
    """A rank that makes or pulls a state holds the query tile that the state is of: it knows rows and heads from it."""
    items, t = items_of(graph), graph.tasks
    row, lo, hi = t.writes.of_space(Space.STATE)
    others = t.kind[row] != TaskKind.COMPUTE  # a compute reads its query tiles itself
    row, lo, hi = row[others], lo[others], hi[others]
    task, tile = np.repeat(row, hi - lo), graph.states[expand(lo, hi)]
    number = items.bases[Space.Q] + items.counts[Space.Q] * t.rank[task] + tile
    for i in np.flatnonzero(~items.owned[number] & (items.producer[number] < 0))[:1]:
        yield int(task[i]), f"rank {t.rank[task[i]]} gets a state of q {tile[i]} without that query tile; pull it too"


def reads_available(graph: TaskGraph) -> Findings:
    """Every read is owned or written on its rank, and the dependencies have no cycle."""
    # What ends with one CTA a queue ends without queues too.
    left = np.flatnonzero(~run_order(graph)) if not done_by_queues(graph).all() else []
    if not len(left):
        return
    items = items_of(graph)
    there = items.owned | (items.producer >= 0)
    task, lo, hi = items.read_task, items.read_lo, items.read_hi
    lost = np.concatenate(([0], np.cumsum(~there)))
    missing = lost[hi] - lost[lo] > 0
    for e in np.flatnonzero(missing)[:1]:
        first = int(lo[e]) + int(np.flatnonzero(~there[lo[e] : hi[e]])[0])
        yield int(task[e]), f"it reads {items.describe(first)}, which nothing writes there"
        return
    yield int(left[0]), "it waits for tasks that wait for it"


def no_deadlock(graph: TaskGraph) -> Findings:
    """With one CTA a role, each working its queue in order, everything ends: then it ends for any arrival order.

    Dependencies plus each queue's successor edges are acyclic (see :func:`run_order`).
    """
    for i in np.flatnonzero(~done_by_queues(graph))[:1]:
        yield int(i), "it can wait for ever: with one CTA a queue, the queues' order blocks what it needs"


def formation_legal(graph: TaskGraph) -> Findings:
    """Ready formation only where a row's pulled tiles are a prefix of the arrivals, its own tiles are consecutive, and
    all rows of the (rank, sequence) agree; thresholds are 1 <= tau_min <= tau_max."""
    t = graph.tasks
    ready = t.formation == Formation.READY
    bad = ready & ((t.tau_min < 1) | (t.tau_max < t.tau_min) | (t.tau_max > MAX_INT32))
    for i in np.flatnonzero(bad)[:1]:
        yield int(i), f"ready({t.tau_min[i]}, {t.tau_max[i]}) needs 1 <= tau_min <= tau_max <= {MAX_INT32}"
    for i in np.flatnonzero(ready & (t.kind != TaskKind.COMPUTE))[:1]:
        yield int(i), "only a compute forms by readiness"
    shapeless = (t.kind == TaskKind.COMPUTE) & ~np.isin(t.formation, (Formation.READY, Formation.STATIC))
    for i in np.flatnonzero(shapeless)[:1]:
        yield int(i), "a compute forms ready or static"
    for i in np.flatnonzero(ready & _writes_states(graph))[:1]:
        yield int(i), "a ready-formed compute merges into an output, not into states"
    classes = arrival_classes(graph)
    formed = ready[classes.task]
    lawful = np.zeros(len(t), bool)
    lawful[classes.task[classes.prefix[classes.key]]] = True
    for i in np.flatnonzero(ready & ~lawful)[:1]:
        yield int(i), "its pulled tiles are not a prefix of the arrivals of its sequence; it must form statically"
    count = np.bincount(classes.key, minlength=len(classes.prefix))
    some = np.bincount(classes.key[formed], minlength=len(classes.prefix))
    for k in np.flatnonzero((some > 0) & (some < count))[:1]:
        i = classes.task[(classes.key == k) & ~formed][0]
        yield int(i), "it forms statically while other rows of its rank and sequence form by readiness"
    yield from _own_tiles_consecutive(graph, classes.task[formed], np.flatnonzero(some > 0))
    yield from _front_first(graph, classes, np.flatnonzero(some > 0))


def _writes_states(graph: TaskGraph) -> np.ndarray:
    row, _, _ = graph.tasks.writes.of_space(Space.STATE)
    return np.bincount(row, minlength=len(graph.tasks)) > 0


def _own_tiles_consecutive(graph: TaskGraph, rows: IntArray, keys: IntArray) -> Findings:
    """Own KV tiles of a ready-formed (rank, sequence) have consecutive slots in tile order."""
    kv, n = graph.kv_tiles, max(graph.problem.num_sequences, 1)
    own = np.flatnonzero(kv.rank >= 0)
    key = kv.rank[own] * n + kv.sequence[own]
    own, key = own[np.isin(key, keys)], key[np.isin(key, keys)]
    order = np.lexsort((own, key))
    own, key = own[order], key[order]
    broken = (key[1:] == key[:-1]) & (kv.slot[own[1:]] != kv.slot[own[:-1]] + 1)
    for i in np.flatnonzero(broken)[:1]:
        task = rows[graph.tasks.rank[rows] == kv.rank[own[i]]][:1]
        yield int(task[0]) if len(task) else -1, f"own kv {own[i]} and {own[i + 1]} are not neighbours in slot order"


def _front_first(graph: TaskGraph, classes, keys: IntArray) -> Findings:
    """In queue order, front tiles of a sequence come before its back tiles: else one comm CTA could block itself."""
    t = graph.tasks
    row, lo, _ = t.writes.of_space(Space.KV)
    key = t.rank[row] * classes.num_sequences + graph.kv_tiles.sequence[lo]
    mine = np.isin(key, keys)
    row, lo, key = row[mine], lo[mine], key[mine]
    cls = classes.class_of(t.rank[row], lo)
    order = np.lexsort((row, key))
    row, key, cls = row[order], key[order], cls[order]
    late = (key[1:] == key[:-1]) & (cls[1:] < cls[:-1])
    for i in np.flatnonzero(late)[:1]:
        yield int(row[i + 1]), "a front tile is pulled after a back tile of the same sequence"


def buffers_within_limit(graph: TaskGraph, limit: int) -> Findings:
    """Pulled tiles and states of a rank take at most ``limit`` bytes."""
    p, t = graph.problem, graph.tasks
    row, lo, hi = t.writes.of_space(Space.KV)
    kv_bytes = graph.tile * p.num_heads_kv * p.head_dim * 2 * p.dtype.bytes
    need = np.bincount(t.rank[row], (hi - lo) * kv_bytes, minlength=graph.world)
    row, lo, hi = t.writes.of_space(Space.STATE)
    q = graph.q_tiles
    state_bytes = (q.rows * q.num_heads)[graph.states] * (p.head_dim + 1) * 4
    total = np.concatenate(([0], np.cumsum(state_bytes)))
    need = need + np.bincount(t.rank[row], total[hi] - total[lo], minlength=graph.world)
    for r in np.flatnonzero(need > limit)[:1]:
        yield -1, f"rank {r} needs {int(need[r])} bytes for pulled tiles and states; the limit is {limit}"
