"""A timeline as a file that ui.perfetto.dev and chrome://tracing open: JSON of the trace-event format."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.atomic_file import write_file
from liquidcp_compiler.ir.launch import TraceKind
from liquidcp_runtime.timeline import TASK_TABLES, Timeline

_EVENTS_AT_ONCE = 1 << 16


def write_perfetto(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write the timeline; the file appears whole or not at all. Raises OSError.

    One complete event ("X") a record: ``ts`` and ``dur`` in microseconds from the first record, process = rank,
    thread = CTA. Both ids count from 1, since 0 stands for the idle process of an operating system and some versions
    of Perfetto fold it into another one; their names count as everywhere. ``args``: ``task``, and for rows, where they
    are known, ``unit``, ``q_tile`` (of the graph), ``head``, and ``kv``: [first, one past the last) tile.
    """
    return write_file(path, _pieces(timeline))


def _pieces(timeline: Timeline) -> Iterator[str]:
    """The file's text, so much at once that no whole file of millions of records is ever in memory."""
    about = {
        "plan": f"{timeline.plan.fingerprint:016x}",
        "pipeline": timeline.plan.pipeline,
        "clock": timeline.clock,
        "dropped_records": timeline.dropped,
    }
    yield '{"displayTimeUnit":"ns","otherData":' + json.dumps(about) + ',"traceEvents":[\n'
    yield ",\n".join(json.dumps(event, separators=(",", ":")) for event in _names(timeline))
    texts, text_of = _task_texts(timeline)
    q_tile, head = query_tiles(timeline)
    origin = int(timeline.begin_ns.min()) if len(timeline) else 0
    for lo in range(0, len(timeline), _EVENTS_AT_ONCE):
        part = slice(lo, lo + _EVENTS_AT_ONCE)
        columns = (
            timeline.rank[part] + 1,
            timeline.cta[part] + 1,
            timeline.begin_ns[part] - origin,
            timeline.end_ns[part] - timeline.begin_ns[part],
            text_of[part],
            timeline.unit[part],
            q_tile[part],
            head[part],
            timeline.kv_lo[part],
            timeline.kv_hi[part],
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        yield ",\n" + ",\n".join(
            f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{ts / 1000:.3f},"dur":{dur / 1000:.3f},{texts[text]}'
            + (f',"unit":{unit},"q_tile":{q},"head":{h}' if unit >= 0 else "")
            + (f',"kv":[{kv_lo},{kv_hi}]' if kv_lo >= 0 else "")
            + "}}"
            for pid, tid, ts, dur, text, unit, q, h, kv_lo, kv_hi in rows
        )
    yield "\n]}\n"


def _names(timeline: Timeline) -> Iterator[dict[str, object]]:
    """Metadata: names and order of ranks, and of the CTAs that have records."""
    for rank in range(timeline.first_rank, timeline.first_rank + timeline.num_ranks):
        yield _metadata("process_name", rank, 0, name=f"rank {rank}")
        yield _metadata("process_sort_index", rank, 0, sort_index=rank)
    first = np.unique(timeline.place, return_index=True)[1]
    columns = (timeline.rank[first], timeline.cta[first], timeline.sm[first])
    for rank, cta, sm in zip(*(column.tolist() for column in columns), strict=True):
        yield _metadata("thread_name", rank, cta, name=f"CTA {cta}" + (f" (SM {sm})" if sm >= 0 else ""))
        yield _metadata("thread_sort_index", rank, cta, sort_index=cta)


def _metadata(what: str, rank: int, cta: int, **args: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": rank + 1, "tid": cta + 1, "args": args}


def _task_texts(timeline: Timeline) -> tuple[list[str], NDArray[np.int64]]:
    """Name, category and the beginning of ``args`` as JSON text, once a task; and which of them a record has."""
    key = (timeline.rank.astype(np.int64) * len(TraceKind) + timeline.kind << 32) + timeline.task + 1
    _, first, text_of = np.unique(key, return_index=True, return_inverse=True)
    columns = (timeline.rank[first], timeline.kind[first], timeline.task[first])
    texts = []
    for rank, kind, task in zip(*(column.tolist() for column in columns), strict=True):
        name = json.dumps(record_name(timeline, rank, TraceKind(kind), task))
        index = f'"task":{task}' if task >= 0 else ""
        texts.append(f'"name":{name},"cat":"{TraceKind(kind).name.lower()}","args":{{{index}')
    return texts, text_of


def record_name(timeline: Timeline, rank: int, kind: TraceKind, task: int) -> str:
    """What a record is called: the task's printed name; merges and waits say so."""
    plan = timeline.plan
    if kind == TraceKind.WAIT:
        return "wait"
    if kind == TraceKind.STAGE:
        tile = plan.table("kv_tiles", rank)["tile"][plan.table("staged_list", rank)[task]]
        return f"stage kv {tile} @{rank}"
    name = plan.task_name(rank, TASK_TABLES[kind], task)
    return name.replace(" compute ", " merge ") if kind == TraceKind.MERGE else name


def query_tiles(timeline: Timeline) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(query tile of the graph, query head) of each record; -1 where ``unit`` is -1.

    As in the kernel, a unit is place in the row's query tiles times ``num_heads_q``, plus head.
    """
    plan, heads = timeline.plan, timeline.plan.problem.num_heads_q
    q_tile, head = np.full(len(timeline), -1, np.int32), np.full(len(timeline), -1, np.int32)
    of_unit = np.flatnonzero(timeline.unit >= 0)
    rank, unit = timeline.rank[of_unit], timeline.unit[of_unit]
    rows = plan.tables["rows"][plan.offsets["rows"][rank] + timeline.task[of_unit]]
    place = plan.tables["q_list"][plan.offsets["q_list"][rank] + rows["q_lo"] + unit // heads]
    q_tile[of_unit] = plan.tables["q_tiles"]["tile"][plan.offsets["q_tiles"][rank] + place]
    head[of_unit] = unit % heads
    return q_tile, head
