"""Queues of the packed plan: transfers, compute rows, reductions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.arrivals import ArrivalClasses
from liquidcp_compiler.ir.dependencies import queues_of
from liquidcp_compiler.ir.graph import SyncedGraph
from liquidcp_compiler.ir.intervals import IntArray, expand, sort_by
from liquidcp_compiler.ir.layout import Formation, Space
from liquidcp_compiler.ir.local_numbers import LocalNumbers
from liquidcp_compiler.ir.plan import TABLE_DTYPES
from liquidcp_compiler.ir.problem_fields import MAX_INT32
from liquidcp_compiler.ir.tasks import TaskKind

Table = tuple[NDArray, NDArray]


def _queue(graph: SyncedGraph, kind: TaskKind) -> IntArray:
    """Tasks of one kind by rank, in queue order."""
    order = queues_of(graph).order
    rows = order[graph.tasks.kind[order] == kind]
    return rows[sort_by(graph.tasks.rank[rows])]


def lower_transfers(graph: SyncedGraph, local: LocalNumbers, classes: ArrivalClasses) -> Table:
    """``transfers``: one row a pulled item."""
    t = graph.tasks
    task = _queue(graph, TaskKind.TRANSFER)
    reads = t.reads.take(task)
    row = np.repeat(np.arange(len(task)), np.diff(reads.ptr))
    entry = np.repeat(np.arange(len(row)), reads.hi - reads.lo)
    item, space = expand(reads.lo, reads.hi), reads.space[entry]
    source = task[row[entry]]
    rank, peer = t.rank[source], t.peer[source]
    rows = np.zeros(len(item), TABLE_DTYPES["transfers"])
    rows["space"], rows["peer"], rows["task"] = space, peer, source
    rows["sequence"] = -1
    for sp in (Space.Q, Space.KV, Space.STATE):
        here = space == sp
        rows["source"][here] = local.of(sp, peer[here], item[here])
        rows["target"][here] = local.of(sp, rank[here], item[here])
        rows["signal"][here] = local.signal_at(sp, rank[here], item[here])
        # What the peer owns has no signal of its own: its READY covers it.
        rows["wait_signal"][here] = local.signal_at(sp, peer[here], item[here])
    kv = space == Space.KV
    rows["rows"][kv] = graph.kv_tiles.rows[item[kv]]
    counted = kv & (rows["signal"] < 0)
    rows["sequence"][counted] = graph.kv_tiles.sequence[item[counted]]
    rows["arrival_class"][counted] = classes.class_of(rank[counted], item[counted])
    return rows, rank


def lower_rows(graph: SyncedGraph, local: LocalNumbers, classes: ArrivalClasses) -> dict[str, Table]:
    """``rows``, ``kv_list`` and ``target_list``."""
    t = graph.tasks
    task = _queue(graph, TaskKind.COMPUTE)
    rank, n = t.rank[task], len(task)
    reads, writes = t.reads.take(task), t.writes.take(task)
    rows = np.zeros(n, TABLE_DTYPES["rows"])
    rows["task"], rows["role"], rows["formation"] = task, t.role[task], t.formation[task]
    rows["tau_min"], rows["tau_max"] = t.tau_min[task], t.tau_max[task]
    q_row, q_lo, q_hi = reads.of_space(Space.Q)
    first = np.zeros(n, np.int64)
    first[q_row] = q_lo
    q_list = _q_list(graph, local, rows, rank, q_row, q_lo, q_hi)
    rows["sequence"] = graph.q_tiles.sequence[first] if len(graph.q_tiles) else 0
    kv_row, kv_lo, kv_hi = reads.of_space(Space.KV)
    rows["num_kv_tiles"] = np.bincount(kv_row, kv_hi - kv_lo, minlength=n)
    _ready_fields(graph, local, classes, rows, task, rank)
    kv_list = _kv_list(graph, local, rows, rank, kv_row, kv_lo, kv_hi)
    target_list = _targets(local, rows, rank, writes)
    rows["tiles_after"] = _tiles_after(rows, rank)
    return {"rows": (rows, rank), "q_list": q_list, "kv_list": kv_list, "target_list": target_list}


def _q_list(
    graph: SyncedGraph,
    local: LocalNumbers,
    rows: NDArray,
    rank: IntArray,
    q_row: IntArray,
    q_lo: IntArray,
    q_hi: IntArray,
) -> Table:
    """Every tile of the rank in order, then the lists of rows whose tiles do not lie together there."""
    held = local.rank[Space.Q]
    count = np.bincount(held, minlength=graph.world)
    first, last = local.of(Space.Q, rank[q_row], q_lo), local.of(Space.Q, rank[q_row], q_hi - 1)
    row, tile = np.repeat(q_row, q_hi - q_lo), expand(q_lo, q_hi)
    entry = local.of(Space.Q, rank[row], tile)
    expected = np.repeat(first, q_hi - q_lo) + tile - np.repeat(q_lo, q_hi - q_lo)
    scattered = np.bincount(row[entry != expected], minlength=len(rows)) > 0
    rows["q_lo"][q_row], rows["q_hi"][q_row] = first, last + 1
    extra = np.zeros(len(rows), np.int64)
    extra[q_row] = q_hi - q_lo
    extra[~scattered] = 0
    start = _starts(extra, rank) + count[rank]
    rows["q_lo"] = np.where(scattered, start, rows["q_lo"])
    rows["q_hi"] = np.where(scattered, start + extra, rows["q_hi"])
    listed = scattered[row]
    owner = np.concatenate((held, rank[row[listed]]))
    entries = np.concatenate((np.arange(len(held)) - (np.cumsum(count) - count)[held], entry[listed]))
    order = np.argsort(owner, kind="stable")
    return entries[order].astype("<i4"), owner[order]


def _ready_fields(
    graph: SyncedGraph, local: LocalNumbers, classes: ArrivalClasses, rows: NDArray, task: IntArray, rank: IntArray
) -> None:
    """Own interval and number of arrivals of ready-formed rows."""
    place = np.full(len(graph.tasks), -1, np.int64)
    place[classes.task] = np.arange(len(classes.task))
    ready = np.flatnonzero((rows["formation"] == Formation.READY) & (place[task] >= 0))
    at = place[task[ready]]
    rows["num_arrivals"][ready] = classes.remote[at]
    own = classes.local[at]
    # Own tiles of a sequence are consecutive in slot order; the row's ones are the first of them.
    sequence, holder = graph.kv_tiles.sequence, graph.kv_tiles.rank
    first_own = np.full(graph.world * max(graph.problem.num_sequences, 1), -1, np.int64)
    mine = np.flatnonzero(holder >= 0)[::-1]
    first_own[holder[mine] * classes.num_sequences + sequence[mine]] = local.of(Space.KV, holder[mine], mine)
    lo = np.maximum(first_own[rank[ready] * classes.num_sequences + rows["sequence"][ready]], 0)
    rows["local_lo"][ready], rows["local_hi"][ready] = lo, lo + own


def _kv_list(
    graph: SyncedGraph,
    local: LocalNumbers,
    rows: NDArray,
    rank: IntArray,
    kv_row: IntArray,
    kv_lo: IntArray,
    kv_hi: IntArray,
) -> Table:
    """KV tiles of static rows in plan order: own tiles first, then by tile number."""
    static = rows["formation"][kv_row] == Formation.STATIC
    kv_row, kv_lo, kv_hi = kv_row[static], kv_lo[static], kv_hi[static]
    row, tile = np.repeat(kv_row, kv_hi - kv_lo), expand(kv_lo, kv_hi)
    foreign = graph.kv_tiles.rank[tile] != rank[row]
    order = sort_by(row * 2 + foreign)
    row, tile = row[order], tile[order]
    entries = local.of(Space.KV, rank[row], tile)
    counts = np.where(rows["formation"] == Formation.STATIC, rows["num_kv_tiles"], 0)
    rows["kv_list"] = _starts(counts, rank)
    return entries.astype("<i4"), rank[row]


def _tiles_after(rows: NDArray, rank: IntArray) -> IntArray:
    """KV tiles, once a query tile, of the rows of a rank behind each one; as many as the field can say."""
    work = rows["num_kv_tiles"].astype(np.int64) * (rows["q_hi"] - rows["q_lo"])
    return np.minimum(_starts(work[::-1], rank[::-1])[::-1], MAX_INT32)


def _targets(local: LocalNumbers, rows: NDArray, rank: IntArray, writes) -> Table:
    """Result space of every row, and the states that rows write, one a query tile."""
    w_row = writes.row
    rows["target_space"][w_row] = writes.space
    row, lo, hi = writes.of_space(Space.STATE)
    owner = np.repeat(row, hi - lo)
    entries = local.of(Space.STATE, rank[owner], expand(lo, hi))
    counts = np.bincount(owner, minlength=len(rows))
    rows["target_list"] = _starts(counts, rank)
    return entries.astype("<i4"), rank[owner]


def lower_reductions(graph: SyncedGraph, local: LocalNumbers) -> dict[str, Table]:
    """``reductions`` and ``state_list``."""
    t = graph.tasks
    task = _queue(graph, TaskKind.REDUCTION)
    rank = t.rank[task]
    reads, writes = t.reads.take(task), t.writes.take(task)
    rows = np.zeros(len(task), TABLE_DTYPES["reductions"])
    rows["task"] = task
    space, target = writes.space[writes.ptr[:-1]], writes.lo[writes.ptr[:-1]]
    final = space == Space.OUT
    rows["target_space"] = space
    q_tile = np.where(final, target, graph.states[np.where(final, 0, target)] if len(graph.states) else target)
    rows["q_tile"] = local.of(Space.Q, rank, q_tile)
    rows["target"] = rows["q_tile"]
    rows["target"][~final] = local.of(Space.STATE, rank[~final], target[~final])
    row, lo, hi = reads.of_space(Space.STATE)
    owner = np.repeat(row, hi - lo)
    entries = local.of(Space.STATE, rank[owner], expand(lo, hi))
    rows["num_states"] = np.bincount(owner, minlength=len(task))
    rows["state_list"] = _starts(rows["num_states"], rank)
    return {"reductions": (rows, rank), "state_list": (entries.astype("<i4"), rank[owner])}


def _starts(counts: IntArray, rank: IntArray) -> IntArray:
    """Where each row's entries start within its rank's list (rows sorted by rank)."""
    counts = counts.astype(np.int64)
    start = np.cumsum(counts) - counts
    fresh = np.ones(len(rank), bool)
    fresh[1:] = rank[1:] != rank[:-1]
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(rank)), 0)) if len(rank) else start
    return start - start[first] if len(rank) else start
