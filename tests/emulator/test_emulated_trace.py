"""A kernel built with a trace records each of its tasks once, and its timeline says what the plan says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from liquidcp_compiler.cli import main
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import DroppedRecordsWarning, InvalidField
from liquidcp_compiler.ir.launch import TraceKind
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_runtime import loopback_world, solo_world
from liquidcp_runtime.timeline import Timeline
from liquidcp_runtime.timeline_summary import summarize
from tests.emulator.world import EmulatedSolo, EmulatedWorld
from tests.numerics import passes, prefill, random_inputs, report
from tests.perfetto import complete_events, read_perfetto, track_names

pytestmark = pytest.mark.slow

HEADS = 2


def problem() -> PrefillProblem:
    return prefill(300, 17, num_heads_q=HEADS, num_heads_kv=1, head_dim=64, dtype="bf16", mask={"type": "causal"})


def plan_of(formation: str) -> Plan:
    p = problem()
    return make_plan(p, 2, passes=passes(p, tile=64, formation=formation))


def timeline_of(kernels: Callable, plan: Plan, seed: int = 0, **options) -> Timeline:
    """Of one launch, whose result is right."""
    world = EmulatedWorld(2, kernels, ctas_per_rank=3, seed=seed, trace=True, **options)
    inputs = random_inputs(plan.problem)
    out, lse = world.run(plan, inputs.q, inputs.k, inputs.v)
    timeline = world.timeline(plan)
    assert report(plan.problem, inputs, out, lse).ok(1e-3)
    return timeline


def tasks(timeline: Timeline, kind: TraceKind) -> Counter[tuple[int, int, int]]:
    """How often each (rank, task, unit) was recorded."""
    chosen = timeline.kind == kind
    return Counter(zip(*(c[chosen].tolist() for c in (timeline.rank, timeline.task, timeline.unit)), strict=True))


def once(plan: Plan, table: str, units: int | None = None) -> dict[tuple[int, int, int], int]:
    """Each row of a table of every rank, with each of its units, once."""
    rows = [(rank, i) for rank in range(plan.world) for i in range(len(plan.table(table, rank)))]
    return {(*row, unit): 1 for row in rows for unit in ([-1] if units is None else range(units))}


@pytest.mark.parametrize("seed", [0, 1])
def test_static_rows(kernels, seed: int) -> None:
    plan = plan_of("static")
    t = timeline_of(kernels, plan, seed)
    assert tasks(t, TraceKind.STAGE) == once(plan, "staged_list")
    assert tasks(t, TraceKind.TRANSFER) == once(plan, "transfers")
    for kind in (TraceKind.WAIT, TraceKind.COMPUTE, TraceKind.MERGE):
        assert tasks(t, kind) == once(plan, "rows", HEADS)
    assert t.dropped == 0
    for s in summarize(t):
        assert s.span_ns > 0
        assert s.unrecorded_ns >= 0
        assert {tail.stage for tail in s.tails} == {"comm", "compute"}


def test_ready_rows(kernels, tmp_path: Path) -> None:
    plan = plan_of("ready")
    t = timeline_of(kernels, plan)
    assert tasks(t, TraceKind.TRANSFER) == once(plan, "transfers")
    assert set(tasks(t, TraceKind.COMPUTE)) == set(once(plan, "rows", HEADS))
    assert tasks(t, TraceKind.COMPUTE) == tasks(t, TraceKind.MERGE) == tasks(t, TraceKind.WAIT)
    comm = np.isin(t.kind, (TraceKind.STAGE, TraceKind.TRANSFER))
    assert set(t.cta[comm].tolist()) == {0}
    assert len(complete_events(read_perfetto(t.to_perfetto(tmp_path / "t.json")))) == len(t)


def test_what_does_not_fit_is_counted(kernels) -> None:
    plan = plan_of("static")
    whole = len(timeline_of(kernels, plan))
    with pytest.warns(DroppedRecordsWarning, match="trace_capacity is 4"):
        cut = timeline_of(kernels, plan, trace_capacity=4)
    assert cut.dropped == whole - len(cut) > 0


def test_a_world_without_a_trace_has_no_timeline(kernels) -> None:
    with pytest.raises(InvalidField, match="trace is False"):
        EmulatedWorld(2, kernels).timeline(plan_of("static"))


@pytest.mark.parametrize("on", ["loopback", "solo"])
def test_the_command_line_saves_it(
    kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    monkeypatch.setattr(loopback_world, "loopback", lambda ranks, **options: EmulatedWorld(ranks, kernels, **options))
    monkeypatch.setattr(solo_world, "solo", lambda rank, n, **options: EmulatedSolo(rank, n, kernels, **options))
    given, trace = tmp_path / "problem.json", tmp_path / "trace.json"
    given.write_text(json.dumps(problem().to_json()))
    command = ["run", str(given), "--world", "2", "--placement", "zigzag-all{tile=64}", "--on", on]
    assert main([*command, "--trace", str(trace), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    document = read_perfetto(trace)
    assert track_names(document, "process_name") == {1: "rank 0", 2: "rank 1"}
    assert {e["pid"] for e in complete_events(document)} == {1, 2}
    assert min(e["ts"] for e in complete_events(document)) == 0
    assert [r["rank"] for r in data["timeline"]["ranks"]] == [0, 1]
    assert data["timeline"]["clock"] == "%globaltimer of the GPU"
    assert main(command) == 0
    assert "timeline" not in capsys.readouterr().out
