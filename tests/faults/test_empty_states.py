"""Empty shards, log-sum-exps and merging: silent NaN and plausible but wrong numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from liquidcp_compiler.errors import LseBaseError, TensorError
from liquidcp_compiler.ir.layout import Role
from liquidcp_compiler.ir.mask import Causal, Full, SlidingWindow
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_runtime.cpu_world import cpu
from liquidcp_runtime.profiles import PROFILES
from liquidcp_runtime.state import AttentionState, empty_state, from_log2, merge, merge_into
from tests.numerics import check, compiled, decode, prefill, random_inputs, report, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 128), (0, 2, 16), (5, 3, 64)])
def test_two_empty_states_merge_to_an_empty_state(tokens: int, heads: int, head_dim: int) -> None:
    """fault A1"""
    merged = merge(*(empty_state(heads, tokens, head_dim=head_dim) for _ in range(2)))
    assert torch.equal(merged.out, torch.zeros(heads, tokens, head_dim))
    assert (merged.lse == -math.inf).all()


@pytest.mark.parametrize("empty_first", [True, False])
def test_what_lies_in_an_empty_state_never_reaches_the_result(empty_first: bool) -> None:
    """fault A1: the empty side's buffer holds NaN, as memory that was never written may."""
    stale = AttentionState(out=torch.full((2, 3, 16), math.nan), lse=torch.full((2, 3), -math.inf))
    full = AttentionState(out=torch.randn(2, 3, 16), lse=torch.randn(2, 3))
    merged = merge(stale, full) if empty_first else merge(full, stale)
    assert torch.equal(merged.out, full.out)
    torch.testing.assert_close(merged.lse, full.lse)
    merge_into(full, stale)
    assert full.out.isfinite().all()


@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_key_and_three_empty_ranks(new_kv: str, profile: str) -> None:
    """fault A3"""
    problem = decode((0, 1), new_kv=new_kv)
    _, out, _ = check(problem, 4, profile=profile)
    assert torch.equal(out[0], random_inputs(problem).v[0].expand(8, 16))


@pytest.mark.parametrize("world", [1, 2, 8])
@pytest.mark.parametrize("interleave", [1, 4, 16])
def test_ranks_without_keys_of_a_request_contribute_nothing(world: int, interleave: int) -> None:
    """fault A4"""
    problem = decode((2, 1), (7, 1), new_kv="in_cache", interleave=interleave)
    plan, _, _ = check(problem, world)
    for rank in range(world):
        rows = plan.table("rows", rank)
        mine = rows[(rows["role"] == Role.HISTORY) & (rows["sequence"] == 0)]
        assert (len(mine) > 0) == (rank * interleave < 3), f"rank {rank} holds tokens of request 0 or it does not"


@pytest.mark.parametrize("mask", [Full(), Causal(), SlidingWindow(left=2, right=2)])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_sequences_without_keys_have_out_0_and_lse_minus_infinity(mask, world: int) -> None:
    """fault A5"""
    _, out, lse = check(prefill(3, 3, kv_lengths=(0, 5), mask=mask), world)
    assert torch.equal(out[:3], torch.zeros(3, 2, 16))
    assert (lse[:, :3] == -math.inf).all()
    assert lse[:, 3:].isfinite().all()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_rows_before_the_first_key_are_empty(world: int) -> None:
    """fault A13: causal is aligned bottom-right, so the first 2 of 4 queries over 2 keys see none."""
    problem = prefill(4, kv_lengths=(2,))
    _, out, lse = check(problem, world)
    assert torch.equal(out[:2], torch.zeros(2, 2, 16))
    assert (lse[:, :2] == -math.inf).all()
    assert torch.equal(out[2], random_inputs(problem).v[0].expand(2, 16))


@pytest.mark.parametrize(("queries", "keys"), [(300, 70), (129, 1), (40, 39)])
def test_more_queries_than_keys_over_many_tiles(queries: int, keys: int) -> None:
    """fault A13"""
    _, out, lse = check(prefill(queries, kv_lengths=(keys,)), 3)
    assert (lse[:, : queries - keys] == -math.inf).all()
    assert (out[: queries - keys] == 0).all()


