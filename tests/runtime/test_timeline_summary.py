"""Tail idle as the paper defines it, in timelines made by hand and against a slow reading of the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.ir.launch import TraceKind
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.profiles import PROFILES
from liquidcp_runtime.scheduling import schedule
from liquidcp_runtime.timeline import Timeline
from liquidcp_runtime.timeline_summary import STAGES, StageTail, summarize, tail_idle

TRANSFER, WORK, MERGE, WAIT, REDUCE = (
    TraceKind.TRANSFER,
    TraceKind.COMPUTE,
    TraceKind.MERGE,
    TraceKind.WAIT,
    TraceKind.REDUCTION,
)


@pytest.fixture(scope="module")
def timeline(decode) -> Callable[..., Timeline]:
    """timeline(ctas, num_ranks=1): (begin, end, kind) records of each CTA, rank by rank."""
    plan = make_plan(decode((3000, 1), (100, 2)), 2)

    def make(ctas: list[list[tuple[int, int, TraceKind]]], num_ranks: int = 1) -> Timeline:
        per_rank = len(ctas) // num_ranks
        rows = [(i // per_rank, i % per_rank, kind, b, e) for i, records in enumerate(ctas) for b, e, kind in records]
        rank, cta, kind, begin, end = np.array(rows, np.int64).reshape(-1, 5).T
        none, zero = np.full(len(rows), -1, np.int32), np.zeros(len(rows), np.int32)
        columns: dict[str, Any] = {"sm": none, "task": zero, "unit": none, "kv_lo": none, "kv_hi": none}
        return Timeline(
            plan=plan, clock="by hand", first_rank=0, num_ranks=num_ranks, ctas_per_rank=per_rank, dropped=0,
            rank=rank.astype(np.int32), cta=cta.astype(np.int32), kind=kind.astype(np.int32), begin_ns=begin,
            end_ns=end, **columns,
        )  # fmt: skip

    return make


def test_serial_stages(timeline) -> None:
    """Compute from 10 to 60 and reductions from 60 to 70 on three CTAs: 10 + 0 + 30 and 0 + 4 + 6 of wait."""
    t = timeline(
        [
            [(10, 50, WORK), (60, 70, REDUCE)],
            [(10, 30, WORK), (30, 60, WORK), (60, 66, REDUCE)],
            [(12, 30, WORK), (61, 64, REDUCE)],
        ]
    )
    compute, reduction = tail_idle(t)
    assert compute == StageTail(rank=0, stage="compute", span_ns=50, cta_ns=150, idle_ns=40)
    assert reduction == StageTail(rank=0, stage="reduction", span_ns=10, cta_ns=30, idle_ns=10)
    assert compute.fraction == pytest.approx(40 / 150)
    assert summarize(t)[0].tail_fraction == pytest.approx(50 / 180)


def test_who_goes_on_to_the_next_stage_does_not_wait(timeline) -> None:
    t = timeline([[(0, 100, WORK)], [(0, 40, WORK), (40, 50, WAIT), (50, 90, REDUCE)]])
    compute, reduction = tail_idle(t)
    assert compute.idle_ns == 10 + 10  # the recorded wait, and the end
    assert reduction.idle_ns == 0  # the CTA without a reduction computes all the while


def test_work_that_outlasts_the_stage_counts_up_to_its_end(timeline) -> None:
    compute, reduction = tail_idle(timeline([[(0, 100, WORK)], [(0, 40, WORK), (90, 150, REDUCE)]]))
    assert compute.idle_ns == 50
    assert reduction.idle_ns == 50  # of the other CTA, from 100 on


def test_merging_is_a_part_of_computing(timeline) -> None:
    (compute,) = tail_idle(timeline([[(0, 10, WORK), (10, 14, MERGE)], [(0, 12, WORK)]]))
    assert (compute.span_ns, compute.idle_ns) == (14, 2)


def test_a_cta_without_a_task_waits_from_the_begin(timeline) -> None:
    (compute,) = tail_idle(timeline([[(5, 25, WORK)], []]))
    assert (compute.cta_ns, compute.idle_ns) == (40, 20)


def test_only_comm_ctas_count_for_the_comm_stage(timeline) -> None:
    t = timeline([[(0, 30, TRANSFER)], [(0, 10, TraceKind.STAGE), (20, 40, WORK)], []])
    comm, compute = tail_idle(t)
    assert (comm.cta_ns, comm.idle_ns) == (60, 10)
    assert (compute.cta_ns, compute.idle_ns) == (60, 10 + 20)


def test_ranks_do_not_wait_for_each_other(timeline) -> None:
    t = timeline([[(0, 10, WORK)], [(0, 8, WORK)], [(0, 100, WORK)], [(0, 100, WORK)]], num_ranks=2)
    assert [(s.rank, s.idle_ns, s.span_ns) for s in tail_idle(t)] == [(0, 2, 10), (1, 0, 100)]


def test_a_rank_without_records(timeline) -> None:
    idle, busy = summarize(timeline([[], [(3, 9, WORK)]], num_ranks=2))
    assert (idle.rank, idle.span_ns, idle.cta_ns, idle.tails, idle.tail_fraction) == (0, 0, 0, (), 0.0)
    assert busy.busy_ns[WORK] == busy.span_ns == 6


def test_where_the_time_went(timeline) -> None:
    (s,) = summarize(timeline([[(0, 4, TRANSFER), (6, 9, WAIT), (9, 20, WORK)], [(2, 10, WORK), (10, 11, MERGE)]]))
    assert (s.span_ns, s.cta_ns) == (20, 40)
    assert s.busy_ns == {TraceKind.STAGE: 0, TRANSFER: 4, WORK: 19, MERGE: 1, REDUCE: 0}
    assert (s.wait_ns, s.unrecorded_ns) == (3, 40 - 4 - 19 - 1 - 3)
    data = s.to_json()
    assert data["busy_ns"]["compute"] == 19
    assert list(data["tail_idle"]) == ["comm", "compute"]


def slow_idle(t: Timeline, rank: int, stage: str) -> int:
    """Tail idle of a stage, nanosecond by nanosecond, as its definition reads."""
    of_rank = t.rank == rank
    inside = of_rank & np.isin(t.kind, STAGES[stage])
    begin, end, idle = int(t.begin_ns[inside].min()), int(t.end_ns[inside].max()), 0
    for cta in range(t.ctas_per_rank):
        mine = of_rank & (t.cta == cta)
        if stage == "comm" and not (mine & inside).any():
            continue
        waits = np.ones(end - begin, bool)
        waits[: max(t.end_ns[mine & inside], default=begin) - begin] = False
        for i in np.flatnonzero(mine & (t.kind != WAIT)):
            waits[max(t.begin_ns[i] - begin, 0) : max(t.end_ns[i] - begin, 0)] = False
        idle += int(waits.sum())
    return idle


@pytest.mark.parametrize("profile", PROFILES)
def test_schedules_against_the_slow_reading(prefill, decode, profile: str) -> None:
    plans: list[Plan] = [make_plan(prefill(700, 40), 2), make_plan(decode((900, 1), (100, 2)), 2)]
    for plan in plans:
        t = Timeline.from_schedule(plan, schedule(plan, profile, seed=2))
        tails = tail_idle(t)
        assert {s.stage for s in tails} >= {"comm", "compute"}
        for s in tails:
            assert s.idle_ns == slow_idle(t, s.rank, s.stage)
        for s in summarize(t):
            assert sum(s.busy_ns.values()) + s.wait_ns + s.unrecorded_ns == s.cta_ns
            assert s.unrecorded_ns >= 0
            assert s.tails == tuple(x for x in tails if x.rank == s.rank)
