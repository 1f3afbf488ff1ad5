"""The pass ``order``: what its policies change, and what they must leave alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liquidcp_compiler.driver import Compiled, compile_plan, plan
from liquidcp_compiler.errors import InvalidField, PassError
from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.dependencies import done_by_queues
from liquidcp_compiler.ir.graph import PlannedGraph
from liquidcp_compiler.ir.printer import print_graph
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.order import Order
from liquidcp_compiler.passes.registry import parse_pipeline
from liquidcp_runtime.profiles import PROFILES
from tests.graphs import decode_graph, decode_problem, prefill_graph, prefill_problem, zigzag_passes
from tests.numerics import passes, random_inputs, report, run
from tests.properties.strategies import prefill_placements, prefill_problems

LONGEST = Order(policy="longest-first")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A prefill problem, its ranks, and the options of its passes."""

    problem: PrefillProblem
    world: int
    options: dict[str, Any]


@st.composite
def prefill_cases(draw: st.DrawFn) -> Case:
    problem, world, tile = draw(prefill_problems()), draw(st.integers(1, 8)), draw(st.sampled_from((16, 32)))
    options = {"place": draw(prefill_placements(problem, world, tile))}
    options["formation"] = draw(st.sampled_from(("ready", "static")))
    return Case(problem=problem, world=world, options=options)


def both(case: Case) -> tuple[Compiled, Compiled]:
    """Compiled with fifo and with longest-first, verified after each pass."""
    usual = passes(case.problem, **case.options)
    longest = tuple(LONGEST if isinstance(p, Order) else p for p in usual)
    fifo, longest = (compile_plan(case.problem, case.world, passes=p, verify="each") for p in (usual, longest))
    return fifo, longest


def task_texts(made: Compiled) -> list[str]:
    """The tasks of a graph, without their numbers."""
    lines = print_graph(made.graph.advance(PlannedGraph)).splitlines()
    return [line.split(" ", 1)[1] for line in lines if line.startswith("%")]


@settings(max_examples=25)
@given(prefill_cases())
def test_longest_first_moves_computes_and_nothing_else(case: Case) -> None:
    fifo, longest = both(case)
    before, after = task_texts(fifo), task_texts(longest)
    assert Counter(before) == Counter(after)
    assert [t for t in before if "compute" not in t] == [t for t in after if "compute" not in t]
    assert done_by_queues(longest.graph).all()
    for rank in range(case.world):
        usual, rows = (made.plan.table("rows", rank) for made in (fifo, longest))
        tasks = longest.graph.tasks
        assert np.array_equal(rows["task"], np.flatnonzero((tasks.kind == TaskKind.COMPUTE) & (tasks.rank == rank)))
        # Stable: what fifo's rows become when sorted by length alone.
        wanted = usual[np.argsort(-usual["num_kv_tiles"].astype(np.int64), kind="stable")]
        for name in ("sequence", "q_lo", "q_hi", "num_kv_tiles", "num_arrivals", "local_lo", "local_hi"):
            assert np.array_equal(rows[name], wanted[name]), name


@settings(max_examples=10)
@given(prefill_cases(), st.sampled_from(list(PROFILES)))
def test_longest_first_computes_the_same_attention(case: Case, profile: str) -> None:
    _, longest = both(case)
    inputs = random_inputs(case.problem)
    errors = report(case.problem, inputs, *run(longest.plan, inputs, profile))
    assert errors.ok(), errors.explain()


def test_text_of_longest_first(golden: Callable[[str, str], None]) -> None:
    problem = PrefillProblem(lengths=(300, 70), num_heads_q=4, num_heads_kv=2, head_dim=64)
    graph = author(problem, loc="")
    for p in parse_pipeline("zigzag-all{tile=64},insert-transfers,coalesce,order{policy=longest-first}"):
        graph = p.apply(graph, PassContext(world=2))
    golden("longest-first.txt", print_graph(graph))


def test_fifo_is_the_default() -> None:
    made = {plan(prefill_problem(), 4, order=order).fingerprint for order in (None, "fifo")}
    assert made == {plan(prefill_problem(), 4).fingerprint}
    assert plan(prefill_problem(), 4, order="longest-first").fingerprint not in made


def test_a_planned_graph_can_be_ordered_anew_and_a_synced_one_cannot() -> None:
    synced = prefill_graph()
    made = compile_plan(synced.advance(PlannedGraph), 4, order="longest-first", verify="each").plan
    assert (np.diff(made.table("rows", 0)["num_kv_tiles"]) <= 0).all()
    with pytest.raises(InvalidField, match="order is 'fifo'; allowed: nothing: the graph is ordered already"):
        compile_plan(synced, 4, order="fifo")


def test_an_order_is_refused_where_it_could_not_be_honoured() -> None:
    with pytest.raises(InvalidField, match="order is 'fifo'; allowed: either order or passes, not both"):
        plan(prefill_problem(), 2, passes=zigzag_passes(), order="fifo")
    with pytest.raises(InvalidField, match="order is 'lifo'; allowed: fifo, longest-first"):
        plan(prefill_problem(), 2, order="lifo")
    with pytest.raises(PassError, match=r"whole sequences; %\d+ compute @0 .* has role (chunk|history)\. Take fifo"):
        plan(decode_problem(), 2, order="longest-first")
    planned = decode_graph().advance(PlannedGraph)
    with pytest.raises(PassError, match="order: longest-first is for computes over whole sequences"):
        LONGEST.apply(planned, PassContext(world=2))


def test_longest_first_takes_a_batch_without_tasks() -> None:
    assert len(plan(prefill_problem(lengths=()), 2, order="longest-first").tables["rows"]) == 0