@pytest.mark.parametrize("factor", [8.0, 1 / 8])
@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
def test_shards_of_very_different_lse(factor: float, new_kv: str) -> None:
    """fault A6: an lse of another base would pass unseen where all shards have the same one."""
    problem = decode((4095, 1), interleave=16, new_kv=new_kv)
    given = random_inputs(problem)
    second = torch.from_numpy(np.arange(4096) // 16 % 2 == 1)
    k = torch.where(second[:, None, None], given.k * factor, given.k)
    check(problem, 2, inputs=given.with_changes(k=k))


def test_bases_of_lse_do_not_mix() -> None:
    """fault A6"""
    torch.manual_seed(0)
    out, lse = torch.randn(2, 3, 16), torch.randn(2, 3) * 20
    natural = AttentionState(out=out, lse=lse)
    other = AttentionState(out=out * 2, lse=lse - 3)
    imported = AttentionState(out=other.out, lse=other.lse / math.log(2), base="2")
    with pytest.raises(LseBaseError, match="convert"):
        merge(natural, imported)
    with pytest.raises(LseBaseError, match="convert"):
        merge_into(natural, imported)
    torch.testing.assert_close(merge(natural, from_log2(imported.out, imported.lse)).out, merge(natural, other).out)


@pytest.mark.parametrize("level", [-6e4, -1e6, 6e4])
def test_real_scores_below_any_finite_sentinel(level: float) -> None:
    """fault A7: with all scores equal, the answer is the mean of the visible values.

    An fp32 lse near ``level`` is rounded by half of ``step``, so the weights with which parts are merged are off by up
    to ``step``, relative; hence the tolerance. Values around 3 let no answer of zeros pass.
    """
    problem = prefill(448, kv_lengths=(1880,), head_dim=128, softmax_scale=1.0)
    given, step = random_inputs(problem), abs(level) * 2.0**-23
    given = given.with_changes(v=given.v + 3)
    q, k = torch.zeros_like(given.q), torch.zeros_like(given.k)
    q[..., 0], k[..., 0] = 1.0, level
    plan = compiled(problem, 2, tile=128).plan
    out, lse = run(plan, given.with_changes(q=q, k=k))
    count = torch.arange(448) + 1880 - 448 + 1
    mean = given.v[:, 0].double().cumsum(0)[count - 1] / count[:, None]
    for head in range(2):
        torch.testing.assert_close(out[:, head].double(), mean, rtol=step, atol=0)
        torch.testing.assert_close(lse[head].double(), level + count.double().log(), rtol=0, atol=4 * step)


@pytest.mark.parametrize(("dtype", "formation"), [("bf16", "ready"), ("fp16", "static")])
def test_the_error_does_not_grow_with_the_number_of_ranks(dtype: str, formation: str) -> None:
    """fault A9 (forward): partial results stay fp32, and are rounded once at the end."""
    problem = prefill(2048, dtype=dtype)
    given, errors = random_inputs(problem), {}
    for world in (1, 2, 4, 8):
        out, lse = run(compiled(problem, world, tile=64, formation=formation).plan, given)
        errors[world] = report(problem, given, out, lse)
        assert errors[world].ok()
    assert max(e.whole for e in errors.values()) <= 1.25 * errors[1].whole, errors
    assert max(e.worst_tile for e in errors.values()) <= 1.25 * errors[1].worst_tile, errors


@pytest.mark.parametrize("num_splits", [1, 3])
def test_the_error_of_decode_does_not_grow_with_the_number_of_ranks(num_splits: int) -> None:
    """fault A9 (forward)"""
    problem = decode((1000, 4), (3000, 1), dtype="bf16")
    given, errors = random_inputs(problem), {}
    for world in (1, 2, 4, 8):
        out, lse = run(compiled(problem, world, split=SplitKv(policy="fixed", num_splits=num_splits)).plan, given)
        errors[world] = report(problem, given, out, lse)
    assert max(e.whole for e in errors.values()) <= 1.25 * errors[1].whole, errors


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_a_sink_counts_once(world: int, kind: str) -> None:
    """fault A11: the same as a dense softmax with one more column, whatever the number of ranks and parts."""
    heads = {"num_heads_q": 8, "num_heads_kv": 2, "sinks": True}
    problem = prefill(256, **heads) if kind == "prefill" else decode((200, 56), **heads)
    given = random_inputs(problem).with_changes(sinks=torch.full((8,), 2.0))
    out, lse = run(compiled(problem, world).plan, given)
    q, k, v = (x.double().transpose(0, 1) for x in (given.q, given.k, given.v))
    k, v = k.repeat_interleave(4, 0), v.repeat_interleave(4, 0)
    position = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    scores = (q @ k.transpose(1, 2) / 4.0).masked_fill(torch.arange(k.shape[1]) > position, -math.inf)
    scores = torch.cat([scores, torch.full((8, q.shape[1], 1), 2.0, dtype=torch.float64)], -1)
    expected = torch.softmax(scores, -1)[..., :-1] @ v
    torch.testing.assert_close(out.double(), expected.transpose(0, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exchange_dtype", ["fp32", "bf16"])
def test_lse_stays_fp32_over_a_long_history_of_near_ties(exchange_dtype: str) -> None:
    """fault A15"""
    problem = decode((65535, 1), exchange_dtype=exchange_dtype)
    given = random_inputs(problem)
    given = given.with_changes(q=given.q * 1e-3)
    out, lse = run(compiled(problem, 8, tile=128).plan, given)
    errors = report(problem, given, out, lse)
    assert lse.dtype == torch.float32
    assert errors.lse_scaled < 1e-5
    if exchange_dtype == "fp32":
        assert errors.ok(), errors.explain()


def test_states_in_16_bits_are_refused() -> None:
    """fault A15"""
    with pytest.raises(TensorError, match="fp32"):
        AttentionState(out=torch.zeros(1, 16), lse=torch.zeros(1, dtype=torch.bfloat16))
    with pytest.raises(TensorError, match="fp32"):
        AttentionState(out=torch.zeros(1, 16, dtype=torch.float16), lse=torch.zeros(1))


def test_lse_given_in_16_bits_is_refused() -> None:
    """fault A15"""
    problem = prefill(20)
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    with pytest.raises(TensorError, match="lse"):
        cpu(2).run(plan, given.q, given.k, given.v, lse=torch.zeros(2, 20, dtype=torch.bfloat16))
