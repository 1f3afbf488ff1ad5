"""What goes wrong in a launch is named, the process lives, and the next launch is right."""

from __future__ import annotations

import time

import pytest
import torch

from liquidcp_compiler.errors import DeviceWaitError, OutOfResources, PlanError, PlanMismatchError
from liquidcp_compiler.ir.layout import HEADER
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.kernel_faults import Faults
from liquidcp_runtime.loopback_world import LoopbackWorld, loopback
from liquidcp_runtime.sharding import shard_map
from tests.gpu.support import MASKS, check, expected, problem, run, world, zigzag

pytestmark = pytest.mark.gpu

BUDGET = 0.3
TASK = r"%\d+ (transfer|compute) .*"
#: signal that rank 1 leaves out -> deterministic plan?, and what the error says
DROPS = {
    "ready": (False, r"^rank [023], CTA \d+ \(comm\), %\d+ transfer .* READY of rank 1, .*: expected 1, seen 0"),
    "prefix": (
        False,
        rf"^rank 1, CTA \d+ \((comm|compute)\), {TASK} "
        r"committed prefix of sequence 0 on rank 1: expected \d+, seen \d+",
    ),
    "tile": (True, r"^rank 1, CTA \d+ \(compute\), %\d+ compute @1 .*TILE kv \d+\) of rank 1: expected 1, seen 0"),
    "lock": (False, r"^rank 1, CTA \d+ \(compute\), .* running state of query tile \d+: expected 0, seen 1"),
}


def faulty(world_size: int, **faults) -> LoopbackWorld:
    return loopback(
        world_size, wait_budget=BUDGET, entry_budget=BUDGET, faults=Faults(**faults), poison=True, trace_capacity=1
    )


def mend(w: LoopbackWorld) -> None:
    """Nothing goes wrong from here on, and the world starts anew."""
    assert w._faults is not None
    w._faults.copy_(torch.from_numpy(Faults().struct().view("u1").copy()))
    w.recover()


def fails(w: LoopbackWorld, plan: Plan, named: str) -> None:
    """The launch ends within its budget and a little more, with this error."""
    w.kernel(plan.spec)
    given = expected(plan.problem, 0)[0]  # type: ignore[arg-type]
    start = time.monotonic()
    with pytest.raises(DeviceWaitError, match=named):
        run(w, plan, given)
    assert time.monotonic() - start < 10 * BUDGET


@pytest.mark.parametrize("drop", DROPS)
def test_a_dropped_signal_is_named_and_the_next_launch_is_right(drop: str) -> None:
    deterministic, named = DROPS[drop]
    w, plan = faulty(4, drop=drop, drop_rank=1), zigzag(problem((4096,)), 4, deterministic=deterministic)
    fails(w, plan, named)
    mend(w)
    for seed in range(3):
        check(w, plan, seed)


def test_a_dropped_done_is_named_two_launches_later() -> None:
    w, plan = faulty(4, drop="done", drop_rank=1), zigzag(problem((4096,)), 4)
    for seed in range(2):
        check(w, plan, seed)
    fails(w, plan, r"^rank [023], CTA \d+ \(stage\), staging of kv \d+: .* DONE of rank 1, ")
    mend(w)
    for seed in range(4):
        check(w, plan, seed)


@pytest.mark.parametrize("stop_after", [0, 1])
def test_a_rank_that_stops_is_named_by_its_peers(stop_after: int) -> None:
    w, plan = faulty(4, stop_rank=2, stop_after=stop_after, max_stage_delay_us=5), zigzag(problem((8192,)), 4)
    fails(w, plan, r"^rank [013], .* READY of rank 2, ")
    mend(w)
    check(w, plan)


def test_launches_behind_a_failed_one_do_nothing_and_the_error_comes_once_it_is_known() -> None:
    w, plan = faulty(4, drop="ready", drop_rank=1), zigzag(problem((4096,)), 4)
    q, k, v, _ = expected(plan.problem, 0)[0]  # type: ignore[arg-type]
    w.warmup([plan])
    for rank in range(4):
        shard_map(plan, rank, q.device)
    for _ in range(3):
        w.run(plan, q, k, v)
    start = time.monotonic()
    with pytest.raises(DeviceWaitError):
        w.wait()
    assert time.monotonic() - start < 10 * BUDGET
    with pytest.raises(DeviceWaitError):
        w.run(plan, q, k, v)
    mend(w)
    check(w, plan)


@pytest.mark.parametrize("field", ["layout_hash", "fingerprint"])
def test_a_plan_of_another_kind_is_refused(field: str) -> None:
    w, plan = loopback(2, entry_budget=BUDGET, wait_budget=BUDGET), zigzag(problem((1024,)), 2)
    w.warmup([plan])
    kind, offset = HEADER.dtype.fields[field][:2]  # type: ignore[index]
    blob, place = w._uploads.get(plan).blob(plan, 1), offset + kind.itemsize // 4
    blob[place] ^= 2
    error, named = {
        "layout_hash": (PlanError, "^rank 1: the plan"),
        "fingerprint": (PlanMismatchError, r"^rank \d runs plan .* peer \d"),
    }[field]
    with pytest.raises(error, match=named):
        run(w, plan, expected(plan.problem, 0)[0])  # type: ignore[arg-type]
    blob[place] ^= 2
    w.recover()
    check(w, plan)


def test_a_grid_that_cannot_be_resident_is_refused() -> None:
    plan = zigzag(problem((128,)), 2)
    most = world(2).kernel(plan.spec).co_resident_ctas() // 2
    with pytest.raises(OutOfResources, match=f"CTAs of a rank at once: {most + 1} needed, {most} available"):
        world(2, ctas_per_rank=most + 1).run(plan, *expected(plan.problem, 0)[0][:3])  # type: ignore[arg-type]
    check(world(2, ctas_per_rank=most), plan)


@pytest.mark.parametrize("mask", MASKS)
def test_delays_change_nothing(mask: str) -> None:
    plan = zigzag(problem((2048, 300), mask=mask), 4)
    for seed in range(5):
        w = world(4, faults=Faults(seed=seed, max_delay_us=20, max_stage_delay_us=100))
        for inputs in range(3):
            check(w, plan, inputs)


def test_a_hundred_seeds_of_delays_give_the_same_bits_in_deterministic_mode() -> None:
    plan = zigzag(problem((2048, 300)), 4, deterministic=True)
    out, lse = check(world(4), plan)
    given = expected(plan.problem, 0)[0]  # type: ignore[arg-type]
    w = faulty(4)
    assert w._faults is not None
    for seed in range(100):
        delays = Faults(seed=seed, max_delay_us=20, max_stage_delay_us=100)
        w._faults.copy_(torch.from_numpy(delays.struct().view("u1").copy()))
        again = run(w, plan, given)
        assert torch.equal(again[0], out)
        assert torch.equal(again[1], lse)
