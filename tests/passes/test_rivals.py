"""Placements that others use: what each promises, and that all give right attention."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.driver import plan
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.mask import Full
from liquidcp_compiler.ir.problem import DType, PrefillProblem
from liquidcp_compiler.passes.all_local import AllLocal
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.buddy_ring import BuddyRing
from liquidcp_compiler.passes.magi_chunks import MagiChunks
from liquidcp_compiler.passes.megatron_hybrid import MegatronHybrid
from liquidcp_compiler.passes.placement import Placement, SequencePlace
from liquidcp_compiler.passes.zeppelin import Zeppelin
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime import cpu, reference_attention
from tests.graphs import prefill_problem

FIGURE_7 = [24576, 24576, 14336, 2048]
SMALL = (MegatronHybrid(target_tokens=128, tile=16), Zeppelin(tile=16), AllLocal(tile=16), ZigzagAll(tile=16))
SCHEMES = (*SMALL, MagiChunks(tile=16, chunk=32))

batches = st.lists(st.integers(0, 400), min_size=1, max_size=12)


def tokens_of(placement: Placement) -> np.ndarray:
    owner = placement.tile_owners(placement.lengths)
    rows = [min(placement.tile, int(n) - at) for n in placement.lengths for at in range(0, int(n), placement.tile)]
    return np.bincount(owner, np.array(rows), minlength=placement.world)


def degrees(scheme, lengths: list[int], world: int) -> list[int]:
    return scheme.place(lengths, world).degrees.tolist()


def groups(placement: Placement) -> list[tuple[int, ...]]:
    return [s.ranks for s in placement.sequences]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
@pytest.mark.parametrize("chosen", [{}, {"lengths": [130, 0, 7]}, {"mask": Full()}, {"kv_lengths": (140, 60)}])
def test_attention_is_right(scheme, chosen):
    torch.manual_seed(0)
    small = {"lengths": [130, 40], "num_heads_q": 2, "num_heads_kv": 1}
    p = prefill_problem(**(small | chosen), dtype=DType.FP32)
    made = plan(p, 4, placement=scheme, verify="each")
    q = torch.randn(p.total_q, p.num_heads_q, p.head_dim)
    k, v = torch.randn(2, p.total_kv, p.num_heads_kv, p.head_dim).unbind()
    out, lse = cpu().run(made, q, k, v)
    want, want_lse = reference_attention(p, q, k, v)
    torch.testing.assert_close(out.double(), want.double(), atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(lse.double(), want_lse.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
@given(lengths=batches)
def test_the_graph_is_placed_as_the_placement_says(scheme, lengths):
    placement = scheme.place(lengths, 4)
    assert placement.lengths.tolist() == lengths
    if not sum(lengths):
        return
    graph = scheme.apply(author(PrefillProblem(lengths=lengths, num_heads_q=1, num_heads_kv=1)), PassContext(world=4))
    owners = placement.tile_owners(placement.lengths)
    assert graph.q_tiles.rank.tolist() == graph.kv_tiles.rank.tolist() == owners.tolist()
    sequence = np.repeat(np.arange(len(lengths)), -(-np.array(lengths) // 16))
    for i, ranks in enumerate(groups(placement)):
        assert set(owners[sequence == i].tolist()) <= set(ranks)
        assert bool(ranks) == bool(lengths[i])


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_a_batch_of_one_rank_and_an_empty_batch(scheme):
    assert set(groups(scheme.place([100, 1], 1))) == {(0,)}
    assert scheme.place([], 4).sequences == ()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
@pytest.mark.parametrize("bad", [-1, 2.0, "7", True])
def test_lengths_that_are_none_name_the_sequence(scheme, bad):
    with pytest.raises(InvalidField, match=r"lengths\[1\]"):
        scheme.place([5, bad], 4)


@pytest.mark.parametrize("scheme", [*SCHEMES, BuddyRing(tile=16)], ids=lambda s: s.name)
def test_worlds_and_batches_that_are_none_are_named(scheme):
    for world in (0, -1, True, 2.0, None, "2", 2**70):
        with pytest.raises(InvalidField, match="cp_size"):
            scheme.place([5, 300], world)
    for lengths, field in ((None, "lengths"), (5, "lengths"), ([5, 2**70], "lengths"), ([2**40, 2], "sum")):
        with pytest.raises(InvalidField, match=field):
            scheme.place(lengths, 4)
    assert scheme.place([5, 300], np.int64(4)) == scheme.place([5, 300], 4)


@pytest.mark.parametrize("scheme", [*SCHEMES, BuddyRing()], ids=lambda s: s.name)
def test_options_of_another_type_are_named(scheme):
    for option in fields(scheme):
        for value in (True, "none such", [1], 2**2000, float("nan")):
            with pytest.raises(InvalidField, match=option.name):
                type(scheme)(**{option.name: value})


def test_megatron_places_figure_7_in_two_rounds():
    placement = MegatronHybrid().place(FIGURE_7, 4)
    assert groups(placement) == [(0, 1, 2, 3), (0, 1, 2, 3), (0, 1), (2, 3)]
    assert [s.round for s in placement.sequences] == [0, 0, 1, 1]
    assert tokens_of(placement).tolist() == [19456, 19456, 13312, 13312]


@pytest.mark.parametrize(("target", "shards"), [(16384, 8), (12288, 8)])
def test_megatron_with_larger_targets_splits_less(target, shards):
    placement = MegatronHybrid(target_tokens=target).place(FIGURE_7, 4)
    assert placement.degrees.sum() == shards


def test_megatron_grows_groups_onto_idle_ranks():
    # One sequence asks for one rank, and is spread until no rank is idle.
    assert groups(MegatronHybrid().place([4096], 8)) == [tuple(range(8))]
    # The first of the smallest groups grows, and pushes the others up.
    assert groups(MegatronHybrid().place([4096, 4096, 4096], 4)) == [(0, 1), (2,), (3,)]


def test_megatron_does_not_cap_degrees():
    MegatronHybrid().place([4 * 8192], 4)
    with pytest.raises(InvalidField, match=r"lengths\[1\] is 32769; allowed: at most 32768 = target_tokens x ranks"):
        MegatronHybrid().place([5, 4 * 8192 + 1], 4)


@given(lengths=st.lists(st.integers(1, 8 * 8192), min_size=1, max_size=40), world=st.sampled_from([8, 16]))
def test_megatron_groups_of_a_round_do_not_overlap(lengths, world):
    placement = MegatronHybrid().place(lengths, world)
    for number in {s.round for s in placement.sequences}:
        together = {s.ranks for s in placement.sequences if s.round == number}
        ranks = [r for group in together for r in group]
        assert sorted(ranks) == list(range(world)), "every rank has work, and is in one group"
    for s in placement.sequences:
        assert s.degree & (s.degree - 1) == 0
        assert s.length <= 8192 * s.degree


@pytest.mark.parametrize("world", [3, 6, 0])
def test_megatron_wants_a_power_of_two(world):
    with pytest.raises(InvalidField, match="cp_size"):
        MegatronHybrid().place([5], world)


def test_zeppelin_gives_ranks_in_proportion_to_squares():
    placement = Zeppelin(capacity=16384).place(FIGURE_7, 4)
    assert groups(placement) == [(0, 1), (2, 3), (0,), (1,)]
    # A sequence with nearly all of the squares gets nearly all ranks; groups need not be powers of two.
    assert degrees(Zeppelin(), [30000, 18000], 4) == [3, 2]


def test_zeppelin_keeps_short_sequences_whole_within_the_capacity():
    placement = Zeppelin(capacity=5000).place([4000, 3000, 2000, 1000], 2)
    assert groups(placement) == [(0,), (1,), (1,), (0,)]
    # 1 token less does not hold them: the longest becomes long, until it works.
    assert max(degrees(Zeppelin(capacity=4999), [4000, 3000, 2000, 1000], 2)) > 1


@given(lengths=batches, world=st.integers(1, 9))
def test_all_local_gives_the_last_sequence_of_a_rank_to_the_lightest(lengths, world):
    placement = AllLocal().place(lengths, world)
    assert all(s.degree == (s.length > 0) for s in placement.sequences)
    tokens = tokens_of(placement)
    for rank in range(world):
        # Longest first, so a rank's shortest came last, when no other rank had fewer tokens.
        shortest = min((s.length for s in placement.sequences if s.ranks == (rank,)), default=0)
        assert tokens[rank] - shortest <= tokens.min()


def test_all_local_takes_the_longest_first():
    assert groups(AllLocal().place([100, 300, 200], 2)) == [(1,), (0,), (1,)]


def test_magi_chunks_are_dealt_from_the_heavy_end():
    assert MagiChunks(chunk=128).place([1024], 2).tile_ranks == (0, 1, 1, 0, 0, 1, 1, 0)


@given(tiles=st.lists(st.integers(1, 20), min_size=1, max_size=10), world=st.integers(1, 8))
def test_magi_chunks_give_every_rank_as_many(tiles, world):
    scheme = MagiChunks(chunk=256, min_chunks_per_rank=1)
    placement = scheme.place([128 * n for n in tiles], world)
    per_chunk = scheme.tiles_per_chunk(sum(tiles), world)
    owner = np.array(placement.tile_ranks)[::per_chunk]
    assert np.bincount(owner, minlength=world).max() <= -(-len(owner) // world)
    # All tiles of a chunk lie together.
    assert (np.repeat(owner, per_chunk)[: sum(tiles)] == np.array(placement.tile_ranks)).all()


def test_magi_chunks_balance_attention():
    lengths = [8192, 256, 4096, 512, 16384, 2048, 1024, 256]
    owner = np.array(MagiChunks().place(lengths, 8).tile_ranks)
    position = np.concatenate([np.arange(0, n, 128) for n in lengths])
    work = np.bincount(owner, 128 * position + 128 * 129 // 2)
    assert np.bincount(owner).max() - np.bincount(owner).min() <= MagiChunks().tiles_per_chunk(len(owner), 8)
    assert work.max() / work.mean() < 1.05


def test_tile_tables_carry_over_to_keys_of_other_lengths():
    places = (SequencePlace(length=4, ranks=(0, 1)), SequencePlace(length=0, ranks=()))
    placement = Placement(scheme="x", world=2, tile=1, sequences=places, tile_ranks=(0, 0, 1, 1))
    assert placement.tile_owners(np.array([8, 2])).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert placement.tile_owners(np.array([2, 0])).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: MegatronHybrid(target_tokens=0), "target_tokens"),
        (lambda: Zeppelin(capacity=-1), "capacity"),
        (lambda: AllLocal(tile=0), "tile"),
        (lambda: MagiChunks(chunk=100), "chunk"),
        (lambda: MagiChunks(min_chunks_per_rank=0), "min_chunks_per_rank"),
    ],
)
def test_options_that_make_no_sense(make, field):
    with pytest.raises(InvalidField, match=field):
        make()
