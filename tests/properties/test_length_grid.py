"""Every length from 1 to 260 on 2, 3, 4 and 8 ranks, causal and full: all rows right, none lost to padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from liquidcp_compiler.ir.mask import Causal, Full, Mask
from liquidcp_runtime.profiles import PROFILES
from liquidcp_runtime.rank_buffers import RankBuffers
from liquidcp_runtime.sharding import shard_kv, shard_map, shard_q
from tests.numerics import check, compiled, prefill, random_inputs

MASKS: tuple[Mask, ...] = (Causal(), Full())
WORLDS = (2, 3, 4, 8)
LONGEST = 260
#: Lengths at and beside the borders of tiles, of twice the ranks and of powers of two, for the quick tests.
THINNED = (1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 32, 33, 63, 65, 100, 127, 128, 129, 191, 193, 224, 255, 257, 260)


def check_length(length: int, world: int) -> None:
    """Both masks, both tile sizes over the grid as a whole, another interleaving each."""
    for i, mask in enumerate(MASKS):
        tile = 32 if (length + i) % 2 else 128
        profile = list(PROFILES)[(length + world) % len(PROFILES)]
        check(prefill(length, mask=mask), world, tile=tile, profile=profile, seed=length)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("length", THINNED)
def test_lengths_near_every_border(length: int, world: int) -> None:
    check_length(length, world)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("first", range(1, LONGEST + 1, 20))
def test_every_length(first: int, world: int) -> None:
    for length in range(first, first + 20):
        check_length(length, world)


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_hold_their_own_tokens_only_and_nothing_else_before_the_run(world: int) -> None:
    problem = prefill(193, 70)
    plan, given = compiled(problem, world).plan, random_inputs(problem)
    held_q = np.concatenate([shard_map(plan, r).q_index.numpy() for r in range(world)])
    held_kv = np.concatenate([shard_map(plan, r).kv_index.numpy() for r in range(world)])
    assert sorted(held_q) == list(range(problem.total_q)), "a query lies on no rank, or on two"
    assert sorted(held_kv) == list(range(problem.total_kv)), "a key lies on no rank, or on two"
    for rank in range(world):
        local_k = shard_kv(plan, rank, given.k)
        assert torch.equal(local_k, given.k[shard_map(plan, rank).kv_index])
        shards = (shard_q(plan, rank, given.q), local_k, shard_kv(plan, rank, given.v))
        memory = RankBuffers(plan, rank, *shards, None, set())
        for name in ("pulled_k", "pulled_v", "pulled_q", "out", "lse"):
            assert getattr(memory, name).isnan().all(), f"{name} of rank {rank} is not poisoned"
        assert memory.states == [None] * len(memory.states)


def test_a_number_that_no_rank_may_use_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: leave one pulled tile as it was before the run, and the result is refused."""
    land = RankBuffers.land

    def land_but_not_the_first(self, transfer_idx, first, second, time):
        nothing = torch.full_like(first, float("nan"))
        land(self, transfer_idx, nothing if transfer_idx == 0 and self.rank == 1 else first, second, time)

    monkeypatch.setattr(RankBuffers, "land", land_but_not_the_first)
    with pytest.raises(AssertionError, match="FAIL"):
        check(prefill(200), 2)
