"""Claim rules, arrivals, queues, standstills and the clock of the event core."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import DeadlockError, InvalidField, ScheduleError
from liquidcp_compiler.ir.layout import Formation
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_core import COMPUTE, LAND, claim_end
from liquidcp_runtime.profiles import PROFILES, CostModel
from liquidcp_runtime.scheduling import Schedule, schedule, simulate


def test_the_case_of_the_papers_figure_6() -> None:
    # Q_b: two own tiles are claimed (C = 2), tiles of two peers have arrived (R = 4), tau_min 1, tau_max 4.
    assert claim_end(2, 4, 8, 1, 4) == 4


@pytest.mark.parametrize(
    ("claimed", "ready", "total", "tau_min", "tau_max", "end"),
    [
        (2, 2, 8, 1, 4, 2),  # nothing new
        (2, 3, 8, 2, 4, 2),  # fewer than tau_min, more to come
        (7, 8, 8, 2, 4, 8),  # the last remainder may be smaller than tau_min
        (0, 8, 8, 2, 4, 4),  # never more than tau_max
        (8, 8, 8, 2, 4, 8),  # all claimed
    ],
)
def test_claims(claimed: int, ready: int, total: int, tau_min: int, tau_max: int, end: int) -> None:
    assert claim_end(claimed, ready, total, tau_min, tau_max) == end


@given(st.data(), st.integers(1, 30), st.integers(1, 6), st.integers(1, 12))
def test_claims_partition_a_row_for_any_arrivals(data: st.DataObject, total: int, tau_min: int, tau_max: int) -> None:
    claimed = ready = 0
    while claimed < total:
        end = claim_end(claimed, ready, total, tau_min, tau_max)
        assert claimed <= end <= min(ready, claimed + tau_max)
        if end > claimed and ready < total:
            assert end - claimed >= min(tau_min, tau_max)
        if end == claimed:
            assert ready < total, "a row whose tiles are all there must hand them out"
            ready = data.draw(st.integers(ready + 1, total))
        claimed = end


def claims_of(plan: Plan, events: Schedule) -> dict[tuple[int, int], list[tuple[int, int]]]:
    claims = defaultdict(list)
    for event in events.of(COMPUTE):
        claims[int(event["rank"]), int(event["index"])].append((int(event["lo"]), int(event["hi"])))
    return claims


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("ctas", [(1, 1), (3, 5)])
def test_every_task_runs_exactly_once_under_every_profile(prefill, profile: str, ctas: tuple[int, int]) -> None:
    plan = make_plan(prefill(1500, 129, 1), cp_size=4)
    for seed in range(3):
        events = schedule(plan, profile, seed, *ctas)
        claims = claims_of(plan, events)
        for rank in range(4):
            landed = events.of(LAND, rank)["index"]
            assert sorted(landed) == list(range(len(plan.table("transfers", rank))))
            for index, row in enumerate(plan.table("rows", rank)):
                intervals = sorted(claims[rank, index])
                assert [lo for lo, _ in intervals] == [0, *[hi for _, hi in intervals[:-1]]]
                assert intervals[-1][1] == row["num_kv_tiles"]
                assert all(hi - lo <= row["tau_max"] for lo, hi in intervals if row["formation"] == Formation.READY)
        assert (events.events["claim"] <= events.events["begin"]).all()
        assert (np.diff(events.events["time"]) >= 0).all()


@pytest.mark.parametrize("profile", PROFILES)
def test_front_arrivals_are_committed_before_back_ones(prefill, profile: str) -> None:
    plan = make_plan(prefill(2100), cp_size=4)
    assert (plan.tables["sequences"]["num_front_arrivals"] > 0).any()
    for rank in range(4):
        front = int(plan.table("sequences", rank)["num_front_arrivals"][0])
        events = schedule(plan, profile, 5, num_comm=4).of(LAND, rank)
        assert sorted(events["lo"]) == list(range(len(events)))
        back = plan.table("transfers", rank)["arrival_class"][events["index"]] == 1
        assert (back == (events["lo"] >= front)).all()


def test_a_seed_gives_the_same_schedule_and_another_seed_another(prefill) -> None:
    plan = make_plan(prefill(1500), cp_size=4)
    first, again, other = (schedule(plan, "random", seed).events for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first["index"], other["index"])


def test_profiles_do_what_they_say(prefill) -> None:
    plan = make_plan(prefill(2100), cp_size=4)
    burst = schedule(plan, "burst")
    assert burst.of(LAND)["time"].min() >= 1e3
    own_work = burst.of(COMPUTE)["time"] < 1e3
    assert own_work.any()
    assert not own_work.all()
    late = schedule(plan, "late-rank")
    waits = [plan.table("transfers", int(e["rank"]))["peer"][e["index"]] for e in late.of(LAND) if e["begin"] >= 1e3]
    assert waits
    early = {
        int(plan.table("transfers", int(e["rank"]))["peer"][e["index"]]) for e in late.of(LAND) if e["begin"] < 1e3
    }
    assert len({0, 1, 2, 3} - early) == 1, "exactly one rank cannot be read early"
    lifo = schedule(plan, "lifo", num_comm=4).of(LAND, 0)["index"]
    assert (np.diff(lifo) < 0).any()


def test_a_transfer_that_never_runs_is_a_deadlock_with_names(prefill, edited) -> None:
    plan = make_plan(prefill(700), cp_size=2)
    rank = int(np.flatnonzero(np.diff(plan.offsets["transfers"]))[0])
    broken = edited(plan, "transfers", rank, 0, drop=True)
    expected = int(plan.table("sequences", rank)["num_arrivals"][0])
    with pytest.raises(DeadlockError) as caught:
        schedule(broken)
    error = caught.value
    assert error.rank == rank
    assert "compute" in error.task
    assert "prefix of sequence 0" in error.signal
    assert (error.expected, error.seen) == (expected, expected - 1)


def test_a_signal_that_nobody_sets_is_named(prefill, edited) -> None:
    from liquidcp_compiler.ir.mask import SlidingWindow

    plan = make_plan(prefill(1024, mask=SlidingWindow(left=200, right=0)), cp_size=4)
    rank = int(np.flatnonzero(np.diff(plan.offsets["transfers"]))[0])
    tile = plan.table("kv_tiles", rank)["tile"][plan.table("transfers", rank)["target"][0]]
    # The copy raises DONE (signal 1) in place of its own signal.
    with pytest.raises(DeadlockError, match=f"tile of kv {tile} on rank {rank}: expected 1, seen 0"):
        schedule(edited(plan, "transfers", rank, 0, signal=1))


def test_counts_that_do_not_add_up(prefill, edited) -> None:
    plan = make_plan(prefill(700), cp_size=2)
    count = int(plan.table("q_tiles", 0)["merge_count"][0])
    task = plan.task_name(0, "rows", int(np.flatnonzero(plan.table("rows", 0)["q_lo"] == 0)[0]))
    with pytest.raises(ScheduleError, match="missing contribution") as caught:
        schedule(edited(plan, "q_tiles", 0, 0, merge_count=count + 1))
    assert caught.value.task == task
    with pytest.raises(ScheduleError, match="double contribution"):
        schedule(edited(plan, "rows", 0, 0, double=True))
    with pytest.raises(ScheduleError, match="arrivals"):
        schedule(edited(plan, "transfers", 0, 0, double=True))


def test_bad_options_are_refused(prefill) -> None:
    plan = make_plan(prefill(10), cp_size=1)
    with pytest.raises(InvalidField, match="profile"):
        schedule(plan, "gentle")
    with pytest.raises(InvalidField, match="num_compute"):
        simulate(plan, num_compute=0)


def test_simulated_time_on_one_cta_is_the_sum_of_its_tasks(prefill) -> None:
    plan = make_plan(prefill(512, head_dim=128, num_heads_q=1, num_heads_kv=1), cp_size=1)
    cost = CostModel(tile_us=2.0, task_us=5.0)
    result = simulate(plan, cost, num_comm=1, num_compute=1)
    tasks = len(result.of(COMPUTE))
    # Two CTAs work (the comm CTA has nothing to pull): the sum of busy times, and a makespan between half and all.
    busy = (result.events["time"] - result.events["begin"]).sum()
    assert busy == pytest.approx(2.0 * (1 + 2 + 3 + 4) + 5.0 * tasks)
    assert busy / 2 <= result.makespan <= busy
    assert result.rank_times().tolist() == [result.makespan]


def test_simulated_transfers_cost_latency_and_bytes(prefill) -> None:
    plan = make_plan(prefill(512, dtype="bf16"), cp_size=2)
    cost = CostModel(link_latency_us=7.0, link_bytes_per_us=1000.0)
    lands = simulate(plan, cost).of(LAND)
    assert len(lands)
    # K and V of 128 rows x 2 heads x 16 values of 2 bytes.
    np.testing.assert_allclose(lands["time"] - lands["begin"], 7.0 + 128 * 2 * 2 * 16 * 2 / 1000.0)
