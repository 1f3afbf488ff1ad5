"""The protocol of the generated kernel when something goes wrong, on the CPU: every wait ends, and says for what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import DeviceWaitError, PlanError, PlanMismatchError
from liquidcp_compiler.ir.launch import TRACE_RECORD, TraceKind
from liquidcp_compiler.ir.layout import HEADER
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_runtime.kernel_faults import Faults
from liquidcp_runtime.link_model import LinkModel
from liquidcp_runtime.reference import reference_attention
from liquidcp_runtime.sharding import shard_kv, shard_map, shard_q
from tests.emulator.world import EmulatedSolo, EmulatedWorld
from tests.numerics import passes, prefill, random_inputs, report

pytestmark = pytest.mark.slow

#: Seconds of emulated time that no right run comes near, and a wrong one soon has behind it.
SHORT_BUDGET = 0.02
LSE_TOLERANCE = 1e-3

World = Callable[..., EmulatedWorld]


@pytest.fixture(scope="session")
def world(kernels) -> World:
    """world(ranks, drop=, ...): a world with faults and short budgets."""

    def make(world_size: int, **faults) -> EmulatedWorld:
        return EmulatedWorld(
            world_size, kernels, wait_budget=SHORT_BUDGET, entry_budget=SHORT_BUDGET, faults=Faults(**faults)
        )

    return make


def problem() -> PrefillProblem:
    return prefill(300, 17, num_heads_q=2, num_heads_kv=1, head_dim=64, dtype="bf16", mask={"type": "causal"})


def plan_of(world_size: int, formation: str = "ready") -> Plan:
    p = problem()
    return make_plan(p, world_size, passes=passes(p, tile=64, formation=formation))


def run(w: EmulatedWorld, plan: Plan, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch, awaited; (out, lse)."""
    inputs = random_inputs(plan.problem, seed)
    result = w.run(plan, inputs.q, inputs.k, inputs.v)
    w.wait()
    return result


