"""Random problems under random schedules: the float64 reference's answer, whatever the plan and the interleaving."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.ir.problem import DecodeProblem, DType
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime.profiles import PROFILES
from tests.numerics import compiled, random_inputs, report, run
from tests.properties.strategies import Case, cases, decode_problems, prefill_problems


def check_case(case: Case) -> None:
    """Plans (verified after each pass), runs from NaN and compares."""
    problem = case.problem
    plan, given = compiled(problem, case.world, **case.options).plan, random_inputs(problem, case.seed)
    out, lse = run(plan, given, case.profile, case.seed)
    assert out.dtype == problem.dtype.torch
    errors = report(problem, given, out, lse)
    if isinstance(problem, DecodeProblem) and problem.exchange_dtype is not DType.FP32:
        # Partial outputs travel in bf16 then: bf16's rounding is what the result may cost, in any dtype.
        unit = DType.BF16.rounding_unit
        assert errors.whole <= max(errors.whole_limit, 1.5 * unit), errors.explain()
        assert errors.worst_tile <= max(errors.worst_tile_limit, 3 * unit), errors.explain()
        assert errors.lse_scaled <= 1e-5, errors.explain()
    else:
        assert errors.ok(), errors.explain()


@settings(max_examples=60)
@given(cases())
def test_any_problem_on_any_schedule(case: Case) -> None:
    check_case(case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_problems(part: int) -> None:
    """250 examples a part, so that the workers share them. Where examples are derandomised, each part has its own."""
    seeded = seed(part) if settings().derandomize else lambda test: test

    @seeded
    @settings(max_examples=250)
    @given(cases())
    def run_part(case: Case) -> None:
        check_case(case)

    run_part()


@settings(max_examples=10)
@given(st.one_of(prefill_problems(), decode_problems(world=4)), st.sampled_from((16, 32)))
def test_all_profiles_give_one_answer(problem, tile: int) -> None:
    plan, given = compiled(problem, 4, tile=tile).plan, random_inputs(problem)
    first = run(plan, given, "random", 0)
    unit = problem.dtype.rounding_unit * (32 if problem.dtype is DType.FP32 else 2)
    for number, profile in enumerate(PROFILES):
        out, lse = run(plan, given, profile, number)
        torch.testing.assert_close(out, first[0], rtol=unit, atol=unit)
        torch.testing.assert_close(lse, first[1], rtol=1e-5, atol=1e-5)


@settings(max_examples=10)
@given(st.one_of(prefill_problems(), decode_problems(world=4)), st.sampled_from((32, 128)))
def test_deterministic_mode_gives_the_same_bits(problem, tile: int) -> None:
    place = Dcp(tile=tile) if isinstance(problem, DecodeProblem) else ZigzagAll(tile=tile)
    plan, given = make_plan(problem, 4, placement=place, deterministic=True), random_inputs(problem)
    first = run(plan, given, "random", 0)
    for number, profile in enumerate(PROFILES):
        for result, expected in zip(run(plan, given, profile, number), first, strict=True):
            assert torch.equal(result, expected)
