"""The CPU world against the float64 oracle, and against wrong tensors, schedules and plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import InvalidField, PlanError, ScheduleError, TensorError
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.mask import BlockSparse, Document, Full, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import PrefillProblem, Problem
from liquidcp_runtime import cpu
from liquidcp_runtime.event_core import COMPUTE, LAND
from liquidcp_runtime.interpreter import interpret
from liquidcp_runtime.plan_check import check_plan
from liquidcp_runtime.profiles import PROFILES
from liquidcp_runtime.reference import reference_attention
from liquidcp_runtime.scheduling import Schedule, schedule
from liquidcp_runtime.sharding import shard_kv, shard_q

OUT_TOLERANCE = 3e-6  # fp32 sums of a few thousand terms around 1
LSE_TOLERANCE = 1e-5


def check_against_oracle(problem: Problem, inputs, result: tuple[torch.Tensor, torch.Tensor], tolerance: float) -> None:
    q, k, v, sinks = inputs
    out, lse = result
    expected, expected_lse = reference_attention(problem, q, k, v, sinks)
    assert out.dtype == problem.dtype.torch
    assert lse.dtype == torch.float32
    assert out.shape == q.shape
    assert not out.isnan().any()
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(lse.double(), expected_lse, atol=LSE_TOLERANCE, rtol=0)


PREFILL_CASES: dict[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "causal, tiny sequences beside a long one": (4, (1000, 1, 7, 0), {}),
    "full": (3, (300, 200), {"mask": Full()}),
    "cross lengths": (3, (300, 0, 200), {"kv_lengths": (500, 3, 77), "mask": Full()}),
    "more queries than keys": (2, (260, 4), {"kv_lengths": (130, 2)}),
    "no keys": (2, (3, 5), {"kv_lengths": (0, 5), "mask": Full()}),
    "no keys, sinks": (2, (3, 5), {"kv_lengths": (0, 5), "mask": Full(), "sinks": True}),
    "window": (4, (1024,), {"mask": SlidingWindow(left=100, right=0)}),
    "documents": (4, (600, 500), {"mask": Document(cu_seqlens=(0, 100, 600, 900, 1100))}),
    "shared prefix": (4, (300, 200, 100), {"mask": SharedPrefix(prefix=130)}),
    "block sparse": (2, (400,), {"mask": BlockSparse(block=128, rows=((0,), (0, 1), (2,), (0, 3)))}),
    "sinks": (2, (256,), {"sinks": True}),
    "softcap and scale": (2, (300,), {"softcap": 2.0, "softmax_scale": 0.5}),
    "odd head ratio": (3, (400,), {"num_heads_q": 9, "num_heads_kv": 3}),
    "one KV head": (8, (2000,), {"num_heads_q": 5, "num_heads_kv": 1}),
}


@pytest.mark.parametrize("name", PREFILL_CASES)
@pytest.mark.parametrize("profile", PROFILES)
def test_prefill_is_exact_under_every_profile(prefill, tensors, name: str, profile: str) -> None:
    world, lengths, fields = PREFILL_CASES[name]
    problem = prefill(*lengths, **fields)
    inputs = tensors(problem)
    plan = make_plan(problem, cp_size=world)
    result = cpu(world).run(plan, *inputs[:3], sinks=inputs[3], profile=profile, seed=3)
    check_against_oracle(problem, inputs, result, OUT_TOLERANCE)


DECODE_CASES: dict[str, tuple[int, tuple[tuple[int, int], ...], dict[str, Any]]] = {
    "one token each": (4, ((100, 1), (0, 3), (1000, 16)), {}),
    "chunk beside decode": (2, ((1000, 40), (3, 1), (300, 0)), {"interleave": 16}),
    "in the cache": (4, ((5000, 1), (700, 200)), {"new_kv": "in_cache"}),
    "shards without history": (4, ((1, 1), (2, 8)), {"sinks": True}),
    "three ranks": (3, ((1000, 1),), {"num_heads_q": 6, "num_heads_kv": 2}),
    "heads of a rank cut a group": (4, ((700, 5),), {"num_heads_q": 8, "num_heads_kv": 1, "interleave": 64}),
    "window": (2, ((900, 4),), {"mask": SlidingWindow(left=200, right=0)}),
}


@pytest.mark.parametrize("name", DECODE_CASES)
@pytest.mark.parametrize("profile", PROFILES)
def test_decode_is_exact_under_every_profile(decode, tensors, name: str, profile: str) -> None:
    world, requests, fields = DECODE_CASES[name]
    problem = decode(*requests, **fields)
    inputs = tensors(problem)
    plan = make_plan(problem, cp_size=world)
    result = cpu(world).run(plan, *inputs[:3], sinks=inputs[3], profile=profile, seed=3)
    check_against_oracle(problem, inputs, result, OUT_TOLERANCE)


def test_bf16_exchange_rounds_outputs_and_never_the_lse(decode, tensors) -> None:
    runs = {}
    for exchange in ("fp32", "bf16"):
        problem = decode((3000, 2), exchange_dtype=exchange)
        inputs = tensors(problem)
        runs[exchange] = cpu().run(make_plan(problem, cp_size=4), *inputs[:3])
        check_against_oracle(problem, inputs, runs[exchange], OUT_TOLERANCE if exchange == "fp32" else 2e-3)
    assert torch.equal(runs["fp32"][1], runs["bf16"][1])
    assert not torch.equal(runs["fp32"][0], runs["bf16"][0])


@settings(max_examples=60)
@given(st.data())
def test_any_small_batch_is_exact(prefill, tensors, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=4).filter(any))
    world = data.draw(st.integers(1, 5))
    mask = data.draw(st.sampled_from([None, Full(), SlidingWindow(left=60, right=0)]))
    problem = prefill(*lengths, num_heads_q=2, num_heads_kv=1, **({} if mask is None else {"mask": mask}))
    inputs = tensors(problem, data.draw(st.integers(0, 9)))
    plan = make_plan(problem, cp_size=world)
    profile, seed = data.draw(st.sampled_from(list(PROFILES))), data.draw(st.integers(0, 99))
    check_against_oracle(problem, inputs, cpu(world).run(plan, *inputs[:3], profile=profile, seed=seed), OUT_TOLERANCE)


@settings(max_examples=30)
@given(st.data())
def test_any_small_decode_step_is_exact(decode, tensors, data: st.DataObject) -> None:
    pair = st.tuples(st.integers(0, 700), st.integers(0, 20))
    requests = data.draw(st.lists(pair, min_size=1, max_size=3).filter(lambda rs: any(q for _, q in rs)))
    world, interleave = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([1, 3, 16]))
    problem = decode(*requests, interleave=interleave, new_kv=data.draw(st.sampled_from(["chunk", "in_cache"])))
    inputs = tensors(problem)
    plan = make_plan(problem, cp_size=world)
    seed = data.draw(st.integers(0, 99))
    check_against_oracle(problem, inputs, cpu(world).run(plan, *inputs[:3], seed=seed), OUT_TOLERANCE)


def test_every_query_head_meets_its_own_kv_head(decode, tensors) -> None:
    problem = decode((500, 3), num_heads_q=32, num_heads_kv=2)
    q, k, v, _ = tensors(problem)
    v = torch.arange(2.0).view(1, 2, 1).expand_as(v).contiguous()
    out, _ = cpu().run(make_plan(problem, cp_size=4), q, k, v)
    expected = (torch.arange(32) // 16).float().view(1, 32, 1).expand_as(out)
    torch.testing.assert_close(out, expected)


def test_bf16_inputs_are_attended_in_fp32(prefill, tensors) -> None:
    problem = prefill(900, 30, dtype="bf16")
    inputs = tensors(problem)
    check_against_oracle(problem, inputs, cpu().run(make_plan(problem, cp_size=4), *inputs[:3]), 2.0**-8 * 3)


def test_deterministic_plans_give_the_same_bits_under_every_interleaving(prefill, tensors) -> None:
    problem = prefill(1100, 50)
    inputs = tensors(problem)
    plan = make_plan(problem, cp_size=4, deterministic=True)
    runs = [cpu().run(plan, *inputs[:3], profile=p, seed=s) for p in PROFILES for s in range(2)]
    assert all(torch.equal(out, runs[0][0]) and torch.equal(lse, runs[0][1]) for out, lse in runs)


# -- Tensors


def test_a_batch_of_equal_lengths_keeps_its_shape(prefill, tensors) -> None:
    problem = prefill(130, 130)
    q, k, v, _ = tensors(problem)
    plan = make_plan(problem, cp_size=2)
    flat, flat_lse = cpu().run(plan, q, k, v)
    out, lse = cpu().run(plan, q.view(2, 130, 4, 16), k.view(2, 130, 2, 16), v.view(2, 130, 2, 16))
    assert torch.equal(out, flat.view(2, 130, 4, 16))
    assert torch.equal(lse, flat_lse)


def test_strides_and_given_results(prefill, tensors) -> None:
    problem = prefill(300)
    q, k, v, _ = tensors(problem)
    plan = make_plan(problem, cp_size=2)
    expected, expected_lse = cpu().run(plan, q, k, v)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    assert not any(x.is_contiguous() for x in strided)
    out = torch.full((4, 300, 16), float("nan")).transpose(0, 1)
    lse = torch.full((300, 4), float("nan")).transpose(0, 1)
    got_out, got_lse = cpu().run(plan, *strided, out=out, lse=lse)
    assert got_out is out
    assert got_lse is lse
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    kept = q.clone()
    cpu().run(plan, q.requires_grad_(), k, v)
    assert torch.equal(q, kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q.transpose(0, 1), k, v), r"q: shape .*\[tokens, heads, head_dim\].*exchanged"),
        (lambda q, k, v: (q, k.transpose(0, 1), v), r"k: shape .*exchanged"),
        (lambda q, k, v: (q, k, v[:-1]), "v: shape"),
        (lambda q, k, v: (q, k[:, :1], v), "k: shape"),
        (lambda q, k, v: (q.half(), k, v), "q: dtype"),
        (lambda q, k, v: (q, k, v.to("meta")), "v: device"),
        (lambda q, k, v: (q.numpy(), k, v), "q: type"),
    ],
)
def test_wrong_tensors_are_refused(prefill, tensors, change: Callable, message: str) -> None:
    problem = prefill(300)
    q, k, v, _ = tensors(problem)
    with pytest.raises(TensorError, match=message):
        cpu().run(make_plan(problem, cp_size=2), *change(q, k, v))


def test_wrong_options_are_refused(prefill, tensors) -> None:
    problem = prefill(130)
    q, k, v, _ = tensors(problem)
    plan = make_plan(problem, cp_size=2)
    with pytest.raises(TensorError, match="sinks"):
        cpu().run(plan, q, k, v, sinks=torch.zeros(4))
    with_sinks = prefill(130, sinks=True)
    with pytest.raises(TensorError, match="sinks"):
        cpu().run(make_plan(with_sinks, cp_size=2), q, k, v)
    with pytest.raises(TensorError, match="one a query head"):
        cpu().run(make_plan(with_sinks, cp_size=2), q, k, v, sinks=torch.zeros(2))
    with pytest.raises(TensorError, match="out: dtype"):
        cpu().run(plan, q, k, v, out=torch.empty(130, 4, 16, dtype=torch.float64))
    with pytest.raises(TensorError, match="lse: shape"):
        cpu().run(plan, q, k, v, lse=torch.empty(130, 4))
    with pytest.raises(PlanError, match="2 ranks, this world has 4"):
        cpu(4).run(plan, q, k, v)
    with pytest.raises(InvalidField, match="profile"):
        cpu().run(plan, q, k, v, profile="kind")
    with pytest.raises(InvalidField, match="world_size"):
        cpu(0)
    with pytest.raises(InvalidField, match="timeout_s"):
        cpu(timeout_s=1.0)


def test_a_batch_without_tokens_returns_at_once(prefill, tensors) -> None:
    for problem in (prefill(0, 0), prefill()):
        inputs = tensors(problem)
        out, lse = cpu(4).run(make_plan(problem, cp_size=4), *inputs[:3])
        assert out.shape == (0, 4, 16)
        assert lse.shape == (4, 0)


def test_one_world_serves_many_plans(prefill, decode, tensors) -> None:
    world = cpu()
    for problem, size in ((prefill(300), 2), (decode((300, 2)), 4), (prefill(10, 400), 3)):
        plan, inputs = make_plan(problem, cp_size=size), tensors(problem)
        for seed in range(2):
            check_against_oracle(problem, inputs, world.run(plan, *inputs[:3], seed=seed), OUT_TOLERANCE)


# -- Schedules that break the protocol


def replay(plan: Plan, events: Schedule, inputs) -> None:
    """Interpret without any check of the plan beforehand."""
    q, k, v, sinks = inputs
    ranks = range(plan.world)
    shards = [[shard_q(plan, r, q) for r in ranks], *[[shard_kv(plan, r, x) for r in ranks] for x in (k, v)]]
    interpret(plan, events, *shards, sinks)


@pytest.fixture(scope="module")
def two_ranks(prefill, tensors):
    """(plan, inputs) of one causal sequence over two ranks."""
    problem = prefill(700)
    return make_plan(problem, cp_size=2), tensors(problem)


def test_a_read_before_the_data_is_there(two_ranks) -> None:
    plan, inputs = two_ranks
    events = schedule(plan)
    late = events.events.copy()
    late["begin"][late["kind"] == COMPUTE] = -1.0
    with pytest.raises(ScheduleError, match="read before ready: kv") as caught:
        replay(plan, replace(events, events=late), inputs)
    assert "compute" in caught.value.task
    first_computes = events.events[np.argsort(events.events["kind"] == LAND, kind="stable")]
    with pytest.raises(ScheduleError, match="read before ready"):
        replay(plan, replace(events, events=first_computes), inputs)


def test_events_twice_or_never(two_ranks) -> None:
    plan, inputs = two_ranks
    events = schedule(plan)
    for kind, message in ((COMPUTE, "double contribution"), (LAND, "here already")):
        index = int(np.flatnonzero(events.events["kind"] == kind)[-1])
        twice = np.insert(events.events, index, events.events[index])
        with pytest.raises(ScheduleError, match=message):
            replay(plan, replace(events, events=twice), inputs)
    never = np.delete(events.events, np.flatnonzero(events.events["kind"] == COMPUTE)[-1])
    with pytest.raises(ScheduleError, match="missing contribution") as caught:
        replay(plan, replace(events, events=never), inputs)
    assert "compute" in caught.value.task


# -- Damaged plans. (table, which row, change, part of the message); the task named is the row itself, or its reader.


def transfer_of(plan: Plan, space: Space) -> tuple[int, int]:
    """(rank, index) of the first transfer of a space."""
    for rank in range(plan.world):
        found = np.flatnonzero(plan.table("transfers", rank)["space"] == space)
        if len(found):
            return rank, int(found[0])
    raise LookupError(space)


PREFILL_FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "dropped transfer": ("transfers", {"drop": True}, "no transfer brings kv_tile|arrivals are pulled"),
    "doubled transfer": ("transfers", {"double": True}, "pulled twice"),
    "another source": ("transfers", {"source": 0}, "not the one that the target describes"),
    "a source that does not exist": ("transfers", {"source": 99}, "out of range"),
    "own rank": ("transfers", {"peer": "rank"}, "from its own rank|not the one"),
    "a rank that does not exist": ("transfers", {"peer": 7}, "out of range"),
    "a signal instead of the prefix": ("transfers", {"signal": 0}, "does not set the signal"),
    "no sequence": ("transfers", {"sequence": -1}, "published in no prefix"),
    "other class": ("transfers", {"arrival_class": "flip"}, "front arrivals are pulled"),
    "dropped row": ("rows", {"drop": True}, "missing contribution"),
    "doubled row": ("rows", {"double": True}, "double contribution"),
    "fewer arrivals than tiles": ("rows", {"num_arrivals": 0}, "do not add up"),
    "tau_min 0": ("rows", {"tau_min": 0}, "tau_min"),
    "no formation": ("rows", {"formation": 0}, "formation"),
    "merge count too high": ("q_tiles", {"merge_count": 99}, "missing contribution"),
    "merge count too low": ("q_tiles", {"merge_count": 1}, "double contribution"),
    "unknown sequence": ("q_tiles", {"sequence": 5}, "out of range"),
    "too many expected": ("sequences", {"num_arrivals": 99}, "arrivals are pulled, 99 expected"),
    "too many front ones": ("sequences", {"num_front_arrivals": 99}, "front arrivals are pulled, 99 expected"),
}


@pytest.mark.parametrize("name", PREFILL_FAULTS)
def test_faults_in_prefill_plans_are_caught_before_the_run(prefill, tensors, edited, name: str) -> None:
    table, change, message = PREFILL_FAULTS[name]
    problem = prefill(2100)
    plan = make_plan(problem, cp_size=4)
    rank, index = (1, 0) if table != "rows" else (1, len(plan.table("rows", 1)) - 1)
    if table == "transfers":
        index = len(plan.table("transfers", 1)) - 1
    if table == "q_tiles":
        index = int(np.argmax(plan.table("q_tiles", 1)["merge_count"]))
    fields = dict(change)
    if fields.get("peer") == "rank":
        fields["peer"] = rank
    if fields.get("arrival_class") == "flip":
        fields["arrival_class"] = 1 - int(plan.table("transfers", rank)["arrival_class"][index])
    broken = edited(plan, table, rank, index, **fields)
    with pytest.raises((ScheduleError, PlanError), match=message) as caught:
        cpu().run(broken, *tensors(problem)[:3])
    assert f"rank {rank}" in str(caught.value)
    # A task that is gone has no name; a tile is named as the row of its table.
    assert "%" in str(caught.value) or change.get("drop") or "q_tiles[" in str(caught.value)


def test_swapped_arrival_classes_are_caught(prefill, tensors, edited) -> None:
    problem = prefill(2100)
    plan = make_plan(problem, cp_size=4)
    classes = plan.table("transfers", 1)["arrival_class"]
    front, back = int(np.flatnonzero(classes == 0)[0]), int(np.flatnonzero(classes == 1)[-1])
    targets = plan.table("transfers", 1)[["source", "target", "peer", "task"]]
    # Two transfers change places in the queue and keep the classes of the places.
    broken = plan
    for place, other in ((front, back), (back, front)):
        fields = {name: int(targets[other][name]) for name in ("source", "target", "peer", "task")}
        broken = edited(broken, "transfers", 1, place, **fields)
    with pytest.raises(ScheduleError, match="wrong arrival class") as caught:
        cpu().run(broken, *tensors(problem)[:3])
    assert caught.value.rank == 1
    assert "transfer kv" in caught.value.task


def test_back_arrivals_queued_before_front_ones_are_caught(prefill, tensors, edited) -> None:
    problem = prefill(2100)
    plan = make_plan(problem, cp_size=4)
    rows = plan.table("transfers", 1)
    order = [len(rows) - 1, *range(len(rows) - 1)]
    broken = plan
    for place, other in enumerate(order):
        broken = edited(broken, "transfers", 1, place, **{n: int(rows[other][n]) for n in rows.dtype.names})
    with pytest.raises(ScheduleError, match="queued before a front one"):
        cpu().run(broken, *tensors(problem)[:3])


DECODE_FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "dropped query pull": ("q", {"drop": True}, "no transfer brings q_tile"),
    "query pull without a signal": ("q", {"signal": -1}, "does not set the signal"),
    "dropped result": ("state", {"drop": True}, "no transfer brings state"),
    "result pulled too early": ("state", {"wait_signal": -1}, "does not wait for the signal"),
    "result of another peer": ("state", {"source": 0}, "not the one that the target describes"),
    "dropped reduction": ("reductions", {"drop": True}, "no task writes state|0 setters, 1 expected"),
    "reduction of nothing": ("reductions", {"num_states": 0}, "combines no state"),
    "state into another query tile": ("states", {"q_tile": 1}, "another query tile|not the one"),
    "signal never raised": ("signals", {"expected": 2}, "1 setters, 2 expected"),
}


@pytest.mark.parametrize("name", DECODE_FAULTS)
def test_faults_in_decode_plans_are_caught_before_the_run(decode, tensors, edited, name: str) -> None:
    table, change, message = DECODE_FAULTS[name]
    problem = decode((1000, 2), (300, 1))
    plan = make_plan(problem, cp_size=2)
    rank, index = 0, 0
    if table in ("q", "state"):
        rank, index = transfer_of(plan, Space.Q if table == "q" else Space.STATE)
        table = "transfers"
    if table == "signals":
        index = len(plan.table("signals", 0)) - 1
    broken = edited(plan, table, rank, index, **change)
    with pytest.raises((ScheduleError, PlanError), match=message) as caught:
        cpu().run(broken, *tensors(problem)[:3])
    if isinstance(caught.value, ScheduleError):
        assert caught.value.task.startswith("%"), "the message names a task"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": 0}, "holds"),
        ({"target": 0}, "holds|here already"),
        ({"peer": 0}, "holds|before it is there"),
    ],
)
def test_the_interpreter_finds_wrong_pulls_by_itself(two_ranks, edited, change: dict[str, int], message: str) -> None:
    plan, inputs = two_ranks
    rank = 0 if "peer" in change or len(plan.table("transfers", 0)) else 1
    broken = edited(plan, "transfers", rank, len(plan.table("transfers", rank)) - 1, **change)
    # The schedule is the sound plan's: what is tested here is the replay alone.
    with pytest.raises(ScheduleError, match=message) as caught:
        replay(broken, schedule(plan), inputs)
    assert caught.value.rank == rank
    assert "transfer kv" in caught.value.task


def test_the_interpreter_finds_a_pair_that_is_counted_twice(two_ranks, edited) -> None:
    plan, inputs = two_ranks
    rows = plan.table("rows", 0)
    index = int(np.argmax(rows["num_kv_tiles"]))
    other = int(np.flatnonzero(np.arange(len(rows)) != index)[0])
    broken = edited(plan, "rows", 0, other, q_lo=int(rows["q_lo"][index]), q_hi=int(rows["q_hi"][index]))
    with pytest.raises(ScheduleError, match="double contribution"):
        replay(broken, schedule(plan), inputs)


def test_sound_plans_pass_the_check(prefill, decode) -> None:
    for plan in (
        make_plan(prefill(4000, 3, 0, 129), cp_size=8),
        make_plan(prefill(), cp_size=2),
        make_plan(decode((4000, 3), (10, 0), (0, 5)), cp_size=4),
    ):
        check_plan(plan)


def test_the_problem_of_a_plan_decides_the_dtype(tensors) -> None:
    problem = PrefillProblem(lengths=(40,), num_heads_q=1, num_heads_kv=1, head_dim=16, dtype="fp16")
    inputs = tensors(problem)
    check_against_oracle(problem, inputs, cpu(1).run(make_plan(problem, cp_size=1), *inputs[:3]), 2.0**-10)
