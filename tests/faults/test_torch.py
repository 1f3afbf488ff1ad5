"""Tensors as torch programs hand them over: views of any strides, given results, compiled callers, global settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from liquidcp_compiler.errors import TensorError, UnsupportedError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import Problem
from liquidcp_runtime import attention, handle_of
from liquidcp_runtime.cpu_world import CpuWorld
from tests.numerics import Inputs, compiled, decode, prefill, random_inputs, run

pytestmark = pytest.mark.slow

Tensor = torch.Tensor
HEADS = {"num_heads_q": 4, "num_heads_kv": 2}
PROBLEMS = {
    "prefill": prefill(30, 1, 40, **HEADS),
    "decode": decode((50, 3), (0, 2), **HEADS),
    "sinks": prefill(30, 41, sinks=True, **HEADS),
}


def in_larger(x: Tensor) -> Tensor:
    """The same numbers as a part of a larger tensor of NaN."""
    tokens, heads, head_dim = x.shape
    memory = torch.full((tokens, 3, heads + 2, head_dim), math.nan, dtype=x.dtype)
    view = memory[:, 1, 1 : heads + 1]
    view.copy_(x)
    return view


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "heads first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "head_dim first": lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "tokens last": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "part of a larger tensor": in_larger,
    "every second element": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "every second token": lambda x: x.repeat_interleave(2, dim=0)[::2],
    "lazy negation": lambda x: torch._neg_view(-x),
    "not at the start of its memory": lambda x: torch.cat([x.new_zeros(3), x.flatten()])[3:].view_as(x),
}


def by_world(plan: Plan, given: Inputs, **results: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) of ``world.run``, new tensors unless given."""
    return CpuWorld(plan.world).run(plan, given.q, given.k, given.v, sinks=given.sinks, **results)


