"""The attention of generated kernels on the CPU, against float64: masks, head sizes, softcap, sinks, strides.

Every case of ``CASES`` is a kernel of its own, so each has much in it: sequences with ragged ends, query heads that
share a KV head, pulled tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from liquidcp_compiler.codegen.emitter import emit
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from tests.emulator.build import build, with_line_removed
from tests.emulator.memory_layouts import far_apart, heads_first
from tests.emulator.world import EmulatedWorld
from tests.numerics import Inputs, passes, prefill, random_inputs, report

pytestmark = pytest.mark.slow

LSE_TOLERANCE = 1e-3

Layout = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Fields of a problem, the size of tiles, and how tensors lie in memory."""

    lengths: tuple[int, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    tile: int = 64
    layout: Layout | None = None


def block_rows(num_rows: int, num_columns: int) -> list[list[int]]:
    """Every third block, from another one on in each row; row 2 sees nothing."""
    return [[] if i == 2 else list(range(i % 3, num_columns, 3)) for i in range(num_rows)]


CASES: dict[str, Case] = {
    "window d64": Case(
        lengths=(150, 70),
        fields={
            "mask": {"type": "sliding_window", "left": 40, "right": 9},
            "kv_lengths": (170, 30),
            "num_heads_q": 5,
        },
        layout=heads_first,
    ),
    "document d80 fp16 softcap": Case(
        lengths=(200, 60),
        fields={
            "mask": {"type": "document", "cu_seqlens": [0, 3, 90, 90, 131, 220, 260]},
            "head_dim": 80,
            "dtype": "fp16",
            "softcap": 2.0,
            "num_heads_q": 8,
        },
    ),
    "shared prefix d128 sinks": Case(
        lengths=(150, 40, 100),
        fields={"mask": {"type": "shared_prefix", "prefix": 100}, "head_dim": 128, "sinks": True},
    ),
    "blocks d144 sinks": Case(
        lengths=(100,),
        fields={
            "mask": {"type": "block_sparse", "block": 24, "rows": block_rows(5, 8)},
            "kv_lengths": (180,),
            "head_dim": 144,
            "sinks": True,
        },
        tile=128,
    ),
    "small blocks d96 fp16": Case(
        lengths=(70,),
        fields={
            "mask": {"type": "block_sparse", "block": 3, "rows": block_rows(24, 44)},
            "kv_lengths": (130,),
            "head_dim": 96,
            "dtype": "fp16",
        },
    ),
    "causal d256 softcap sinks": Case(
        lengths=(140, 9),
        fields={"mask": {"type": "causal"}, "head_dim": 256, "softcap": 30.0, "sinks": True, "num_heads_q": 1},
        layout=heads_first,
    ),
    "full d208 fp16": Case(
        lengths=(40, 70),
        fields={"mask": {"type": "full"}, "kv_lengths": (90, 0), "head_dim": 208, "dtype": "fp16", "num_heads_q": 1},
    ),
}


def problem_of(case: Case, **changes: Any) -> PrefillProblem:
    defaults = {"dtype": "bf16", "head_dim": 64}
    return prefill(*case.lengths, **(defaults | case.fields | changes))


def run(
    kernels: Callable, plan: Plan, inputs: Inputs, layout: Layout | None = None, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    world = EmulatedWorld(plan.world, kernels, seed=seed)
    if layout is None:
        result = world.run(plan, inputs.q, inputs.k, inputs.v, sinks=inputs.sinks)
        world.wait()
        return result
    tensors = [local_tensors(plan, rank, inputs, layout) for rank in range(plan.world)]
    world.run_local(plan, tensors)
    world.wait()
    return unshard(plan, [x.out for x in tensors]), unshard_lse(plan, [x.lse for x in tensors])


def local_tensors(plan: Plan, rank: int, inputs: Inputs, layout: Layout) -> RankTensors:
    """Of one rank, laid out in memory by ``layout``."""
    q = layout(shard_q(plan, rank, inputs.q))
    k, v = (layout(shard_kv(plan, rank, x)) for x in (inputs.k, inputs.v))
    lse = torch.full(q.shape[1::-1], math.nan)
    return RankTensors(q=q, k=k, v=v, out=layout(torch.full_like(q, math.nan)), lse=lse, sinks=inputs.sinks)


def check(
    kernels: Callable,
    problem: PrefillProblem,
    inputs: Inputs,
    tile: int,
    world_size: int = 2,
    layout: Layout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run and hold the result to float64: (out, lse)."""
    plan = make_plan(problem, world_size, passes=passes(problem, tile=tile))
    out, lse = run(kernels, plan, inputs, layout)
    errors = report(problem, inputs, out, lse)
    assert errors.ok(LSE_TOLERANCE), errors.explain(LSE_TOLERANCE)
    return out, lse


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_matches_float64(kernels: Callable, case: Case) -> None:
    problem = problem_of(case)
    check(kernels, problem, random_inputs(problem), case.tile, layout=case.layout)


@pytest.mark.parametrize("sinks", [False, True])
def test_a_row_that_sees_nothing_is_zero_and_its_lse_is_the_sink(kernels: Callable, sinks: bool) -> None:
    problem = problem_of(CASES["window d64"], sinks=sinks)
    inputs = random_inputs(problem)
    out, lse = run(kernels, make_plan(problem, 2, passes=passes(problem, tile=64)), inputs)
    blind = slice(150, 150 + 70 - 30 - 9)  # positions of the second sequence below -right
    assert (out[blind] == 0).all()
    expected = torch.full((5,), -math.inf) if inputs.sinks is None else inputs.sinks
    assert (lse[:, blind] == expected[:, None]).all()


def test_scores_far_below_zero_are_not_taken_for_masked_ones(kernels: Callable) -> None:
    problem = problem_of(CASES["window d64"], softmax_scale=1.0)
    inputs = random_inputs(problem)
    q, k = torch.full_like(inputs.q, 32.0), torch.full_like(inputs.k, -29.25)  # every score is -59904
    check(kernels, problem, inputs.with_changes(q=q, k=k), 64)


def test_small_scores_under_a_large_softcap_keep_their_digits(kernels: Callable) -> None:
    problem = problem_of(CASES["document d80 fp16 softcap"], softcap=1e6)
    check(kernels, problem, random_inputs(problem), 64)


def test_scores_beyond_the_softcap_are_cut(kernels: Callable) -> None:
    problem = problem_of(CASES["document d80 fp16 softcap"], softmax_scale=4.0)
    check(kernels, problem, random_inputs(problem), 64)


def test_steps_that_no_row_sees_are_not_read(kernels: Callable) -> None:
    """They hold NaN, and a probability of 0 times NaN would be NaN."""
    case = CASES["blocks d144 sinks"]
    mask = {"type": "block_sparse", "block": 32, "rows": [[0, 2], [0, 2], [2], [0]]}
    problem = problem_of(case, mask=mask, kv_lengths=(128,))
    inputs = random_inputs(problem)
    plan = make_plan(problem, 1, passes=passes(problem, tile=128))
    hidden = torch.zeros(128, dtype=torch.bool)
    hidden[32:64] = hidden[96:] = True
    poison = hidden[:, None, None].expand_as(inputs.k)
    poisoned = inputs.with_changes(
        k=inputs.k.masked_fill(poison, math.nan),
        v=inputs.v.masked_fill(poison, math.nan),
    )
    expected, found = run(kernels, plan, inputs), run(kernels, plan, poisoned)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_a_row_of_many_steps(kernels: Callable) -> None:
    """Several times the steps that a warp looks ahead, every second one hidden: half of all tiles."""
    mask = {"type": "block_sparse", "block": 32, "rows": [list(range(0, 256, 2))]}
    case = replace(CASES["blocks d144 sinks"], lengths=(30,))
    problem = problem_of(case, mask=mask, kv_lengths=(8190,), num_heads_q=1)
    check(kernels, problem, random_inputs(problem), 128, world_size=1)


def test_a_long_row_of_visible_steps(kernels: Callable) -> None:
    mask = {"type": "sliding_window", "left": 10**6, "right": 0}
    case = replace(CASES["window d64"], lengths=(20,))
    problem = problem_of(case, mask=mask, kv_lengths=(6400,), num_heads_q=1)
    check(kernels, problem, random_inputs(problem), 64, world_size=1)


def test_results_wait_for_the_last_values(kernel_cache: Path) -> None:
    """The result of a task takes the place of K and V: without a barrier before it, some warp still reads them."""
    problem = problem_of(CASES["blocks d144 sinks"])
    plan, inputs = make_plan(problem, 2, passes=passes(problem, tile=128)), random_inputs(problem)
    barrier = "__syncthreads();  // all warps are done with the last V, and shared memory is free"
    mutant = build(with_line_removed(emit(plan.spec), "liquidcp/tasks/compute.cuh", barrier), kernel_cache)
    results = (run(lambda _, **__: mutant, plan, inputs, seed=seed) for seed in range(5))
    assert not all(report(problem, inputs, *result).ok(LSE_TOLERANCE) for result in results)


def test_offsets_need_more_than_32_bits(kernels: Callable) -> None:
    mask = {"type": "sliding_window", "left": 100, "right": 0}
    problem = problem_of(replace(CASES["window d64"], lengths=(70,)), mask=mask, kv_lengths=(70,), num_heads_q=2)
    check(kernels, problem, random_inputs(problem), 64, world_size=1, layout=far_apart)
