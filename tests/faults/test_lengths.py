"""Lengths, packing and padding: any length, on any number of ranks, without the user's padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import InvalidField, LiquidCPError, TensorError, VerificationError
from liquidcp_compiler.ir.mask import Causal, Full
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_compiler.passes.explicit import Explicit, SequencePlace
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime.cpu_world import cpu
from liquidcp_runtime.profiles import PROFILES
from liquidcp_runtime.scheduling import schedule
from liquidcp_runtime.sharding import position_ids, shard_kv, shard_q, shard_tokens, unshard, unshard_lse
from tests.numerics import check, compiled, decode, prefill, random_inputs, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("lengths", "world"),
    [
        pytest.param((7,), 2, id="B1"),
        pytest.param((698,), 4, id="B2"),
        pytest.param((2999,), 4, id="B3"),
        pytest.param((1, 1023, 512, 16, 500), 8, id="B6"),
        pytest.param((100,), 2, id="B24-below-a-tile"),
        pytest.param((193,), 3, id="B24"),
        pytest.param((64 * 3 + 1,), 8, id="B24-tail-of-one"),
    ],
)
def test_lengths_that_divide_by_nothing(lengths: tuple[int, ...], world: int) -> None:
    """fault B1, B2, B3, B6, B24; lse is [num_heads, total tokens] for packed batches too."""
    _, out, lse = check(prefill(*lengths), world, tile=128)
    assert out.shape == (sum(lengths), 2, 16)
    assert lse.shape == (2, sum(lengths))


@pytest.mark.parametrize("length", [698, 77])
@pytest.mark.parametrize("world", [3, 4])
def test_runs_of_a_deterministic_plan_are_bitwise_equal(length: int, world: int) -> None:
    """fault B2"""
    problem = prefill(length, dtype="bf16")
    plan, given = make_plan(problem, world, deterministic=True), random_inputs(problem)
    first = run(plan, given, "random", 0)
    for seed, profile in enumerate(PROFILES):
        for result, expected in zip(run(plan, given, profile, seed), first, strict=True):
            assert torch.equal(result, expected)


@pytest.mark.parametrize(("queries", "keys"), [(4097, 77), (77, 4097), (130, 1)])
def test_cross_attention_of_lengths_that_have_nothing_in_common(queries: int, keys: int) -> None:
    """fault B5"""
    check(prefill(queries, kv_lengths=(keys,), mask=Full()), 4, tile=128)


@pytest.mark.parametrize("mask", [Causal(), Full()])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        pytest.param((0, 1, 0, 1), (0, 3, 0, 5), id="B9"),
        pytest.param((0, 5), (7, 5), id="B11"),
        pytest.param((5, 0), (5, 7), id="B11-last"),
        pytest.param((64,), (0,), id="B14-no-keys"),
        pytest.param((0, 0), (0, 0), id="B14-nothing"),
        pytest.param((), (), id="B14-no-sequences"),
    ],
)
def test_sequences_of_length_0(queries: tuple[int, ...], keys: tuple[int, ...], mask) -> None:
    """fault B9, B11 (forward), B14"""
    problem = prefill(*queries, kv_lengths=keys, mask=mask, num_heads_q=9, num_heads_kv=3)
    for world in (1, 2, 4):
        check(problem, world)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_no_keys_at_all_for_every_head_dim(head_dim: int, kind: str) -> None:
    """fault B14"""
    if kind == "prefill":
        problem = prefill(1, kv_lengths=(0,), head_dim=head_dim)
    else:
        problem = decode((0, 0), (0, 0), head_dim=head_dim)
    _, out, lse = check(problem, 2)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize(
    ("cu_seqlens", "error", "field"),
    [
        (lambda: [0, 4, 11], InvalidField, r"cu_seqlens_q\[-1\]"),
        (lambda: [0, 9, 4, 10], InvalidField, r"cu_seqlens_q\[2\]"),
        (lambda: [1, 4, 10], InvalidField, r"cu_seqlens_q\[0\]"),
        (lambda: [], InvalidField, "cu_seqlens_q"),
        (lambda: torch.tensor([0, 4, 10]), TensorError, "cu_seqlens_q: dtype is torch.int64, expected int32"),
        (lambda: np.array([0.0, 4.0, 10.0]), TensorError, "cu_seqlens_q: dtype"),
        (lambda: torch.tensor([[0, 4, 10]], dtype=torch.int32), TensorError, "cu_seqlens_q: shape"),
        (lambda: torch.empty(3, dtype=torch.int32, device="meta"), TensorError, "cu_seqlens_q: device"),
    ],
)
def test_prefix_sums_that_do_not_fit(cu_seqlens, error: type[LiquidCPError], field: str) -> None:
    """fault B16"""
    with pytest.raises(error, match=field):
        PrefillProblem.from_cu_seqlens(cu_seqlens(), total_q=10, num_heads_q=2, num_heads_kv=1)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("change", [1, -1])
def test_tensors_of_another_number_of_tokens_are_refused(name: str, change: int) -> None:
    """fault B16"""
    problem = prefill(10, 20)
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    tensors = {n: getattr(given, n) for n in ("q", "k", "v")}
    tensors[name] = tensors[name].new_zeros(30 + change, *tensors[name].shape[1:])
    with pytest.raises(TensorError, match=rf"^{name}: shape is \({30 + change},"):
        cpu(2).run(plan, **tensors)


@pytest.mark.parametrize("world", [2, 5, 8])
def test_full_mask_in_zigzag_order(world: int) -> None:
    """fault B17"""
    check(prefill(500, 33, mask=Full()), world)


PLACES = {
    "zigzag": ZigzagAll(tile=32),
    "zigzag-interleaved": ZigzagAll(tile=32, kv_interleave=4),
    "explicit": Explicit(tile=32, sequences=((1, 0), (3,), (0, 2, 3))),
    "by-tile": Explicit(
        tile=32,
        sequences=(SequencePlace(tiles=(0, 3, 3, 1, 0)), SequencePlace(ranks=(2,)), SequencePlace(tiles=(1, 1, 0))),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_sharding_and_back_is_the_identity(place: str) -> None:
    """fault B18"""
    problem = prefill(150, 1, 70)
    plan = compiled(problem, 4, place=PLACES[place]).plan
    check_round_trip(plan, world=4)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_sharding_a_decode_batch_and_back_is_the_identity(world: int) -> None:
    """fault B18: ranks hold heads of all tokens there."""
    check_round_trip(compiled(decode((70, 3), (0, 1), (5, 40)), world).plan, world)


def check_round_trip(plan, world: int) -> None:
    p = plan.problem
    q = torch.arange(p.total_q * p.num_heads_q * 16).view(p.total_q, p.num_heads_q, 16)
    assert torch.equal(unshard(plan, [shard_q(plan, r, q) for r in range(world)]), q)
    lse = q[..., 0].transpose(0, 1)
    locals_ = [shard_q(plan, r, q)[..., 0].transpose(0, 1) for r in range(world)]
    assert torch.equal(unshard_lse(plan, locals_), lse)
    keys = torch.arange(p.total_kv)
    for rank in range(world):
        assert len(shard_kv(plan, rank, keys).unique()) == len(shard_kv(plan, rank, keys))
    assert set(torch.cat([shard_kv(plan, r, keys) for r in range(world)]).tolist()) == set(range(p.total_kv))


def test_a_batch_dimension_is_accepted() -> None:
    """fault B20: q of shape [2, L, H, D] comes back in that shape."""
    problem = prefill(50, 50)
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    out, lse = cpu(2).run(plan, *(x.view(2, 50, *x.shape[1:]) for x in (given.q, given.k, given.v)))
    assert out.shape == (2, 50, 2, 16)
    assert torch.equal(out.view(100, 2, 16), run(plan, given)[0])
    assert lse.shape == (2, 100)


def test_plain_zigzag_with_position_ids() -> None:
    """fault B21: no order of one's own is needed; positions and labels follow the shards."""
    problem = prefill(4096, 1000, 7)
    plan, _, _ = check(problem, 4, tile=128)
    for rank in range(4):
        tokens = shard_tokens(plan, rank, torch.cat([torch.arange(n) for n in (4096, 1000, 7)]))
        assert torch.equal(position_ids(plan, rank), tokens)


