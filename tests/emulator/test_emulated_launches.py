"""Launches that were prepared before, and claims that are cut at the end: whole launches on the CPU. Needs g++."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.launch import TraceKind
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.prepared_launch import PreparedLaunch
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.sharding import shard_kv, shard_q
from tests.emulator.test_emulated_kernel import check, plan_of, problem
from tests.emulator.world import EmulatedWorld
from tests.numerics import random_inputs, report

pytestmark = pytest.mark.slow

LSE_TOLERANCE = 1e-3
#: Arrivals come in another order each time, and so do merges: a rounding of bf16.
close = partial(torch.testing.assert_close, atol=2e-3, rtol=1.6e-2)


class Counting(EmulatedWorld):
    """Counts the launches that it prepares."""

    prepared = 0

    def _prepare(self, *args) -> PreparedLaunch:
        self.prepared += 1
        return super()._prepare(*args)


@pytest.fixture
def counting(kernels) -> Counting:
    return Counting(2, kernels)


def local_tensors(plan: Plan, seed: int) -> list[RankTensors]:
    """Tensors of both ranks, with results full of NaN."""
    inputs = random_inputs(plan.problem, seed)
    made = []
    for rank in range(2):
        q = shard_q(plan, rank, inputs.q).clone()
        k, v = (shard_kv(plan, rank, x).clone() for x in (inputs.k, inputs.v))
        lse = torch.full((q.shape[1], q.shape[0]), float("nan"))
        made.append(RankTensors(q=q, k=k, v=v, out=torch.full_like(q, float("nan")), lse=lse))
    return made


def test_the_same_tensors_are_prepared_once(counting: Counting) -> None:
    """New numbers in them make no difference; other tensors do, for the same plan."""
    plan = plan_of(problem(), 2)
    tensors, others = local_tensors(plan, 0), local_tensors(plan, 1)
    for _ in range(3):
        counting.run_local(plan, tensors)
    first = [local.out.clone() for local in tensors]
    counting.run_local(plan, others)
    counting.wait()
    assert counting.prepared == 2
    for kept, other in zip(tensors, others, strict=True):
        for name in ("q", "k", "v"):
            getattr(kept, name).copy_(getattr(other, name))
        kept.out.fill_(float("nan"))
    counting.run_local(plan, tensors)
    counting.wait()
    assert counting.prepared == 2
    for before, kept, other in zip(first, tensors, others, strict=True):
        assert not before.isnan().any()
        close(kept.out, other.out)


def test_memory_that_grows_is_named_anew(counting: Counting) -> None:
    small, large = plan_of(problem(), 2), plan_of(problem(900, 400), 2)
    tensors = local_tensors(small, 0)
    counting.run_local(small, tensors)
    expected = [local.out.clone() for local in tensors]
    check(counting, large)
    before = counting.prepared
    for local in tensors:
        local.out.fill_(float("nan"))
    counting.run_local(small, tensors)
    counting.wait()
    assert counting.prepared == before + 1
    for local, out in zip(tensors, expected, strict=True):
        close(local.out, out)


def test_what_is_refused_is_refused_again(counting: Counting) -> None:
    """Whatever was run before: another shape, and another plan on tensors that one plan has run on."""
    plan, other = plan_of(problem(), 2), plan_of(problem(200, 64), 2)
    tensors = local_tensors(plan, 0)
    counting.run_local(plan, tensors)
    wrong = [RankTensors(**(vars(local) | {"k": local.k[:-1]})) for local in tensors]
    for _ in range(2):
        with pytest.raises(TensorError, match="k"):
            counting.run_local(plan, wrong)
        with pytest.raises(TensorError):
            counting.run_local(other, tensors)


@pytest.mark.parametrize(
    ("world_size", "mask", "heads"), [(1, "full", (4, 1)), (1, "causal", (2, 2)), (2, "causal", (6, 2))]
)
def test_claims_are_cut_when_little_work_is_left(
    kernels: Callable, world_size: int, mask: str, heads: tuple[int, int]
) -> None:
    """20 KV tiles a row and few units: every query tile and head is still merged whole."""
    plan = plan_of(problem(1280, 40, heads=heads, mask=mask), world_size)
    w = EmulatedWorld(world_size, kernels, ctas_per_rank=7, num_comm_ctas=1, trace=True)
    inputs = random_inputs(plan.problem, 0)
    out, lse = w.run(plan, inputs.q, inputs.k, inputs.v)
    w.wait()
    errors = report(plan.problem, inputs, out, lse)
    assert errors.ok(LSE_TOLERANCE), errors.explain(LSE_TOLERANCE)
    rows = plan.tables["rows"]
    units = int((rows["q_hi"] - rows["q_lo"]).sum()) * heads[0]
    assert (w.timeline(plan).kind == TraceKind.COMPUTE).sum() > units
