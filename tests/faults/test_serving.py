"""Decode context parallelism as servers use it: interleaved caches, speculation, prefix caches, chunked prefill."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import PassError, PlanError, TensorError, UnsupportedError
from liquidcp_compiler.ir.problem import DecodeProblem
from liquidcp_compiler.ir.tiles import shard_lengths, tokens_before
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime.cpu_world import cpu
from liquidcp_runtime.interpreter import interpret
from liquidcp_runtime.reference import reference_attention
from liquidcp_runtime.scheduling import schedule
from liquidcp_runtime.sharding import shard_kv, shard_map, shard_q, unshard
from tests.numerics import check, compiled, decode, prefill, random_inputs, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("queries", [2, 3, 5])
@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("interleave", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_draft_token_has_its_own_limit(queries: int, new_kv: str, world: int, interleave: int) -> None:
    """fault L1: how many keys of a rank a query sees follows from the sequence, row by row."""
    for total in (queries, 8, 9, 11):
        check(decode((total - queries, queries), new_kv=new_kv, interleave=interleave), world, seed=total)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("interleave", [1, 4, 16, 64])
def test_owners_and_places_are_a_bijection(world: int, interleave: int) -> None:
    """fault L3: every token has one owner and one place, and the numbers before it count up, for all lengths to 200."""
    lengths = np.arange(201)
    shards = shard_lengths(lengths, world, interleave)
    assert (shards.sum(axis=1) == lengths).all()
    token = np.arange(200)
    owner = token // interleave % world
    for rank in range(world):
        before = tokens_before(np.arange(201), np.full(201, rank), world, interleave)
        assert (before == np.concatenate(([0], np.cumsum(owner == rank)))).all()
        assert (shards[:, rank] == before).all()


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("interleave", [1, 4, 16, 64])
def test_shards_of_a_plan_hold_the_tokens_of_their_turns(world: int, interleave: int) -> None:
    """fault L3: through a plan's tables, with tiles of their own borders."""
    lengths = (1, 33, 64, 199, 200)
    problem = decode(*((n, 1) for n in lengths), num_heads_q=world, interleave=interleave, new_kv="in_cache")
    plan, _, _ = check(problem, world)
    starts = np.repeat(problem.kv_offsets[:-1], np.diff(problem.kv_offsets))
    token = np.arange(problem.total_kv) - starts
    for rank in range(world):
        mine = np.flatnonzero(token // interleave % world == rank)
        assert shard_map(plan, rank).kv_index.tolist() == mine.tolist()


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("interleave", [1, 16])
def test_a_rank_reads_its_own_part_of_the_cache_only(world: int, interleave: int) -> None:
    """fault L4: each rank's tensors are made from a cache in which all other tokens are NaN."""
    problem = decode((32, 1), (69, 1), new_kv="in_cache", interleave=interleave)
    plan, given = compiled(problem, world).plan, random_inputs(problem)
    expected, _ = run(plan, given)
    shards: list[list[torch.Tensor]] = [[], []]
    for rank in range(world):
        for local, x in zip(shards, (given.k, given.v), strict=True):
            own = torch.full_like(x, float("nan"))
            index = shard_map(plan, rank).kv_index
            own[index] = x[index]
            local.append(shard_kv(plan, rank, own))
    q = [shard_q(plan, r, given.q) for r in range(world)]
    outs = [out for out, _ in interpret(plan, schedule(plan), q, *shards)]
    assert torch.equal(unshard(plan, outs), expected)


def greedy_tokens(world: int, steps: int) -> list[int]:
    """Tokens that a one-layer model with random weights picks, one a step, from a prompt of 33."""
    generator = torch.Generator().manual_seed(5)
    vocabulary, heads, dim = 97, 8, 16
    embed, w_out = (torch.randn(vocabulary, heads * dim, generator=generator) for _ in range(2))
    w_q = torch.randn(heads * dim, heads * dim, generator=generator) / (heads * dim) ** 0.5
    w_k, w_v = (torch.randn(heads * dim, 2 * dim, generator=generator) / dim**0.5 for _ in range(2))
    tokens = torch.randint(vocabulary, (33,), generator=generator).tolist()
    for _ in range(steps):
        x = embed[tokens] + torch.sin(torch.arange(len(tokens)))[:, None]
        problem = decode((len(tokens) - 1, 1), num_heads_kv=2, new_kv="in_cache", interleave=16)
        q, k, v = (x[-1:] @ w_q).view(1, heads, dim), (x @ w_k).view(-1, 2, dim), (x @ w_v).view(-1, 2, dim)
        out, _ = cpu(world).run(make_plan(problem, world, verify="off"), q, k, v, seed=len(tokens))
        tokens.append(int((w_out @ out.reshape(-1)).argmax()))
    return tokens[33:]


def test_greedy_decoding_picks_the_same_tokens_on_eight_ranks() -> None:
    """fault L4"""
    tokens = greedy_tokens(8, 24)
    assert tokens == greedy_tokens(1, 24)
    assert len(set(tokens)) > 3, "a model that repeats itself shows nothing"


@pytest.mark.long
def test_greedy_decoding_picks_the_same_tokens_for_512_steps() -> None:
    """fault L4"""
    assert greedy_tokens(8, 512) == greedy_tokens(1, 512)


@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
@pytest.mark.parametrize("chunks", [(48, 7, 1, 1, 40, 1), (1,) * 9 + (30,), (100,)])
@pytest.mark.parametrize("world", [2, 4])
def test_a_sequence_in_chunks_equals_the_sequence_at_once(new_kv: str, chunks: tuple[int, ...], world: int) -> None:
    """fault L5, L6: queries see the cached prefix and the new suffix, whatever step brought a token."""
    whole = prefill(sum(chunks), num_heads_q=8)
    given = random_inputs(whole)
    expected, expected_lse = reference_attention(whole, given.q, given.k, given.v)
    done = 0
    for n in chunks:
        problem = decode((done, n), new_kv=new_kv, interleave=4)
        step = given.with_changes(q=given.q[done : done + n], k=given.k[: done + n], v=given.v[: done + n])
        out, lse = run(compiled(problem, world).plan, step, seed=done)
        torch.testing.assert_close(out.double(), expected[done : done + n], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse.double(), expected_lse[:, done : done + n], rtol=1e-5, atol=1e-5)
        done += n


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("missing", [1, 16, 40])
def test_a_cache_that_lacks_tokens_is_refused(name: str, missing: int) -> None:
    """fault L5"""
    problem = decode((40, 1))
    plan, given = compiled(problem, 2).plan, random_inputs(problem)
    tensors = {n: getattr(given, n) for n in ("q", "k", "v")} | {name: getattr(given, name)[missing:]}
    with pytest.raises(TensorError, match=f"^{name}: shape"):
        cpu(2).run(plan, **tensors)
    with pytest.raises(TensorError, match="one row a token"):
        shard_kv(plan, 0, tensors[name])


@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
def test_a_prefill_chunk_on_a_long_history_then_decode(new_kv: str) -> None:
    """fault L6"""
    for history, query in ((8192, 512), (8704, 1)):
        problem = decode((history, query), num_heads_q=4, new_kv=new_kv, interleave=16)
        check(problem, 4, tile=128)


@pytest.mark.parametrize("requests", [(), ((0, 0),), ((50, 0),), ((50, 0), (0, 0), (7, 0))])
@pytest.mark.parametrize("world", [1, 2, 8])
def test_steps_without_any_query(requests: tuple[tuple[int, int], ...], world: int) -> None:
    """fault L7: a group with nothing to do, or with padded slots only, does nothing."""
    plan, out, lse = check(decode(*requests), world)
    assert len(plan.tables["transfers"]) == len(plan.tables["rows"]) == 0
    assert out.shape == (0, 8, 16)
    assert lse.shape == (8, 0)


def test_padded_slots_beside_real_requests() -> None:
    """fault L7"""
    check(decode((0, 0), (50, 1), (9, 0), (0, 3), (0, 0)), 4)


def test_a_world_or_placement_that_cannot_run_the_plan_refuses_at_once() -> None:
    """fault L8"""
    problem = decode((20, 1))
    plan, given = compiled(problem, 2).plan, random_inputs(problem)
    with pytest.raises(PlanError, match="the plan is for 2 ranks, this world has 4"):
        cpu(4).run(plan, given.q, given.k, given.v)
    with pytest.raises(PassError, match="dcp"):
        make_plan(problem, 2, placement=ZigzagAll(tile=32))
    with pytest.raises(UnsupportedError, match="page_table"):
        DecodeProblem(requests=((20, 1),), num_heads_q=2, num_heads_kv=1, page_table=((0,),))  # pyright: ignore


@pytest.mark.parametrize("interleave", [1, 4, 16, 64, 200])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_zigzag_queries_over_interleaved_keys(interleave: int, world: int) -> None:
    """fault L9: prefill over the cache layout of decode, in one graph."""
    problem = prefill(300, 1, 77, kv_lengths=(300, 60, 129))
    plan, _, _ = check(problem, world, place=ZigzagAll(tile=32, kv_interleave=interleave))
    kv = plan.tables["kv_tiles"]
    assert set(kv["interleave"].tolist()) == {interleave}
    assert set(kv["group"].tolist()) == {world}


@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
@pytest.mark.parametrize("history", [0, 1])
@pytest.mark.parametrize("world", [1, 2, 8])
def test_one_query_over_one_or_two_keys(new_kv: str, history: int, world: int) -> None:
    """fault L10"""
    problem = decode((history, 1), new_kv=new_kv)
    _, out, lse = check(problem, world)
    if not history:
        given = random_inputs(problem)
        assert torch.equal(out[0], given.v[0].expand(8, 16))
        torch.testing.assert_close(lse[:, 0], (given.q[0] * given.k[0]).sum(-1) / 4)


@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
@pytest.mark.parametrize("interleave", [1, 16])
@pytest.mark.parametrize("num_heads_kv", [1, 2, 8])
def test_verification_of_drafts_beside_single_tokens(new_kv: str, interleave: int, num_heads_kv: int) -> None:
    """fault L11"""
    problem = decode(
        (200, 1), (199, 2), (0, 4), (63, 8), (64, 1), (1, 1),
        new_kv=new_kv, interleave=interleave, num_heads_kv=num_heads_kv,
    )  # fmt: skip
    for world in (1, 2, 4, 8):
        check(problem, world)
