"""Rules of placed graphs: operands, and who contributes to what."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from liquidcp_compiler.ir.graph import TaskGraph, format_items
from liquidcp_compiler.ir.intervals import IntArray, expand, merge_sorted
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.regions import needed_tiles
from liquidcp_compiler.ir.tasks import Direction, TaskKind

Findings = Iterator[tuple[int, str]]


def operands_exist(graph: TaskGraph) -> Findings:
    """Every interval names tiles, states or outputs of the graph; ranks are ranks of the world."""
    t = graph.tasks
    bad_rank = (t.rank < 0) | (t.rank >= graph.world) | (t.peer >= graph.world)
    for i in np.flatnonzero(bad_rank)[:1]:
        yield int(i), f"rank {t.rank[i]} or peer {t.peer[i]} is not one of {graph.world} ranks"
    limit = np.array([graph.num_items(s) if s else 0 for s in Space], np.int64)
    for access in (t.reads, t.writes):
        bad = (access.lo < 0) | (access.lo >= access.hi) | (access.hi > limit[np.minimum(access.space, len(limit) - 1)])
        for e in np.flatnonzero(bad)[:1]:
            item = format_items([(Space(int(access.space[e])), int(access.lo[e]), int(access.hi[e]))])
            yield int(access.row[e]), f"{item} does not exist"


def task_shape(graph: TaskGraph) -> Findings:
    """A transfer moves one kind of thing from another rank; a compute reads one run of query tiles and writes one
    output or one state a query tile; a reduction reads states and writes one thing."""
    t, n = graph.tasks, len(graph.tasks)
    kind = t.kind
    counts = {}
    for access, name in ((t.reads, "r"), (t.writes, "w")):
        for s in (Space.Q, Space.KV, Space.STATE, Space.OUT):
            row, lo, hi = access.of_space(s)
            counts[name, s] = np.bincount(row, hi - lo, minlength=n).astype(np.int64)
            counts[name, s, "runs"] = np.bincount(row, minlength=n)
    transfer, compute, reduction = (kind == k for k in (TaskKind.TRANSFER, TaskKind.COMPUTE, TaskKind.REDUCTION))
    written = counts["w", Space.OUT] + counts["w", Space.STATE]
    checks = [
        (t.direction != Direction.FORWARD, "only forward tasks are supported"),
        (transfer & ((t.peer < 0) | (t.peer == t.rank)), "a transfer pulls from another rank"),
        (transfer & (np.diff(t.reads.ptr) != 1), "a transfer moves one run of one space"),
        (~transfer & (t.peer >= 0), "only a transfer has a peer"),
        (compute & (counts["r", Space.Q, "runs"] != 1), "a compute reads one run of query tiles"),
        (compute & (counts["r", Space.STATE] > 0), "a compute reads no states"),
        (compute & (written != counts["r", Space.Q]), "a compute writes one output or state a query tile"),
        (compute & (counts["w", Space.OUT] > 0) & (counts["w", Space.STATE] > 0), "outputs or states, not both"),
        (reduction & ((counts["r", Space.Q] + counts["r", Space.KV]) > 0), "a reduction reads only states"),
        (reduction & (written != 1), "a reduction writes one output or state"),
        (~transfer & ((counts["w", Space.Q] + counts["w", Space.KV]) > 0), "only a transfer writes tiles"),
    ]
    for bad, message in checks:
        for i in np.flatnonzero(bad)[:1]:
            yield int(i), message
    moved = transfer[t.reads.row] if len(t.reads.lo) else np.zeros(0, bool)
    same = _same_access(graph, moved)
    for i in same[:1]:
        yield int(i), "a transfer writes on its rank what it reads on its peer"


def _same_access(graph: TaskGraph, moved: np.ndarray) -> IntArray:
    """Transfers that write something else than they read."""
    r, w = graph.tasks.reads, graph.tasks.writes
    transfers = np.flatnonzero(graph.tasks.kind == TaskKind.TRANSFER)
    one = (np.diff(r.ptr)[transfers] == 1) & (np.diff(w.ptr)[transfers] == 1)
    a, b = r.ptr[transfers[one]], w.ptr[transfers[one]]
    differ = (r.space[a] != w.space[b]) | (r.lo[a] != w.lo[b]) | (r.hi[a] != w.hi[b])
    return np.concatenate((transfers[~one], transfers[one][differ]))


def one_sequence_a_task(graph: TaskGraph) -> Findings:
    """All query tiles and KV tiles of a compute belong to one sequence."""
    t = graph.tasks
    q_row, q_lo, q_hi = t.reads.of_space(Space.Q)
    kv_row, kv_lo, kv_hi = t.reads.of_space(Space.KV)
    sequence = np.full(len(t), -1, np.int64)
    q_seq, kv_seq = graph.q_tiles.sequence, graph.kv_tiles.sequence
    sequence[q_row] = q_seq[q_lo]
    bad_q = (t.kind[q_row] == TaskKind.COMPUTE) & (q_seq[q_lo] != q_seq[q_hi - 1])
    for i in q_row[bad_q][:1]:
        yield int(i), "its query tiles are of several sequences"
    compute = t.kind[kv_row] == TaskKind.COMPUTE
    bad_kv = compute & ((kv_seq[kv_lo] != sequence[kv_row]) | (kv_seq[kv_hi - 1] != sequence[kv_row]))
    for e in np.flatnonzero(bad_kv)[:1]:
        yield int(kv_row[e]), f"kv {kv_lo[e]}:{kv_hi[e]} is not of its query tiles' sequence {sequence[kv_row[e]]}"
    forward = t.kind == TaskKind.COMPUTE
    if (np.diff(kv_seq) < 0).any() or (np.diff(q_seq) < 0).any():
        yield int(np.flatnonzero(forward)[0]) if forward.any() else -1, "tiles must be numbered sequence by sequence"


def one_writer_a_state(graph: TaskGraph) -> Findings:
    """Every state is written by exactly one compute or reduction."""
    t = graph.tasks
    row, lo, hi = t.writes.of_space(Space.STATE)
    made = t.kind[row] != TaskKind.TRANSFER
    task, state = np.repeat(row[made], (hi - lo)[made]), expand(lo[made], hi[made])
    count = np.bincount(state, minlength=len(graph.states))
    for s in np.flatnonzero(count > 1)[:1]:
        yield int(task[state == s][1]), f"state {s} is written by {count[s]} tasks"
    for s in np.flatnonzero(count == 0)[:1]:
        yield -1, f"state {s} is written by no task"
    position = expand(*_q_runs(graph, row[made], lo[made], hi[made]))
    wrong = np.flatnonzero(graph.states[state] != position)
    for i in wrong[:1]:
        yield int(task[i]), f"state {state[i]} is of q {graph.states[state[i]]}, the task computes q {position[i]}"


def _q_runs(graph: TaskGraph, row: IntArray, lo: IntArray, hi: IntArray) -> tuple[IntArray, IntArray]:
    """For every run of written states, the run of query tiles it belongs to (computes: their own, in order)."""
    t = graph.tasks
    compute = t.kind[row] == TaskKind.COMPUTE
    first = t.reads.lo[np.minimum(t.reads.ptr[row], max(len(t.reads.lo) - 1, 0))] if len(t.reads.lo) else lo
    before = np.concatenate(([0], np.cumsum(hi - lo)))[:-1].astype(np.int64)
    fresh = np.ones(len(row), bool)
    fresh[1:] = row[1:] != row[:-1]
    offset = before - np.maximum.accumulate(np.where(fresh, before, 0)) if len(row) else before
    start = np.where(compute, first + offset, _first_tile(graph, lo))
    return start, start + (hi - lo)


def _first_tile(graph: TaskGraph, state: IntArray) -> IntArray:
    return graph.states[np.minimum(state, len(graph.states) - 1)] if len(graph.states) else state


def states_reach_their_output(graph: TaskGraph) -> Findings:
    """Every state is merged by exactly one reduction, into an output or state of the same query tile; no cycle."""
    t = graph.tasks
    row, lo, hi = t.reads.of_space(Space.STATE)
    merge = t.kind[row] == TaskKind.REDUCTION
    task, state = np.repeat(row[merge], (hi - lo)[merge]), expand(lo[merge], hi[merge])
    uses = np.bincount(state, minlength=len(graph.states))
    for s in np.flatnonzero(uses > 1)[:1]:
        yield int(task[state == s][1]), f"state {s} is merged {uses[s]} times: its keys would count twice"
    for s in np.flatnonzero(uses == 0)[:1]:
        row, lo, hi = t.writes.of_space(Space.STATE)
        writer = row[(lo <= s) & (s < hi)]
        yield int(writer[0]) if len(writer) else -1, f"state {s} is merged by no reduction"
    target = np.full(len(t), -1, np.int64)
    for space in (Space.OUT, Space.STATE):
        w_row, w_lo, _ = t.writes.of_space(space)
        keep = t.kind[w_row] == TaskKind.REDUCTION
        target[w_row[keep]] = w_lo[keep] if space == Space.OUT else graph.states[w_lo[keep]]
    for i in np.flatnonzero(graph.states[state] != target[task])[:1]:
        yield int(task[i]), f"state {state[i]} is of q {graph.states[state[i]]}, not of q {target[task[i]]}"


def outputs_at_home(graph: TaskGraph) -> Findings:
    """Outputs are written on the owner of their query tile, and every output is written."""
    t = graph.tasks
    row, lo, hi = t.writes.of_space(Space.OUT)
    task, tile = np.repeat(row, hi - lo), expand(lo, hi)
    away = graph.q_tiles.rank[tile] != t.rank[task]
    for i in np.flatnonzero(away)[:1]:
        yield int(task[i]), f"out {tile[i]} belongs to rank {graph.q_tiles.rank[tile[i]]}"
    written = np.bincount(tile, minlength=len(graph.q_tiles))
    for q in np.flatnonzero(written == 0)[:1]:
        yield -1, f"out {q} is written by no task"
    compute = t.kind[row] == TaskKind.COMPUTE
    own, _ = _q_runs(graph, row[compute], lo[compute], hi[compute])
    for i in np.flatnonzero(own != lo[compute])[:1]:
        yield int(row[compute][i]), f"computes q {own[i]} but writes out {lo[compute][i]}"


def pairs_covered_once(graph: TaskGraph) -> Findings:
    """Every query-key pair that the mask shows is in exactly one compute (tile by tile)."""
    task, tile, lo, hi = covered_tiles(graph)
    order = np.lexsort((lo, tile))
    task, tile, lo, hi = task[order], tile[order], lo[order], hi[order]
    doubled = (tile[1:] == tile[:-1]) & (lo[1:] < hi[:-1])
    for i in np.flatnonzero(doubled)[:1]:
        other = graph.task_name(int(task[i]))
        yield int(task[i + 1]), f"kv {lo[i + 1]} for q {tile[i + 1]} is covered twice, also by {other}"
        return
    q = graph.q_tiles
    need_tile, need_lo, need_hi = needed_tiles(
        graph.problem, q.sequence, q.position, q.position + q.rows, graph.kv_tiles
    )
    got_tile, got_lo, got_hi = merge_sorted(tile, lo, hi)
    big = len(graph.kv_tiles) + 1
    at = np.searchsorted(got_tile * big + got_lo, need_tile * big + need_lo, "right") - 1
    inside = at >= 0
    if len(got_tile):
        inside &= (got_tile[at] == need_tile) & (got_hi[at] >= need_hi)
    for i in np.flatnonzero(~inside)[:1]:
        yield (
            _task_of_output(graph, int(need_tile[i])),
            (f"kv {need_lo[i]}:{need_hi[i]} must be covered for q {need_tile[i]}, and is not"),
        )


def covered_tiles(graph: TaskGraph) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(task, query tile, lo, hi) of every KV run of every compute, once a query tile."""
    t = graph.tasks
    row, lo, hi = t.reads.of_space(Space.KV)
    keep = t.kind[row] == TaskKind.COMPUTE
    row, lo, hi = row[keep], lo[keep], hi[keep]
    first = t.reads.ptr[row]
    q_lo, q_hi = t.reads.lo[first], t.reads.hi[first]
    entry = np.repeat(np.arange(len(row)), q_hi - q_lo)
    return row[entry], expand(q_lo, q_hi), lo[entry], hi[entry]


def _task_of_output(graph: TaskGraph, tile: int) -> int:
    row, lo, hi = graph.tasks.writes.of_space(Space.OUT)
    found = row[(lo <= tile) & (tile < hi)]
    return int(found[0]) if len(found) else -1