def check(w: EmulatedWorld, plan: Plan, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    result = run(w, plan, seed)
    errors = report(plan.problem, random_inputs(plan.problem, seed), *result)
    assert errors.ok(LSE_TOLERANCE), errors.explain(LSE_TOLERANCE)
    return result


def mend(w: EmulatedWorld) -> None:
    """Nothing goes wrong from here on, and the world starts anew."""
    assert w._faults is not None
    w._faults.copy_(torch.from_numpy(Faults().struct().view("u1").copy()))
    w.recover()


TASK = r"%\d+ (transfer|compute) .*"
#: signal that is left out, by rank 0 -> formation, and what the error says
DROPS = {
    "ready": ("ready", r"^rank 1, CTA \d+ \(comm\), %\d+ transfer .*: waited .* READY of rank 0, .*expected 1, seen 0"),
    "prefix": (
        "ready",
        rf"^rank 0, CTA \d+ \((comm|compute)\), {TASK} "
        r"committed prefix of sequence \d on rank 0: expected \d+, seen \d+",
    ),
    "tile": ("static", r"^rank 0, CTA \d+ \(compute\), %\d+ compute @0 .*TILE kv \d+\) of rank 0: expected 1, seen 0"),
    "lock": ("ready", r"^rank 0, CTA \d+ \(compute\), .* running state of query tile \d+: expected 0, seen 1"),
}


@pytest.mark.parametrize("drop", DROPS)
def test_a_dropped_signal_is_named_and_the_next_launch_is_right(world: World, drop: str) -> None:
    formation, named = DROPS[drop]
    w, plan = world(2, drop=drop, drop_rank=0), plan_of(2, formation)
    with pytest.raises(DeviceWaitError, match=named):
        run(w, plan)
    mend(w)
    for seed in range(3):
        check(w, plan, seed)


def test_a_dropped_done_is_named_two_launches_later(world: World) -> None:
    w, plan = world(2, drop="done", drop_rank=0), plan_of(2)
    for seed in range(2):
        check(w, plan, seed)
    with pytest.raises(DeviceWaitError, match=r"^rank 1, CTA \d+ \(stage\), staging of kv \d+: .* DONE of rank 0, "):
        run(w, plan)
    mend(w)
    for seed in range(4):
        check(w, plan, seed)


@pytest.mark.parametrize("stop_after", [0, 1])
def test_a_rank_that_stops_is_named_by_its_peers(world: World, stop_after: int) -> None:
    w, plan = world(3, stop_rank=2, stop_after=stop_after), plan_of(3)
    with pytest.raises(DeviceWaitError, match=r"^rank [01], .* READY of rank 2, "):
        run(w, plan)
    mend(w)
    check(w, plan)


def test_after_a_failure_nothing_runs_until_recover(world: World) -> None:
    w, plan = world(2, drop="ready", drop_rank=0), plan_of(2)
    inputs = random_inputs(plan.problem)
    for _ in range(3):  # the launch that fails and two behind it, which find the abort word set and do nothing
        params_epoch = int(w.control.words[0])
        w._failure, code = None, w.control.error.clone()
        w.control.error.zero_()
        w.run(plan, inputs.q, inputs.k, inputs.v)
        assert int(w.control.words[0]) == params_epoch + 1
        if not int(w.control.error_block()["code"][0]):
            w.control.error.copy_(code)
    with pytest.raises(DeviceWaitError):
        w.wait()
    with pytest.raises(DeviceWaitError):
        w.run(plan, inputs.q, inputs.k, inputs.v)
    mend(w)
    check(w, plan)


@pytest.mark.parametrize("formation", ["ready", "static"])
def test_delays_change_nothing(world: World, formation: str) -> None:
    plan = plan_of(3, formation)
    results = []
    for seed in range(4):
        w = world(3, seed=seed, max_delay_us=3.0, max_stage_delay_us=20.0)
        results += [check(w, plan, inputs) for inputs in range(3)]
    if formation == "static":  # merged in plan order: the same bits, whatever the order of events
        for again in range(3, len(results)):
            assert torch.equal(results[again][0], results[again % 3][0])
            assert torch.equal(results[again][1], results[again % 3][1])


@pytest.mark.parametrize(
    ("field", "error", "named"),
    [
        ("layout_hash", PlanError, "^rank 1: the plan"),
        ("fingerprint", PlanMismatchError, r"^rank \d runs plan .* peer \d"),
    ],
)
def test_a_plan_of_another_kind_is_refused(world: World, field: str, error: type[Exception], named: str) -> None:
    w, plan = world(2), plan_of(2)
    w.warmup([plan])
    kind, offset = HEADER.dtype.fields[field][:2]
    blob = w._uploads.get(plan).blob(plan, 1)
    blob[offset + kind.itemsize // 4] ^= 2
    with pytest.raises(error, match=named):
        run(w, plan)
    blob[offset + kind.itemsize // 4] ^= 2
    w.recover()
    check(w, plan)


def test_pulls_last_as_long_as_the_modelled_link_takes(kernels) -> None:
    """Of all pulls of a rank together; emulated time, so nothing depends on this machine."""
    plan, link = plan_of(2), LinkModel(bytes_per_s=1e9, latency_s=1e-6)
    w = EmulatedWorld(2, kernels, trace=True, link=link, num_comm_ctas=2)
    check(w, plan)
    records, counts = w._trace
    records = records.numpy().view(TRACE_RECORD.dtype).reshape(len(counts), -1)
    for rank in range(2):
        ctas = range(2 * rank, 2 * rank + 2)
        rows = np.concatenate([records[c, : int(counts[c])] for c in ctas])
        pulls = rows[rows["kind"] == TraceKind.TRANSFER]
        assert len(pulls) == len(plan.table("transfers", rank)) > 0
        moved = int(plan.table("transfers", rank)["rows"].sum()) * 2 * 64 * 2
        assert int(pulls["end_ns"].max() - pulls["begin_ns"].min()) >= moved + 1000


def test_a_rank_alone_gives_its_part_of_the_result(kernels) -> None:
    plan = plan_of(3)
    inputs = random_inputs(plan.problem)
    for rank in range(3):
        w = EmulatedSolo(rank, 3, kernels)
        for _ in range(3):
            w.load_peers(plan, inputs.k, inputs.v)
            local = [shard_q(plan, rank, inputs.q), *(shard_kv(plan, rank, x) for x in (inputs.k, inputs.v))]
            out, lse = w.run(plan, *local)
            w.wait()
            reference, lse_reference = reference_attention(plan.problem, inputs.q, inputs.k, inputs.v)
            places = shard_map(plan, rank).q_index
            assert (out.double() - reference[places]).abs().max() < 2e-2
            assert (lse.double() - lse_reference[:, places]).abs().max() < LSE_TOLERANCE
