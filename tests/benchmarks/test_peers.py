"""The peers of the forward benchmarks compute attention: on the CPU, with a reference in the place of FA3's kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.peers.fa3 import load_fa3
from benchmarks.peers.merge import merge
from benchmarks.peers.zigzag import AllGather, RankShards, Ring
from liquidcp_compiler.errors import InvalidField


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """As FA3 does it: grouped heads, causal bottom right, out in q's dtype and lse fp32."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * q.shape[2] ** -0.5
    if causal:
        position = torch.arange(len(q))[:, None] + len(k) - len(q)
        scores.masked_fill_(torch.arange(len(k)) > position, float("-inf"))
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out.to(q.dtype), scores.logsumexp(-1).float()


def tensors(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return tuple(torch.randn(tokens, heads, 16, generator=generator) for heads in (4, 2, 2))  # type: ignore[return-value]


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("system", [Ring, AllGather])
def test_every_rank_has_its_part_of_causal_attention(system: type[Ring] | type[AllGather], world: int) -> None:
    q, k, v = tensors(6 * 2 * world)
    out, lse = attention(q, k, v, True)
    chunks, lse_chunks = out.chunk(2 * world), lse.chunk(2 * world, 1)
    for rank in range(world):
        found, found_lse = system(RankShards.cut(q, k, v, rank, world), attention)()
        other = 2 * world - 1 - rank
        torch.testing.assert_close(found, torch.cat([chunks[rank], chunks[other]]))
        torch.testing.assert_close(found_lse, torch.cat([lse_chunks[rank], lse_chunks[other]], 1))


def test_operations_of_all_ranks_are_those_of_the_sequence() -> None:
    q, k, v = tensors(96)
    every = [RankShards.cut(q, k, v, rank, 4).flops for rank in range(4)]
    assert max(every) == min(every)
    assert sum(every) == 4 * 16 * 4 * (96 * 97 // 2)


def test_an_empty_part_changes_nothing_and_nothing_becomes_the_part() -> None:
    out, lse = torch.randn(5, 2, 8), torch.randn(2, 5)
    before, before_lse = out.clone(), lse.clone()
    empty, empty_lse = torch.zeros(5, 2, 8), torch.full((2, 5), float("-inf"))
    merge(out, lse, empty, empty_lse)
    torch.testing.assert_close((out, lse), (before, before_lse))
    merge(empty, empty_lse, before, before_lse)
    torch.testing.assert_close((empty, empty_lse), (before, before_lse))
    both, both_lse = torch.zeros(5, 2, 8), torch.full((2, 5), float("-inf"))
    merge(both, both_lse, torch.zeros(5, 2, 8), both_lse.clone())
    assert not both.any()
    assert both_lse.isneginf().all()


def test_a_folder_without_the_wheel_is_named(tmp_path) -> None:
    with pytest.raises(InvalidField, match="fa3_fwd_interface"):
        load_fa3(tmp_path)
