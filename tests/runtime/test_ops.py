"""The torch ops and their Python entry: results, handles, fake tensors, gradients, transforms."""

from __future__ import annotations

import gc
import math
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import HandleError, InvalidField, PlanError, TensorError, UnsupportedError
from liquidcp_runtime import attention, cpu, handle_of
from liquidcp_runtime.handles import PLANS, WORLDS

OPS = torch.ops.liquidcp


@pytest.fixture
def case(prefill, tensors):
    """(world, plan, q, k, v) of 100 tokens in two sequences."""
    problem = prefill(60, 40)
    return cpu(2), make_plan(problem, cp_size=2), *tensors(problem)[:3]


class Recorder:
    """A world that keeps what it is called with and gives zeros."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple, dict]] = []

    def run(self, plan, q, k, v, *, sinks=None, out=None, lse=None):
        self.calls.append(((plan, q, k, v), {"sinks": sinks, "out": out, "lse": lse}))
        return torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0])


def test_the_op_gives_what_the_world_gives(prefill, decode, tensors) -> None:
    for problem in (prefill(60, 0, 40, sinks=True), decode((70, 1), (0, 3)), prefill(0), prefill(60, dtype="bf16")):
        q, k, v, sinks = tensors(problem)
        world, plan = cpu(), make_plan(problem, cp_size=2)
        expected = world.run(plan, q, k, v, sinks=sinks)
        for got in (
            attention(world, plan, q, k, v, sinks=sinks),
            OPS.forward(q, k, v, sinks, handle_of(world), handle_of(plan)),
            attention(handle_of(world), handle_of(plan), q, k, v, sinks=sinks),
        ):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_batch_dimension(prefill, tensors) -> None:
    problem = prefill(50, 50)
    q, k, v, _ = tensors(problem)
    world, plan = cpu(), make_plan(problem, cp_size=2)
    flat, flat_lse = attention(world, plan, q, k, v)
    out, lse = attention(world, plan, *(x.unflatten(0, (2, 50)) for x in (q, k, v)))
    assert torch.equal(out, flat.view(2, 50, 4, 16))
    assert torch.equal(lse, flat_lse)


@pytest.mark.parametrize("given", [("out",), ("lse",), ("out", "lse")])
def test_given_results_are_filled_and_returned(case, given: tuple[str, ...]) -> None:
    world, plan, q, k, v = case
    expected = dict(zip(("out", "lse"), world.run(plan, q, k, v), strict=True))
    results = {name: torch.full_like(expected[name], math.nan) for name in given}
    got = dict(zip(("out", "lse"), attention(world, plan, q, k, v, **results), strict=True))
    for name in ("out", "lse"):
        assert torch.equal(got[name], expected[name])
        assert name not in given or got[name] is results[name]


def test_any_object_with_run_is_a_world(case) -> None:
    _, plan, q, k, v = case
    world, sinks = Recorder(), torch.zeros(4)
    attention(world, plan, q, k, v, sinks=sinks)
    out, lse = torch.empty(100, 4, 16), torch.empty(4, 100)
    attention(world, plan, q, k, v, out=out, lse=lse)
    (args, named), (_, named_out) = world.calls
    assert args[0] is plan
    assert [x.data_ptr() for x in args[1:]] == [x.data_ptr() for x in (q, k, v)]
    assert named["sinks"].data_ptr() == sinks.data_ptr()
    assert (named["out"], named["lse"], named_out["sinks"]) == (None, None, None)
    assert (named_out["out"].data_ptr(), named_out["lse"].data_ptr()) == (out.data_ptr(), lse.data_ptr())


def test_errors_of_the_world_come_through(case) -> None:
    world, plan, q, k, v = case
    with pytest.raises(TensorError, match="^k: shape"):
        attention(world, plan, q, k[:-1], v)
    with pytest.raises(TensorError, match="^out: dtype"):
        attention(world, plan, q, k, v, out=q.double())
    with pytest.raises(TensorError, match="^q: shape"):
        attention(world, plan, q[0], k, v, lse=torch.empty(4, 100))
    with pytest.raises(PlanError, match="2 ranks, this world has 3"):
        attention(cpu(3), plan, q, k, v)


# -- Handles


def test_handles_are_numbers_of_living_things(case) -> None:
    world, plan, *_ = case
    numbers = {handle_of(world), handle_of(plan)}
    assert numbers == {handle_of(world), handle_of(plan)}
    assert len(numbers) == 2
    assert min(numbers) > 1
    assert WORLDS.get(handle_of(world)) is world
    assert PLANS.get(handle_of(plan)) is plan


def test_a_handle_of_something_gone_is_an_error_and_never_another_thing(prefill, tensors) -> None:
    problem = prefill(60, 40)
    q, k, v, _ = tensors(problem)
    world, plan = cpu(2), make_plan(problem, cp_size=2)
    gone_plan = handle_of(plan)
    attention(world, gone_plan, q, k, v)
    del plan
    gc.collect()
    others = [make_plan(problem, cp_size=2) for _ in range(3)]
    assert gone_plan not in [handle_of(x) for x in others]
    with pytest.raises(HandleError, match=f"^no plan has handle {gone_plan}, or it is gone"):
        attention(world, gone_plan, q, k, v)
    gone_world = handle_of(world)
    del world
    gc.collect()
    with pytest.raises(HandleError, match=f"^no world has handle {gone_world}"):
        attention(gone_world, others[0], q, k, v)
    assert not {gone_plan, gone_world} & {*PLANS._things, *WORLDS._things}


def test_what_is_no_world_or_plan(case) -> None:
    world, plan, q, k, v = case
    with pytest.raises(PlanError, match="plan is a PrefillProblem"):
        attention(world, plan.problem, q, k, v)
    with pytest.raises(PlanError, match="plan is a CpuWorld"):
        attention(world, world, q, k, v)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidField, match="^world is 'Plan'"):
        attention(plan, world, q, k, v)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidField, match="^world is 'str'; allowed: a world such as"):
        attention("cpu", plan, q, k, v)  # pyright: ignore[reportArgumentType]
    with pytest.raises(HandleError, match="no world has handle"):
        attention(handle_of(plan), plan, q, k, v)
    with pytest.raises(InvalidField, match="world"):
        handle_of(plan.problem)


@pytest.mark.slow
def test_eager_programs_do_not_load_the_compiler() -> None:
    code = """