def by_op(plan: Plan, given: Inputs, **results: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) of the torch op."""
    world = CpuWorld(plan.world)
    return attention(world, plan, given.q, given.k, given.v, sinks=given.sinks, **results)


CALLS = (by_world, by_op)


def assert_equal(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("view", VIEWS)
def test_inputs_of_any_strides_are_exact(kind: str, view: str) -> None:
    """faults F1, F2: one, or all, of q, k and v as views; results are contiguous whatever q is."""
    problem = PROBLEMS[kind]
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    expected = run(plan, given)
    for names in (("q",), ("k",), ("v",), ("q", "k", "v")):
        changed = given.with_changes(**{name: VIEWS[view](getattr(given, name)) for name in names})
        for call in CALLS:
            got = call(plan, changed)
            assert_equal(got, expected)
            assert got[0].is_contiguous()
            assert got[1].is_contiguous()


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_expanded_inputs_are_exact(name: str, dim: int) -> None:
    """fault F1: one token, one head or one number for all."""
    problem = PROBLEMS["prefill"]
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    x = getattr(given, name)
    expanded = x.narrow(dim, 0, 1).expand_as(x)
    expected = run(plan, given.with_changes(**{name: expanded.contiguous()}))
    for call in CALLS:
        assert_equal(call(plan, given.with_changes(**{name: expanded})), expected)


def test_expanded_sinks_are_exact() -> None:
    """fault F1"""
    problem = PROBLEMS["sinks"]
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    one = torch.tensor([0.5])
    expected = run(plan, given.with_changes(sinks=one.repeat(4)))
    for call in CALLS:
        got = call(plan, given.with_changes(sinks=one.expand(4)))
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # torch's exp of one number and of four differ


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("view", [name for name in VIEWS if name != "lazy negation"])
def test_results_of_any_strides_are_exact(kind: str, view: str) -> None:
    """fault F3: heads-first and other buffers; what lies beside the result is left alone."""
    problem = PROBLEMS[kind]
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    expected = run(plan, given)
    for call in CALLS:
        out, lse = VIEWS[view](torch.full_like(expected[0], 7.0)), VIEWS[view](torch.full((4, problem.total_q, 1), 7.0))
        before = [torch.empty(0).set_(x.untyped_storage()).clone() for x in (out, lse)]
        assert call(plan, given, out=out, lse=lse[..., 0])[0] is out
        assert_equal((out, lse[..., 0]), expected)
        for x, untouched in zip((out, lse), before, strict=True):
            x.fill_(7.0)
            memory = torch.empty(0).set_(x.untyped_storage())
            torch.testing.assert_close(memory, untouched, rtol=0, atol=0, equal_nan=True)


def shared_results(given: Inputs) -> dict[str, tuple[str, dict[str, Tensor], str]]:
    """Case -> (result at fault, results, message)."""
    tokens, heads, head_dim = given.q.shape
    memory = torch.zeros(2 * given.q.numel())
    out = memory[: given.q.numel()].view_as(given.q)
    places, apart = "strides .*a place of its own", "memory is shared with {}, expected memory of its own"
    return {
        "out of one head": ("out", {"out": out[:, :1].expand_as(out)}, places),
        "out of one token": ("out", {"out": out[:1].expand_as(out)}, places),
        "rows of out overlap": ("out", {"out": memory.as_strided(out.shape, (heads * head_dim, 8, 1))}, places),
        "tokens of out overlap": ("out", {"out": memory.as_strided(out.shape, (head_dim, head_dim, 1))}, places),
        "lse of one head": ("lse", {"lse": memory[:tokens].expand(heads, tokens)}, places),
        "heads of lse overlap": ("lse", {"lse": memory.as_strided((heads, tokens), (tokens - 1, 1))}, places),
        "out is q": ("out", {"out": given.q}, apart.format("q")),
        "lse lies in k": ("lse", {"lse": given.k.view(-1)[: heads * tokens].view(heads, tokens)}, apart.format("k")),
        "lse lies in out": (
            "lse",
            {"out": out, "lse": memory[8 : 8 + heads * tokens].view(heads, -1)},
            apart.format("out"),
        ),
    }


@pytest.mark.parametrize("case", shared_results(random_inputs(PROBLEMS["prefill"])))
def test_results_without_memory_of_their_own_are_refused(case: str) -> None:
    """fault F3: results that overlap themselves, each other, or an input; nothing is written."""
    problem = PROBLEMS["prefill"]
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    name, results, message = shared_results(given)[case]
    tensors = [*results.values(), given.q, given.k]
    kept = [x.clone() for x in tensors]
    for call in CALLS:
        with pytest.raises(TensorError, match=f"^{name}: {message}"):
            call(plan, given, **results)
    torch.testing.assert_close(tensors, kept, rtol=0, atol=0)


def test_columns_of_one_buffer_are_apart() -> None:
    """faults F1, F3: q, k, v and out as columns of one tensor, as fused projections make them."""
    problem = PROBLEMS["prefill"]
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    expected = run(plan, given)
    fused = torch.cat([given.q, given.k, given.v, torch.full_like(given.q, math.nan)], dim=1)
    q, k, v, out = fused.split([4, 2, 2, 4], dim=1)
    for call in CALLS:
        out.fill_(math.nan)
        assert_equal(call(plan, Inputs(q=q, k=k, v=v), out=out), expected)
    assert torch.equal(fused[:, :8], torch.cat([given.q, given.k, given.v], dim=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: {"q": g.q.half()}, "^q: dtype is torch.float16, expected torch.float32"),
        (lambda g: {"k": g.k.to("meta")}, "^k: device is meta, expected cpu"),
        (lambda g: {"v": g.v[:, :, :8]}, "^v: shape"),
        (lambda g: {"v": g.v.to_sparse()}, "^v: layout"),
        (lambda g: {"q": g.q.transpose(0, 1)}, "^q: shape .*tokens and heads are exchanged"),
    ],
)
def test_other_tensors_are_refused_before_anything_runs(change: Callable[[Inputs], dict], message: str) -> None:
    """faults F2, F4: the kind."""
    problem = PROBLEMS["prefill"]
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    with pytest.raises(TensorError, match=message):
        run(plan, given.with_changes(**change(given)))


# -- torch.library and torch.compile


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_ops_pass_torchs_own_checks(kind: str) -> None:
    """fault M3: torch.library.opcheck, contiguous and strided."""
    problem = PROBLEMS[kind]
    given, world, plan = random_inputs(problem), CpuWorld(2), compiled(problem, 2).plan
    for view in (lambda x: x, VIEWS["heads first"]):
        args = (view(given.q), view(given.k), view(given.v), given.sinks, handle_of(world), handle_of(plan))
        results = (view(torch.empty_like(given.q)), torch.empty(4, problem.total_q))
        for op, arguments in (("forward", args), ("forward_out", (*args, *results))):
            done = torch.library.opcheck(getattr(torch.ops.liquidcp, op).default, arguments)
            assert set(done.values()) == {"SUCCESS"}


def layer(world, plan, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What a model does around attention, q through a transposed view."""
    out, lse = attention(world, plan, (q * 2).transpose(0, 1).contiguous().transpose(0, 1), k, v + 1, sinks=sinks)
    given = torch.empty_like(out)
    attention(world, plan, q, k, v, sinks=sinks, out=given)
    return out.flatten(1) + given.flatten(1), lse * 3


