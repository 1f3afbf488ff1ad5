"""The generated kernel on the CPU, against float64: whole launches of all ranks, threads in many orders. Needs g++.

What this can and cannot show: docs/kernel.md, "The kernel without a GPU".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from liquidcp_compiler.codegen.emitter import emit, static_headers
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.ir.layout import Formation
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import PrefillProblem
from tests.emulator import build as builder
from tests.emulator.build import EmulatorError, build, emulated_headers, with_line_removed
from tests.emulator.world import EmulatedWorld
from tests.numerics import passes, prefill, random_inputs, report

pytestmark = pytest.mark.slow

LSE_TOLERANCE = 1e-3
FUNCTION = re.compile(r"^LIQUIDCP_DEVICE [\w ]+?[&*]? ?(\w+)\(", re.MULTILINE)

World = Callable[..., EmulatedWorld]


@pytest.fixture(scope="session")
def world(kernels) -> World:
    """world(ranks, ...): see EmulatedWorld."""
    return lambda world_size, **options: EmulatedWorld(world_size, kernels, **options)


def problem(*lengths: int, heads: tuple[int, int] = (2, 1), mask: str = "causal", **fields) -> PrefillProblem:
    """Of two sequences with a ragged end, bf16 and head_dim 64 unless said otherwise."""
    defaults = {"dtype": "bf16", "head_dim": 64}
    return prefill(
        *(lengths or (300, 17)),
        num_heads_q=heads[0],
        num_heads_kv=heads[1],
        mask={"type": mask},
        **(defaults | fields),
    )


def plan_of(p: PrefillProblem, world_size: int, formation: str = "ready", tile: int = 64) -> Plan:
    return make_plan(p, world_size, passes=passes(p, tile=tile, formation=formation))


def check(w: EmulatedWorld, plan: Plan, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Run with inputs of ``seed`` and compare with float64; (out, lse)."""
    inputs = random_inputs(plan.problem, seed)
    out, lse = w.run(plan, inputs.q, inputs.k, inputs.v)
    w.wait()
    errors = report(plan.problem, inputs, out, lse)
    assert errors.ok(LSE_TOLERANCE), errors.explain(LSE_TOLERANCE)
    return out, lse


@pytest.mark.parametrize("heads", [(2, 1), (3, 1)], ids=lambda h: f"heads{h[0]}_{h[1]}")
@pytest.mark.parametrize(("mask", "formation"), [("causal", "ready"), ("full", "ready"), ("causal", "static")])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_matches_float64(world: World, world_size: int, mask: str, formation: str, heads: tuple[int, int]) -> None:
    plan = plan_of(problem(heads=heads, mask=mask), world_size, formation)
    assert (plan.tables["rows"]["formation"] == Formation[formation.upper()]).all()
    check(world(world_size), plan)


def test_tiles_of_128_and_head_dim_128(world: World) -> None:
    check(world(2), plan_of(problem(head_dim=128), 2, tile=128))


def test_fp16(world: World) -> None:
    check(world(2), plan_of(problem(dtype="fp16", mask="full"), 2, "static"))


@pytest.mark.parametrize(("lengths", "kv_lengths"), [((130, 5), (400, 0)), ((0, 1, 0), (0, 1, 70)), ((200,), (129,))])
def test_keys_and_queries_of_different_lengths(
    world: World, lengths: tuple[int, ...], kv_lengths: tuple[int, ...]
) -> None:
    check(world(3), plan_of(problem(*lengths, mask="full", kv_lengths=kv_lengths), 3))


@pytest.mark.parametrize(("ctas_per_rank", "num_comm_ctas"), [(1, 1), (3, 1), (4, 2)])
def test_any_grid_and_order_of_threads(world: World, ctas_per_rank: int, num_comm_ctas: int) -> None:
    plan = plan_of(problem(), 3)
    for seed in (100, 200):
        check(world(3, ctas_per_rank=ctas_per_rank, num_comm_ctas=num_comm_ctas, seed=seed), plan)


def test_static_rows_give_the_same_bits_in_any_order(world: World) -> None:
    plan = plan_of(problem(), 2, "static")
    first, second = check(world(2, seed=1), plan), check(world(2, seed=2, ctas_per_rank=3), plan)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_back_to_back_launches_with_changing_inputs(world: World) -> None:
    w, plan = world(3), plan_of(problem(), 3)
    for seed in range(4):
        check(w, plan, seed)
    assert w.control.words.tolist() == [5, 0, 0]


@pytest.mark.parametrize(
    ("header", "barrier"),
    [
        ("tasks/transfer.cuh", "__syncthreads();  // all of the tile is stored before thread 0 releases it"),
        ("tasks/compute.cuh", "__syncthreads();          // also: all warps are done with the other K buffer"),
    ],
)
def test_a_missing_barrier_is_found(kernel_cache: Path, header: str, barrier: str) -> None:
    """The tests above can fail: what they run does depend on the order of threads."""
    plan = plan_of(problem(), 2)
    mutant = build(with_line_removed(emit(plan.spec), f"liquidcp/{header}", barrier), kernel_cache)
    inputs = random_inputs(plan.problem)
    runs = (
        EmulatedWorld(2, lambda _, **__: mutant, seed=seed).run(plan, inputs.q, inputs.k, inputs.v) for seed in range(5)
    )
    assert not all(report(plan.problem, inputs, *result).ok(LSE_TOLERANCE) for result in runs)


def test_replaced_headers_are_those_that_no_cpu_can_compile() -> None:
    """Headers of a portable kernel with PTX or shared memory are; the replacements offer the same functions."""
    whole = emit(plan_of(problem(), 2).spec).self_contained()
    used = re.findall(r"^// ---- (\S+)$", whole, re.MULTILINE)
    headers = {name: text for name, text in static_headers().items() if name in used}
    real = {name: text for name, text in headers.items() if re.search(r"\basm\b|__shared__ ", text)}
    replaced = emulated_headers()
    assert set(real) == set(replaced)
    for name, text in real.items():
        assert set(FUNCTION.findall(text)) <= set(FUNCTION.findall(replaced[name])), name


def test_without_a_compiler_the_error_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "COMPILER", "no-such-compiler")
    kernel = emit(plan_of(problem(), 2).spec)
    with pytest.raises(EmulatorError, match="no-such-compiler is not on PATH"):
        build(kernel, tmp_path)
