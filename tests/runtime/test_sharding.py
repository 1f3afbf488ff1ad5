"""Sharding a global tensor and putting it together again, for every placement."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import liquidcp_runtime as runtime
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import PlanError, TensorError
from liquidcp_compiler.ir.mask import SharedPrefix


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=4), st.integers(1, 6))
def test_unshard_inverts_shard_for_any_lengths(prefill, lengths: list[int], world: int) -> None:
    problem = prefill(*lengths)
    plan = make_plan(problem, cp_size=world)
    q = numbered(problem.total_q, 4, 3)
    shards = [runtime.shard_q(plan, r, q) for r in range(world)]
    assert sum(len(s) for s in shards) == problem.total_q
    assert torch.equal(runtime.unshard(plan, shards), q)
    lse = numbered(4, problem.total_q)
    local = [runtime.shard_q(plan, r, lse.T).T for r in range(world)]
    assert torch.equal(runtime.unshard_lse(plan, local), lse)
    k = numbered(problem.total_kv, 2, 3)
    seen = torch.cat([runtime.shard_kv(plan, r, k)[:, 0, 0] for r in range(world)])
    assert torch.equal(seen.sort().values, k[:, 0, 0])


@pytest.mark.parametrize("new_kv", ["chunk", "in_cache"])
def test_decode_shards_heads_and_interleaved_history(decode, new_kv: str) -> None:
    problem = decode((10, 2), (3, 0), (7, 1), interleave=2, new_kv=new_kv, num_heads_q=4)
    plan = make_plan(problem, cp_size=2)
    q, k = numbered(3, 4, 16), numbered(problem.total_kv, 2, 16)
    shards = [runtime.shard_q(plan, r, q) for r in range(2)]
    assert torch.equal(shards[0], q[:, :2])
    assert torch.equal(shards[1], q[:, 2:])
    assert torch.equal(runtime.unshard(plan, shards), q)
    first = {"chunk": 12, "in_cache": 12}[new_kv]
    starts = [0, first, first + 3]
    cached = [10, 3, 7] if new_kv == "chunk" else [12, 3, 8]
    for rank in range(2):
        own = [s + t for s, n in zip(starts, cached, strict=True) for t in range(n) if t // 2 % 2 == rank]
        fresh = [10, 11, 22] if new_kv == "chunk" else []
        assert torch.equal(runtime.shard_kv(plan, rank, k), k[own + fresh])


def test_position_ids_follow_the_tokens(prefill) -> None:
    problem = prefill(300, 5, 260)
    plan = make_plan(problem, cp_size=4)
    positions = torch.cat([torch.arange(n) for n in problem.lengths])
    for rank in range(4):
        assert torch.equal(runtime.position_ids(plan, rank), runtime.shard_tokens(plan, rank, positions))


def test_position_ids_count_the_history(decode, prefill) -> None:
    plan = make_plan(decode((10, 2), (0, 3)), cp_size=2)
    assert runtime.position_ids(plan, 1).tolist() == [10, 11, 0, 1, 2]
    plan = make_plan(prefill(2, kv_lengths=(5,)), cp_size=1)
    assert runtime.position_ids(plan, 0).tolist() == [3, 4]


def test_a_rank_without_tokens_has_empty_tensors(prefill) -> None:
    problem = prefill(100)
    plan = make_plan(problem, cp_size=4)
    sizes = [runtime.shard_q(plan, r, numbered(100, 4, 2)).shape for r in range(4)]
    assert sorted(s[0] for s in sizes) == [0, 0, 0, 100]
    assert all(s[1:] == (4, 2) for s in sizes)


def test_results_can_be_written_into_given_tensors(prefill) -> None:
    problem = prefill(300, mask=SharedPrefix(prefix=10))
    plan = make_plan(problem, cp_size=2)
    q = numbered(300, 4, 2)
    out = torch.empty(4, 300, 2).transpose(0, 1)
    assert runtime.unshard(plan, [runtime.shard_q(plan, r, q) for r in range(2)], out=out) is out
    assert torch.equal(out, q)


def test_wrong_sizes_are_refused(prefill, edited) -> None:
    plan = make_plan(prefill(300), cp_size=2)
    with pytest.raises(TensorError, match=r"q: shape is \(299"):
        runtime.shard_q(plan, 0, torch.zeros(299, 4, 2))
    with pytest.raises(PlanError, match="1 local tensors for a plan of 2 ranks"):
        runtime.unshard(plan, [torch.zeros(300, 4, 2)])
    with pytest.raises(TensorError, match=r"outs\[0\]"):
        runtime.unshard(plan, [torch.zeros(300, 4, 2), torch.zeros(0, 4, 2)])
    torn = edited(plan, "q_tiles", 0, 0, token=1)
    with pytest.raises(PlanError, match="query tensor of rank 0"):
        runtime.shard_q(torn, 0, torch.zeros(300, 4, 2))
