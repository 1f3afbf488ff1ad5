"""Timelines: from records and from schedules, as files for Perfetto, and what errors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import DroppedRecordsWarning, TraceError
from liquidcp_compiler.ir.launch import TRACE_RECORD, TraceKind
from liquidcp_compiler.ir.layout import Formation
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_core import COMPUTE, LAND, REDUCE
from liquidcp_runtime.profiles import PROFILES
from liquidcp_runtime.scheduling import schedule, simulate
from liquidcp_runtime.timeline import Timeline
from tests.perfetto import complete_events, read_perfetto, track_names

STAGE, TRANSFER, WORK, MERGE, WAIT = (
    TraceKind.STAGE,
    TraceKind.TRANSFER,
    TraceKind.COMPUTE,
    TraceKind.MERGE,
    TraceKind.WAIT,
)
#: %globaltimer counts from 1970.
NOW = 1_800_000_000_000_000_000

Record = tuple[int, int, TraceKind, int, int]  # begin, end, kind, task, unit


def traced(plan: Plan, ctas: list[list[Record]], capacity: int = 8, **grid: int) -> Timeline:
    """The timeline of one launch that wrote these records, CTA by CTA; SM = 100 + CTA. What lies behind is garbage."""
    records = np.frombuffer(b"\xa5" * (TRACE_RECORD.size * len(ctas) * capacity), TRACE_RECORD.dtype).copy()
    records = records.reshape(len(ctas), capacity)
    for i, written in enumerate(ctas):
        for j, (begin, end, kind, task, unit) in enumerate(written[:capacity]):
            records[i, j] = (NOW + begin, NOW + end, kind, task, unit, 100 + i)
    counts = np.array([len(written) for written in ctas], np.int32)
    return Timeline.from_records(plan, records, counts, **{"ctas_per_rank": len(ctas) // plan.world, **grid})


@pytest.fixture(scope="module")
def plan(prefill) -> Plan:
    return make_plan(prefill(700, 40), 2)


#: One comm and one compute CTA of two ranks.
CTAS: list[list[Record]] = [
    [(0, 10, STAGE, 0, 0), (10, 30, TRANSFER, 1, 0), (31, 32, WAIT, 0, 0), (32, 70, WORK, 0, 2), (70, 75, MERGE, 0, 2)],
    [(2, 2, WAIT, 1, 3), (2, 60, WORK, 1, 3)],
    [],
    [(5, 5, WORK, 0, 0)],
]


def test_columns_of_records(plan: Plan) -> None:
    t = traced(plan, CTAS)
    assert (len(t), t.num_ranks, t.ctas_per_rank, t.dropped) == (8, 2, 2, 0)
    assert t.rank.tolist() == [0] * 7 + [1]
    assert t.cta.tolist() == [0] * 5 + [1, 1, 1]
    assert t.sm.tolist() == [100] * 5 + [101, 101, 103]
    assert t.kind.tolist() == [STAGE, TRANSFER, WAIT, WORK, MERGE, WAIT, WORK, WORK]
    assert t.unit.tolist() == [-1, -1, 0, 2, 2, 3, 3, 0]
    assert (t.begin_ns - NOW).tolist() == [0, 10, 31, 32, 70, 2, 2, 5]
    assert (t.end_ns - NOW).tolist() == [10, 30, 32, 70, 75, 2, 60, 5]


def test_one_rank_of_several(plan: Plan) -> None:
    t = traced(plan, [CTAS[0][2:], CTAS[1]], ctas_per_rank=2, first_rank=1)
    assert t.num_ranks == 1
    assert set(t.rank.tolist()) == {1}
    assert set(t.cta.tolist()) == {0, 1}


def test_dropped_records_are_said(plan: Plan) -> None:
    with pytest.warns(
        DroppedRecordsWarning, match="2 records of 1 CTAs were dropped: trace_capacity is 3, and 5 would"
    ):
        t = traced(plan, CTAS, capacity=3)
    assert t.dropped == 2
    assert len(t) == 6


def test_counts_are_unsigned(plan: Plan) -> None:
    records = np.zeros((2, 1), TRACE_RECORD.dtype)
    records["kind"] = WORK
    with pytest.warns(DroppedRecordsWarning):
        t = Timeline.from_records(plan, records, np.array([-1, 1], np.int32), ctas_per_rank=1)
    assert t.dropped == 2**32 - 2


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ((0, 1, 17, 0, 0), "kinds are 1 stage, 2 transfer"),
        ((0, 1, 0, 0, 0), "kinds are"),
        ((0, 1, WORK, 99999, 0), "no such task in the plan"),
        ((0, 1, TRANSFER, -1, 0), "no such task in the plan"),
        ((0, 1, WORK, 0, 4), "no such unit of the row"),
        ((0, 1, WAIT, 0, -2), "no such unit of the row"),
        ((5, 4, WORK, 0, 0), "ends before it begins"),
    ],
)
def test_records_of_something_else(plan: Plan, record: Any, words: str) -> None:
    with pytest.raises(TraceError, match=f"^rank 1, CTA 0: .*{words}"):
        traced(plan, [[], [record]])


def test_records_out_of_order(plan: Plan) -> None:
    with pytest.raises(TraceError, match="begins before the one before it ends"):
        traced(plan, [[(0, 10, WORK, 0, 0), (9, 12, WORK, 1, 0)], []])
    assert len(traced(plan, [[(0, 10, WORK, 0, 0)], [(9, 12, WORK, 1, 0)]])) == 2


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"ctas_per_rank": 3}, "no whole number of ranks"),
        ({"ctas_per_rank": 0}, "no whole number of ranks"),
        ({"ctas_per_rank": 1}, "the plan has 2"),
        ({"first_rank": 1}, "records of ranks 1 to 2, the plan has 2"),
        ({"first_rank": -1}, "the plan has 2"),
    ],
)
def test_wrong_grids(plan: Plan, grid: dict[str, int], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        traced(plan, CTAS, **grid)


def test_wrong_arrays(plan: Plan) -> None:
    records, counts = np.zeros((2, 4), TRACE_RECORD.dtype), np.zeros(2, np.int32)
    for wrong in ((records[0], counts), (records, counts[:1]), (records.view("u1"), counts)):
        with pytest.raises(TraceError):
            Timeline.from_records(plan, *wrong, ctas_per_rank=1)


def test_static_rows_have_their_interval(prefill) -> None:
    plan = make_plan(prefill(700), 2, deterministic=True)
    rows = plan.table("rows", 1)
    assert (rows["formation"] == Formation.STATIC).all()
    t = traced(plan, [[], [(0, 1, WORK, 2, 0), (1, 2, MERGE, 2, 0), (2, 3, WAIT, 1, 0)]])
    assert t.kv_lo.tolist() == [0, 0, -1]
    assert t.kv_hi.tolist() == [rows["num_kv_tiles"][2], rows["num_kv_tiles"][2], -1]


def test_a_schedule_is_all_there(plan: Plan) -> None:
    events = schedule(plan, seed=1)
    t = Timeline.from_schedule(plan, events)
    for kind, named in ((LAND, TRANSFER), (COMPUTE, WORK), (REDUCE, TraceKind.REDUCTION)):
        expected = [
            (e["rank"], e["cta"], e["index"], round(e["begin"] * 1e3), round(e["time"] * 1e3)) for e in events.of(kind)
        ]
        chosen = t.kind == named
        columns = (t.rank, t.cta, t.task, t.begin_ns, t.end_ns)
        assert sorted(expected) == sorted(zip(*(c[chosen].tolist() for c in columns), strict=True))
    claims = sorted((e["rank"], e["index"], e["lo"], e["hi"]) for e in events.of(COMPUTE))
    columns = (t.rank, t.task, t.kv_lo, t.kv_hi)
    assert claims == sorted(zip(*(c[t.kind == WORK].tolist() for c in columns), strict=True))
    assert (t.sm == -1).all()
    assert t.clock == "event core, random"


def test_waits_of_a_schedule_fill_its_gaps(plan: Plan) -> None:
    t = Timeline.from_schedule(plan, schedule(plan, "late-rank", num_comm=1, num_compute=2))
    for place in np.unique(t.place):
        mine = t.place == place
        begin, end, kind = t.begin_ns[mine], t.end_ns[mine], t.kind[mine]
        assert begin[0] == 0
        assert (begin[1:] == end[:-1]).all()
        assert kind[-1] != WAIT
        assert not ((kind[1:] == WAIT) & (kind[:-1] == WAIT)).any()
    assert (t.kind == WAIT).any()
    row_waits = (t.kind == WAIT) & (t.task >= 0)
    after = np.flatnonzero(row_waits) + 1
    assert (t.kind[after] == WORK).all()
    assert (t.task[after] == t.task[row_waits]).all()


@pytest.mark.parametrize("profile", [*PROFILES, "cost model"])
def test_perfetto_file_of_a_schedule(plan: Plan, decode, tmp_path: Path, profile: str) -> None:
    for made in (plan, make_plan(decode((3000, 1), (100, 2)), 2)):
        events = simulate(made) if profile == "cost model" else schedule(made, profile)
        document = read_perfetto(Timeline.from_schedule(made, events).to_perfetto(tmp_path / "t.json"))
        done = [e for e in complete_events(document) if e["cat"] != "wait"]
        assert len(done) == len(events.events)
        assert {e["name"] for e in done if e["cat"] == "compute"} == {
            made.task_name(r, "rows", i) for r in range(2) for i in range(len(made.table("rows", r)))
        }
        assert document["otherData"]["plan"] == f"{made.fingerprint:016x}"


def test_perfetto_file_of_records(plan: Plan, tmp_path: Path) -> None:
    document = read_perfetto(traced(plan, CTAS).to_perfetto(tmp_path / "deep" / "t.json"))
    assert document["otherData"]["dropped_records"] == 0
    assert track_names(document, "process_name") == {1: "rank 0", 2: "rank 1"}
    assert track_names(document, "thread_name") == {
        (1, 1): "CTA 0 (SM 100)",
        (1, 2): "CTA 1 (SM 101)",
        (2, 2): "CTA 1 (SM 103)",
    }
    events = complete_events(document)
    assert [(e["ts"], e["dur"]) for e in events[:3]] == [(0.0, 0.01), (0.01, 0.02), (0.031, 0.001)]
    staged = plan.table("kv_tiles", 0)["tile"][plan.table("staged_list", 0)[0]]
    compute = plan.task_name(0, "rows", 0)
    names = [f"stage kv {staged} @0", plan.task_name(0, "transfers", 1), "wait", compute]
    assert [e["name"] for e in events[:5]] == [*names, compute.replace("compute", "merge")]
    tile = int(plan.table("q_tiles", 0)["tile"][plan.table("rows", 0)["q_lo"][0]])
    assert events[3]["args"] == {"task": 0, "unit": 2, "q_tile": tile, "head": 2}
    assert events[1]["args"] == {"task": 1}


def test_units_of_a_row_of_several_query_tiles(decode, tmp_path: Path) -> None:
    plan = make_plan(decode((3000, 1), (100, 2)), 2)
    rows, q_list = plan.table("rows", 1), plan.table("q_list", 1)
    row = int(np.flatnonzero(rows["q_hi"] - rows["q_lo"] == 2)[0])
    t = traced(plan, [[], [(0, 1, WORK, row, 0), (1, 2, WORK, row, 7)]])
    args = [e["args"] for e in complete_events(read_perfetto(t.to_perfetto(tmp_path / "t.json")))]
    tiles = plan.table("q_tiles", 1)["tile"][q_list[rows["q_lo"][row] : rows["q_hi"][row]]].tolist()
    assert [(a["unit"], a["q_tile"], a["head"]) for a in args] == [(0, tiles[0], 0), (7, tiles[1], 3)]


def test_a_file_is_whole_or_not_there(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from liquidcp_runtime import timeline_perfetto

    path = traced(plan, CTAS).to_perfetto(tmp_path / "t.json")
    before = path.read_bytes()
    monkeypatch.setattr(timeline_perfetto, "_task_texts", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        traced(plan, CTAS).to_perfetto(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_to_do(prefill, tmp_path: Path) -> None:
    plan = make_plan(prefill(), 2)
    for t in (Timeline.from_schedule(plan, simulate(plan)), traced(plan, [[], []])):
        assert len(t) == 0
        assert complete_events(read_perfetto(t.to_perfetto(tmp_path / "t.json"))) == []


def test_ranks_that_ran_one_after_another(plan: Plan) -> None:
    first = traced(plan, [[(100, 110, WORK, 0, 0)]], ctas_per_rank=1)
    second = traced(plan, [[(9000, 9001, WORK, 0, 0), (9001, 9007, MERGE, 0, 0)]], ctas_per_rank=1, first_rank=1)
    t = Timeline.joined([first, second])
    assert (t.first_rank, t.num_ranks) == (0, 2)
    assert t.rank.tolist() == [0, 1, 1]
    assert t.begin_ns.tolist() == [0, 0, 1]
    assert t.end_ns.tolist() == [10, 1, 7]
    with pytest.raises(TraceError, match=r"ranks \[1, 0\]"):
        Timeline.joined([second, first])
    with pytest.raises(TraceError, match="different plans, grids or clocks"):
        Timeline.joined([first, traced(plan, [[], []], ctas_per_rank=2, first_rank=1)])
