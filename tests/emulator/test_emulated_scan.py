"""The order in which compute CTAs take units: for one KV head after another the rows of the plan. Needs g++."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import DeviceWaitError
from liquidcp_compiler.ir.launch import TraceKind
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.passes.order import Order
from liquidcp_runtime.kernel_faults import Faults
from liquidcp_runtime.timeline import Timeline
from tests.emulator.test_emulated_kernel import check, plan_of, problem
from tests.emulator.world import EmulatedWorld
from tests.numerics import passes, random_inputs

pytestmark = pytest.mark.slow

HEADS = [(4, 2), (3, 3), (6, 2)]
POLICIES = ["fifo", "longest-first"]


def ordered(heads: tuple[int, int], world_size: int, formation: str, policy: str) -> Plan:
    p = problem(heads=heads)
    usual = passes(p, tile=64, formation=formation)
    chosen = tuple(Order(policy=policy) if isinstance(step, Order) else step for step in usual)
    return make_plan(p, world_size, passes=chosen)


def claims(timeline: Timeline) -> list[tuple[int, int, int]]:
    """(rank, row, unit) of every compute task, by when it began."""
    chosen = np.flatnonzero(timeline.kind == TraceKind.COMPUTE)
    chosen = chosen[np.argsort(timeline.begin_ns[chosen], kind="stable")]
    return list(zip(*(c[chosen].tolist() for c in (timeline.rank, timeline.task, timeline.unit)), strict=True))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("formation", ["ready", "static"])
@pytest.mark.parametrize("heads", HEADS, ids=lambda h: f"heads{h[0]}_{h[1]}")
def test_every_unit_is_taken_whatever_the_heads(kernels, heads: tuple[int, int], formation: str, policy: str) -> None:
    plan = ordered(heads, 2, formation, policy)
    world = EmulatedWorld(2, kernels, ctas_per_rank=3, trace=True)
    check(world, plan)
    taken = Counter(claims(world.timeline(plan)))
    units = {(r, row, unit) for r in range(2) for row in range(len(plan.table("rows", r))) for unit in range(heads[0])}
    assert set(taken) == units
    if formation == "static":
        assert set(taken.values()) == {1}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("heads", HEADS, ids=lambda h: f"heads{h[0]}_{h[1]}")
def test_one_kv_head_after_another_and_rows_in_queue_order(kernels, heads: tuple[int, int], policy: str) -> None:
    """A CTA alone takes them exactly so; more of them take neighbours at once."""
    plan = ordered(heads, 1, "static", policy)
    world = EmulatedWorld(1, kernels, ctas_per_rank=1, trace=True)
    check(world, plan)
    group, rows = heads[0] // heads[1], plan.table("rows", 0)
    wanted = [
        (0, row, kv_head * group + head)
        for kv_head in range(heads[1])
        for row in range(len(rows))
        for head in range(group)
    ]
    assert claims(world.timeline(plan)) == wanted
    if policy == "longest-first":
        assert (np.diff(rows["num_kv_tiles"].astype(int)) <= 0).all()


def test_an_error_names_the_row_that_is_blocked(kernels) -> None:
    """Of rank 0 the first row that needs a tile which nobody publishes; rows before it have ended."""
    plan = plan_of(problem(17, 300, heads=(4, 2), mask="full"), 2)
    rows = plan.table("rows", 0)
    blocked = int(np.flatnonzero(rows["num_arrivals"] > 0)[0])
    assert blocked > 0, "the case must have a row before it"
    faults = Faults(drop="prefix", drop_rank=0)
    world = EmulatedWorld(2, kernels, wait_budget=0.02, entry_budget=0.02, faults=faults)
    inputs = random_inputs(plan.problem)
    world.run(plan, inputs.q, inputs.k, inputs.v)
    named = re.escape(plan.task_name(0, "rows", blocked))
    with pytest.raises(
        DeviceWaitError, match=rf"^rank 0, CTA \d+ \(compute\), {named}.* committed prefix of sequence 1"
    ):
        world.wait()