def check_compiled(program: Callable, world, plan, problem: Problem) -> None:
    given = random_inputs(problem)
    args = (world, plan, given.q, given.k, given.v, given.sinks)
    torch.testing.assert_close(program(*args), layer(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_compiled_programs_give_the_same(kind: str, backend: str, dynamic: bool) -> None:
    """fault M3: torch.compile(fullgraph=True)."""
    torch.compiler.reset()
    problem = PROBLEMS[kind]
    program = torch.compile(layer, fullgraph=True, backend=backend, dynamic=dynamic)
    check_compiled(program, CpuWorld(2), compiled(problem, 2).plan, problem)


@pytest.mark.parametrize("by_handle", [False, True])
def test_a_compiled_program_follows_the_plan(by_handle: bool) -> None:
    """fault M3: another plan of the same shapes is another result; by handle, new plans do not compile again."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    program = torch.compile(layer, fullgraph=True, backend=counter)
    world = CpuWorld(2)
    for i in range(1, 5):
        problem = prefill(10 * i, 70 - 10 * i, **HEADS)
        plan = compiled(problem, 2).plan
        check_compiled(program, *((handle_of(world), handle_of(plan)) if by_handle else (world, plan)), problem)
    # The first number is a constant; from the second one on, it is a variable.
    assert counter.frame_count == (2 if by_handle else 4)


def test_a_compiled_program_refuses_gradients() -> None:
    """fault M3"""
    torch.compiler.reset()
    problem = PROBLEMS["prefill"]
    given, world, plan = random_inputs(problem), CpuWorld(2), compiled(problem, 2).plan
    args = (world, plan, given.q.requires_grad_(), given.k, given.v)
    with pytest.raises(Exception, match="supported: forward without gradients"):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(*args)
    torch.compiler.reset()
    with pytest.raises(UnsupportedError, match="requires_grad"):
        torch.compile(layer, backend="aot_eager")(*args)
    with torch.no_grad():
        torch.compile(layer, fullgraph=True, backend="aot_eager")(*args)


def test_an_exported_program_keeps_the_op() -> None:
    """fault M3: torch.export with handles, which are those of this process."""
    problem = PROBLEMS["prefill"]
    given, world, plan = random_inputs(problem), CpuWorld(2), compiled(problem, 2).plan

    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(world, plan, q, k, v)[0] + 1

    program = torch.export.export(Layer(), (given.q, given.k, given.v))
    assert "liquidcp.forward" in program.graph_module.code
    assert torch.equal(program.module()(given.q, given.k, given.v), run(plan, given)[0] + 1)


# -- Settings of the program around us


def default_dtype(dtype: torch.dtype) -> AbstractContextManager:
    class Context(AbstractContextManager):
        def __enter__(self) -> None:
            torch.set_default_dtype(dtype)

        def __exit__(self, *_: object) -> None:
            torch.set_default_dtype(torch.float32)

    return Context()


SETTINGS: dict[str, Callable[[], AbstractContextManager]] = {
    "default dtype bf16": lambda: default_dtype(torch.bfloat16),
    "default dtype fp64": lambda: default_dtype(torch.float64),
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_the_program_change_nothing(setting: str, kind: str) -> None:
    """fault M3, the kind: partial results stay fp32 on the CPU under autocast and any default dtype or device."""
    problem = PROBLEMS[kind]
    given = random_inputs(problem)
    expected = run(compiled(problem, 2).plan, given)
    plan = compiled(problem, 2).plan  # a fresh one, with nothing of it cached
    with SETTINGS[setting]():
        results = [call(plan, given) for call in CALLS]
    for got in results:
        assert_equal(got, expected)