@pytest.mark.parametrize("lengths", [(0, 5), (0,), (5, 0, 0, 300)])
@pytest.mark.parametrize("place", ["zigzag", "explicit"])
def test_sequences_of_length_0_are_placed_nowhere(lengths: tuple[int, ...], place: str) -> None:
    """fault B22"""
    problem = prefill(*lengths)
    placement = None if place == "zigzag" else Explicit(tile=32, sequences=tuple((i % 4,) for i in range(len(lengths))))
    plan, _, _ = check(problem, 4, place=placement)
    assert not {s for s in plan.tables["q_tiles"]["sequence"].tolist() if lengths[s] == 0}


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_a_batch_over_the_memory_limit_is_refused(kind: str) -> None:
    """fault B22"""
    problem = prefill(100_000, mask=Full()) if kind == "prefill" else decode((1000, 300), (9000, 200))
    with pytest.raises(VerificationError, match=r"needs \d+ bytes .*the limit is 4096"):
        make_plan(problem, 4, workspace_limit=4096)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("profile", PROFILES)
def test_ranks_without_any_token(rank: int, profile: str) -> None:
    """fault B23: they take part in every protocol word and end."""
    plan, _, _ = check(prefill(100), 4, place=Explicit(tile=32, sequences=((rank,),)), profile=profile)
    events = schedule(plan, profile, 1)
    assert set(events.events["rank"].tolist()) == {rank}
    assert (plan.headers["num_local_q_tokens"] > 0).tolist() == [r == rank for r in range(4)]


@pytest.mark.parametrize("world", [4, 8])
def test_more_ranks_than_tokens(world: int) -> None:
    """fault B23"""
    check(prefill(3), world)
    check(prefill(1, 2, 0), world, tile=16)
