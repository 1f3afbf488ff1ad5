"""The text form of a graph: what is dumped, compared with golden files, and pasted in a report.

One line a task, stable order, no addresses and no times. ``parse_graph`` reads it back to an equal graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from liquidcp_compiler.ir.graph import AnyGraph, AuthoredGraph, SignalTable, SyncedGraph, TaskGraph, format_items
from liquidcp_compiler.ir.intervals import AccessTable, IntArray
from liquidcp_compiler.ir.layout import Formation, Role, SignalKind, Space
from liquidcp_compiler.ir.tasks import Direction, TaskKind
from liquidcp_compiler.ir.text_format import FORMAT, MAGIC, USUAL_FORMATION, interval
from liquidcp_compiler.ir.tiles import REPLICATED, TileTable


def print_graph(graph: AnyGraph) -> str:
    """The graph of any stage as text, ending with a newline. docs/ir.md has the grammar."""
    lines = [f"{MAGIC} {FORMAT} {graph.stage}", f"problem {json.dumps(graph.problem.to_json())}"]
    if isinstance(graph, AuthoredGraph):
        lines += [*_locs(graph.locs), *_regions(graph)]
        return "\n".join(lines) + "\n"
    lines += [f"world {graph.world}", f"tile {graph.tile}", *_locs(graph.locs)]
    lines += _tiles("q", graph.q_tiles, graph.tile, graph.problem.num_heads_q)
    lines += _tiles("kv", graph.kv_tiles, graph.tile, graph.problem.num_heads_kv)
    lines += _states(graph.states)
    signals = graph.signals if isinstance(graph, SyncedGraph) else None
    if signals is not None:
        lines += _signals(signals)
    lines += _tasks(graph, signals)
    return "\n".join(lines) + "\n"


def _locs(locs: tuple[str, ...]) -> Iterator[str]:
    for i, loc in enumerate(locs):
        if i or loc:
            yield f"loc {i} {json.dumps(loc)}"


def _regions(graph: AuthoredGraph) -> Iterator[str]:
    r = graph.regions
    columns = (c.tolist() for c in (r.sequence, r.role, r.q_lo, r.q_hi, r.kv_lo, r.kv_hi, r.loc))
    for sequence, role, q_lo, q_hi, kv_lo, kv_hi, loc in zip(*columns, strict=True):
        word = f" {Role(role).name.lower()}" if role else ""
        yield f"region sequence {sequence}{word} q {q_lo}:{q_hi} kv {kv_lo}:{kv_hi}" + (f" loc {loc}" if loc else "")


def tile_runs(tiles: TileTable) -> tuple[IntArray, IntArray]:
    """(first, past last) tile of every line: tiles that continue one another, of one size but for a shorter last."""
    n = len(tiles)
    if not n:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    joins = np.ones(n - 1, bool)
    for name in ("sequence", "rank", "group", "interleave", "phase", "head", "num_heads"):
        column = getattr(tiles, name)
        joins &= column[1:] == column[:-1]
    joins &= tiles.position[1:] == tiles.position[:-1] + tiles.rows[:-1]
    joins &= tiles.slot[1:] == tiles.slot[:-1] + (tiles.rank[1:] != REPLICATED)
    joins &= (tiles.rows[1:] <= tiles.rows[:-1]) & (tiles.rows[1:] > 0)
    shorter = joins & (tiles.rows[1:] < tiles.rows[:-1])
    joins[1:] &= ~shorter[:-1]
    first = np.flatnonzero(np.concatenate(([True], ~joins)))
    return first, np.append(first[1:], n).astype(np.int64)


def _tiles(word: str, tiles: TileTable, tile: int, num_heads: int) -> Iterator[str]:
    first, past = tile_runs(tiles)
    rows = {name: column[first].tolist() for name, column in tiles.columns().items()}
    ends = (tiles.position + tiles.rows)[past - 1].tolist()
    for i, (lo, hi) in enumerate(zip(first.tolist(), past.tolist(), strict=True)):
        c = {name: column[i] for name, column in rows.items()}
        line = f"{word} {interval(lo, hi)} sequence {c['sequence']} rows {c['position']}:{ends[i]}"
        line += " @all" if c["rank"] == REPLICATED else f" @{c['rank']}"
        if (c["rank"], c["slot"]) != (REPLICATED, -1):
            line += f" slot {c['slot']}"
        if (c["head"], c["num_heads"]) != (0, num_heads):
            line += f" heads {c['head']}:{c['head'] + c['num_heads']}"
        if (c["group"], c["interleave"], c["phase"]) != (1, 1, 0):
            line += f" every {c['group']} by {c['interleave']} phase {c['phase']}"
        if hi > lo + 1 and c["rows"] != tile:
            line += f" step {c['rows']}"
        yield line


def _states(states: IntArray) -> Iterator[str]:
    if len(states):
        first = np.flatnonzero(np.concatenate(([True], states[1:] != states[:-1])))
        past = np.append(first[1:], len(states))
        for lo, hi in zip(first.tolist(), past.tolist(), strict=True):
            yield f"state {interval(lo, hi)} q {states[lo]}"


def _signals(signals: SignalTable) -> Iterator[str]:
    s = signals
    columns = (c.tolist() for c in (s.kind, s.rank, s.space, s.item, s.expected))
    for i, (kind, rank, space, item, expected) in enumerate(zip(*columns, strict=True)):
        line = f"!{i} {SignalKind(kind).name.lower()} @{rank}"
        if space != Space.NONE:
            line += f" {Space(space).name.lower()} {item}"
        elif kind == SignalKind.PREFIX or item:
            line += f" sequence {item}"
        yield line if (kind, expected) == (SignalKind.READY, 1) else f"{line} expects {expected}"


def _tasks(graph: TaskGraph, signals: SignalTable | None) -> Iterator[str]:
    t, n = graph.tasks, len(graph.tasks)
    reads, writes = _entries(t.reads), _entries(t.writes)
    waits, sets = _uses(signals, n)
    columns = (
        c.tolist() for c in (t.kind, t.rank, t.peer, t.role, t.formation, t.tau_min, t.tau_max, t.direction, t.loc)
    )
    for i, (kind, rank, peer, role, *formation, direction, loc) in enumerate(zip(*columns, strict=True)):
        target = " -> " + format_items(writes[i]) if writes[i] else ""
        if kind == TaskKind.TRANSFER:
            line = f"%{i} transfer {format_items(reads[i])} from {peer} to {rank}"
            target = "" if writes[i] == reads[i] else target or " ->"
        else:
            word = "compute" if kind == TaskKind.COMPUTE else "reduce"
            line = " ".join(filter(None, (f"%{i} {word} @{rank}", format_items(reads[i]))))
        line += target
        if role != Role.NONE:
            line += f" {Role(role).name.lower()}"
        if tuple(formation) != USUAL_FORMATION[TaskKind(kind)]:
            line += f" {Formation(formation[0]).name.lower()}({formation[1]}, {formation[2]})"
        if direction == Direction.BACKWARD:
            line += " backward"
        yield line + (f" loc {loc}" if loc else "") + waits[i] + sets[i]


def _entries(table: AccessTable) -> list[list[tuple[Space, int, int]]]:
    """(space, lo, hi) of every row."""
    names = [Space(s) for s in table.space.tolist()]
    flat = list(zip(names, table.lo.tolist(), table.hi.tolist(), strict=True))
    ptr = table.ptr.tolist()
    return [flat[a:b] for a, b in zip(ptr[:-1], ptr[1:], strict=True)]


def _uses(signals: SignalTable | None, num_tasks: int) -> tuple[list[str], list[str]]:
    """The ``wait`` and ``set`` suffix of every task."""
    waits, sets = [""] * num_tasks, [""] * num_tasks
    if signals is not None:
        rows = (c.tolist() for c in (signals.wait_task, signals.wait_signal, signals.wait_value))
        for task, signal, value in zip(*rows, strict=True):
            waits[task] += ("" if waits[task] else " wait") + f" !{signal}" + (f">={value}" if value != 1 else "")
        for task, signal in zip(signals.set_task.tolist(), signals.set_signal.tolist(), strict=True):
            sets[task] += ("" if sets[task] else " set") + f" !{signal}"
    return waits, sets