import sys
import torch
from liquidcp_compiler import PrefillProblem, plan
from liquidcp_runtime import attention, cpu
x = torch.zeros(3, 1, 16)
problem = PrefillProblem(lengths=(3,), num_heads_q=1, num_heads_kv=1, head_dim=16, dtype="fp32")
attention(cpu(), plan(problem, 1), x, x, x)
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- Fake tensors


@pytest.mark.parametrize("shape", [(100, 4, 16), (0, 4, 16), (2, 50, 4, 16)])
def test_fake_results_need_no_world(shape: tuple[int, ...]) -> None:
    with FakeTensorMode():
        q = torch.empty(shape, dtype=torch.bfloat16).transpose(-3, -2).contiguous().transpose(-3, -2)
        k = torch.empty(shape, dtype=torch.bfloat16)
        out, lse = OPS.forward(q, k, k, None, 10**9, 10**9)
    assert (out.shape, out.dtype, out.is_contiguous()) == (shape, torch.bfloat16, True)
    assert (lse.shape, lse.dtype, lse.is_contiguous()) == ((4, math.prod(shape[:-2])), torch.float32, True)


def test_meta_tensors_give_meta_results(case) -> None:
    world, plan, q, k, v = case
    out, lse = attention(world, plan, *(x.to("meta") for x in (q, k, v)))
    assert (out.device.type, out.shape, lse.device.type, lse.shape) == ("meta", q.shape, "meta", (4, 100))


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks", "out", "lse"])
def test_a_meta_tensor_among_others_is_refused(case, name: str) -> None:
    world, plan, q, k, v = case
    given = {"q": q, "k": k, "v": v}
    if name in ("out", "lse"):
        given |= {"out": torch.empty_like(q), "lse": torch.empty(4, 100)}
    given[name] = given.get(name, torch.empty(4)).to("meta")
    with pytest.raises(TensorError, match="device is"):
        attention(world, plan, **given)


# -- Gradients and transforms


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks", "out", "lse"])
def test_a_wanted_gradient_is_refused_rather_than_dropped(prefill, tensors, name: str) -> None:
    problem = prefill(60, sinks=True)
    world, plan = cpu(), make_plan(problem, cp_size=2)
    given = dict(zip(("q", "k", "v", "sinks"), tensors(problem), strict=True))
    if name in ("out", "lse"):
        given |= {"out": torch.empty_like(given["q"]), "lse": torch.empty(4, 60)}
    expected = [x.clone() for x in attention(world, plan, **given)]
    given[name].requires_grad_()
    with pytest.raises(UnsupportedError, match="requires_grad = True is not supported.*no_grad"):
        attention(world, plan, **given)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = attention(world, plan, **given)
        assert not any(x.requires_grad for x in got if x is not given[name])
        torch.testing.assert_close([x.detach() for x in got], expected, rtol=0, atol=0)


def test_gradients_by_transforms_are_refused_too(case) -> None:
    world, plan, q, k, v = case
    with pytest.raises(UnsupportedError, match="requires_grad"):
        torch.func.grad(lambda x: attention(world, plan, x, k, v)[0].sum())(q)
    with pytest.raises(UnsupportedError, match="tangent"):
        torch.func.jvp(lambda x: attention(world, plan, x, k, v)[0], (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        attention(world, plan, q, k, v)
        with pytest.raises(UnsupportedError, match="tangent"):
            attention(world, plan, q, k, torch.autograd.forward_ad.make_dual(v, v))


def test_writing_a_result_counts_as_a_change(case) -> None:
    """A result that backward of something else has saved: torch must notice, also where a kernel wrote the memory."""
    _, plan, q, k, v = case
    out, lse = torch.zeros_like(q), torch.zeros(4, 100)
    factor = torch.ones_like(q, requires_grad=True)
    product = (factor * out).sum()
    attention(Recorder(), plan, q, k, v, out=out, lse=lse)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_runs_one_after_another_or_is_refused_by_torch(case) -> None:
    world, plan, q, k, v = case
    many = torch.stack([q, 2 * q])
    out, lse = torch.vmap(lambda x: attention(world, plan, x, k, v))(many)
    for i, x in enumerate(many):
        assert torch.equal(out[i], world.run(plan, x, k, v)[0])
        assert torch.equal(lse[i], world.run(plan, x, k, v)[1])
    with pytest.raises(RuntimeError, match="Batching rule not implemented for liquidcp::forward_out"):
        torch.vmap(lambda x: attention(world, plan, x, k, v, out=torch.empty_like(q)))(many)


def test_functionalize_takes_the_op_and_refuses_the_one_that_writes(case) -> None:
    world, plan, q, k, v = case
    got = torch.func.functionalize(lambda x: attention(world, plan, x, k, v)[0])(q)
    assert torch.equal(got, world.run(plan, q, k, v)[0])
    with pytest.raises(RuntimeError, match="only support functionalizing operators"):
        torch.func.functionalize(lambda x: attention(world, plan, x, k, v, out=torch.empty_like(x))[0])(q)
