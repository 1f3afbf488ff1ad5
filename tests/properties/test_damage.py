"""Plans and graphs with one thing wrong are refused with the task's name: no wrong answer, hang or raw IndexError."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest

from liquidcp_compiler.driver import Compiled
from liquidcp_compiler.errors import PlanError, ScheduleError, VerificationError
from liquidcp_compiler.ir.graph import SyncedGraph
from liquidcp_compiler.ir.verifier import verify
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_runtime.scheduling import schedule
from tests.numerics import compiled, decode, prefill, random_inputs, run
from tests.properties.damage import GRAPH_DAMAGE, PLAN_DAMAGE, NothingToDamage, rebuilt

TASK = re.compile(r"%\d+ (transfer|compute|reduce)")
#: A task that is gone has no name: what it should have written has.
GONE = {
    "drop_row": re.compile(r"output of q \d+|state \d+"),
    "drop_reduction": re.compile(r"output of q \d+|state \d+"),
}
SEEDS = 8


@pytest.fixture(scope="module")
def whole() -> list[Compiled]:
    """Ready-formed and static prefill, and decode with splits, chunks and several query tiles."""
    split = SplitKv(policy="fixed", num_splits=2)
    return [
        compiled(prefill(300, 70), 4),
        compiled(prefill(300, 70), 3, formation="static"),
        compiled(decode((300, 3), (0, 5), (700, 40)), 4, split=split),
        compiled(decode((300, 3), (129, 1), new_kv="in_cache", interleave=16), 2, split=split),
    ]


def test_a_rebuilt_plan_is_the_same(whole: list[Compiled]) -> None:
    for made in whole:
        assert rebuilt(made.plan).fingerprint == made.plan.fingerprint


@pytest.mark.parametrize("damage", PLAN_DAMAGE)
def test_damaged_plans_are_refused(damage: str, whole: list[Compiled]) -> None:
    count = 0
    for place, made in enumerate(whole):
        for seed in range(SEEDS):
            try:
                broken = PLAN_DAMAGE[damage](made.plan, np.random.default_rng((seed, place)))
            except NothingToDamage:
                continue
            count += 1
            assert broken.fingerprint != made.plan.fingerprint
            with pytest.raises((ScheduleError, PlanError)) as caught:
                run(broken, random_inputs(broken.problem), "random", seed)
            named = TASK.search(str(caught.value)) or GONE.get(damage, TASK).search(str(caught.value))
            assert named, caught.value
    assert count >= SEEDS, "no plan has what this damages"


@pytest.mark.parametrize("damage", PLAN_DAMAGE)
def test_the_event_core_ends_on_damaged_plans(damage: str, whole: list[Compiled]) -> None:
    """Without the checks of the tables before: it finds the damage, or the schedule ends."""
    for place, made in enumerate(whole):
        for seed in range(SEEDS):
            with contextlib.suppress(NothingToDamage, ScheduleError, PlanError):
                schedule(PLAN_DAMAGE[damage](made.plan, np.random.default_rng((seed, place))), "random", seed)


@pytest.mark.parametrize("damage", GRAPH_DAMAGE)
def test_damaged_graphs_are_refused(damage: str, whole: list[Compiled]) -> None:
    count = 0
    for place, made in enumerate(whole):
        for seed in range(SEEDS):
            graph: SyncedGraph = made.graph
            try:
                broken = GRAPH_DAMAGE[damage](graph, np.random.default_rng((seed, place)))
            except NothingToDamage:
                continue
            count += 1
            with pytest.raises(VerificationError) as caught:
                verify(broken)
            assert TASK.match(caught.value.task), caught.value
    assert count >= SEEDS, "no graph has what this damages"
