"""What worlds with a device refuse, on the CPU, where they would otherwise give wrong numbers without a word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import PlanError, TensorError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard
from tests.emulator.world import EmulatedSolo, EmulatedWorld
from tests.numerics import passes, prefill, random_inputs

pytestmark = pytest.mark.slow


def plan_of(*lengths: int, world: int = 2) -> Plan:
    p = prefill(*lengths, head_dim=64, dtype="bf16", mask={"type": "causal"})
    return make_plan(p, world, passes=passes(p, tile=64))


def local_tensors(plan: Plan) -> list[RankTensors]:
    inputs, made = random_inputs(plan.problem), []
    for rank in range(plan.world):
        q = shard_q(plan, rank, inputs.q)
        k, v = (shard_kv(plan, rank, x) for x in (inputs.k, inputs.v))
        made.append(RankTensors(q=q, k=k, v=v, out=torch.empty_like(q), lse=torch.empty(q.shape[1::-1])))
    return made


def test_ranks_do_not_write_into_each_others_tensors(kernels: Callable) -> None:
    plan = plan_of(256)
    w, (first, second) = EmulatedWorld(2, kernels), local_tensors(plan)
    for changed in (replace(second, out=first.out), replace(second, out=first.q), replace(second, lse=first.lse)):
        with pytest.raises(TensorError, match="of rank"):
            w.run_local(plan, [first, changed])
    w.run_local(plan, [first, replace(second, k=second.k.clone())])


def test_a_slot_takes_lse_of_any_shape_with_room(kernels: Callable) -> None:
    plan = plan_of(256)
    w, tensors = EmulatedWorld(2, kernels), local_tensors(plan)
    w.run_local(w.reserve(plan), tensors)
    expected = [x.lse.clone() for x in tensors]
    flat = [replace(x, lse=torch.empty(x.lse.numel() + 5)) for x in tensors]
    w.run_local(w.reserve(plan), flat)
    for one, want in zip(flat, expected, strict=True):
        assert torch.allclose(one.lse[: want.numel()].view_as(want), want)


def test_a_timeline_is_of_the_plan_that_ran_last(kernels: Callable) -> None:
    w, first, second = EmulatedWorld(2, kernels, trace=True), plan_of(256), plan_of(300, 20)
    for plan in (first, second):
        inputs = random_inputs(plan.problem)
        w.run(plan, inputs.q, inputs.k, inputs.v)
    assert len(w.timeline(second))
    with pytest.raises(PlanError, match="another plan"):
        w.timeline(first)


def test_solo_makes_a_contiguous_result_and_names_what_is_no_tensor(kernels: Callable) -> None:
    plan = plan_of(256, world=1)
    w, inputs = EmulatedSolo(0, 1, kernels), random_inputs(plan.problem)
    heads_first = inputs.q.transpose(0, 1).contiguous().transpose(0, 1)
    out, _ = w.run(plan, heads_first, inputs.k, inputs.v)
    assert out.is_contiguous()
    assert torch.equal(out, unshard(plan, [w.run(plan, inputs.q, inputs.k, inputs.v)[0]]))
    with pytest.raises(TensorError, match="^q: type"):
        w.run(plan, [1.0], inputs.k, inputs.v)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="plan is a PrefillProblem"):
        w.run(plan.problem, inputs.q, inputs.k, inputs.v)  # type: ignore[arg-type]


def test_a_rank_alone_asks_for_its_peers_keys(kernels: Callable) -> None:
    small, large = plan_of(256), plan_of(900)
    w = EmulatedSolo(0, 2, kernels)

    def run(plan: Plan) -> None:
        inputs = random_inputs(plan.problem)
        w.run(plan, shard_q(plan, 0, inputs.q), *(shard_kv(plan, 0, x) for x in (inputs.k, inputs.v)))

    for plan in (small, large):  # the larger one makes the memory grow
        with pytest.raises(PlanError, match="load_peers"):
            run(plan)
        inputs = random_inputs(plan.problem)
        w.load_peers(plan, inputs.k, inputs.v)
        run(plan)


@pytest.mark.parametrize("sinks", [False, True])
def test_a_nan_is_never_lost_in_a_merge(kernels: Callable, sinks: bool) -> None:
    """Not by an empty part of the same row, nor by a sink that takes nothing."""
    p = prefill(200, kv_lengths=(230,), head_dim=64, dtype="bf16", mask={"type": "causal"}, sinks=sinks)
    inputs = random_inputs(p)
    k = inputs.k.clone()
    k[3] = float("nan")  # every query sees it
    w, plan = EmulatedWorld(2, kernels), make_plan(p, 2, passes=passes(p, tile=64))
    nothing = torch.full((p.num_heads_q,), float("-inf")) if sinks else None
    out, lse = w.run(plan, inputs.q, k, inputs.v, sinks=nothing)
    w.wait()
    assert out.isnan().all()
    assert lse.isnan().all()
