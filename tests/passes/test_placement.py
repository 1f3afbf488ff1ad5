"""Placements: who owns what."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.driver import compile_plan, plan
from liquidcp_compiler.errors import InvalidField, LiquidCPError, PassError
from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.graph import TaskGraph
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.ir.tiles import shard_lengths, tokens_before
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.explicit import Explicit, SequencePlace
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from tests.graphs import decode_problem, prefill_problem


def place(placement, world: int, problem) -> TaskGraph:
    return placement.apply(author(problem), PassContext(world=world))


def owners(graph: TaskGraph, sequence: int) -> list[int]:
    return graph.kv_tiles.rank[graph.kv_tiles.sequence == sequence].tolist()


def test_zigzag_gives_runs_c_and_last_minus_c_to_one_rank():
    graph = place(ZigzagAll(tile=16), 4, prefill_problem([256]))
    assert owners(graph, 0) == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0]


@given(st.integers(1, 4000), st.integers(1, 9))
def test_zigzag_halves_are_within_one_tile(length: int, world: int):
    graph = place(ZigzagAll(tile=32), world, prefill_problem([length]))
    tiles = -(-length // 32)
    counts = np.bincount(graph.kv_tiles.rank, minlength=world)
    assert counts.sum() == tiles
    assert counts.max() - counts.min() <= 2
    runs = np.flatnonzero(np.diff(graph.kv_tiles.rank) != 0)
    assert len(runs) <= 2 * world - 1


def test_short_sequences_do_not_all_start_at_one_rank():
    graph = place(ZigzagAll(), 4, prefill_problem([1] * 64))
    assert np.bincount(graph.kv_tiles.rank, minlength=4).tolist() == [16, 16, 16, 16]


def test_sequences_that_divide_are_not_turned():
    graph = place(ZigzagAll(tile=16), 2, prefill_problem([64, 128, 64]))
    assert owners(graph, 0) == owners(graph, 2) == [0, 1, 1, 0]


def test_paper_legality_wants_256_times_the_degree():
    ok = prefill_problem([2048])
    plan(ok, 4, placement=ZigzagAll(legality="paper"))
    with pytest.raises(InvalidField, match=r"lengths\[1\] is 1000; allowed: multiples of 1024 on 4 ranks"):
        plan(prefill_problem([2048, 1000]), 4, placement=ZigzagAll(legality="paper"))
    plan(prefill_problem([1000]), 1, placement=ZigzagAll(legality="paper"))
    with pytest.raises(InvalidField, match="legality"):
        ZigzagAll(legality="none")


def test_ranks_that_own_nothing_still_have_a_plan():
    made = plan(prefill_problem([100]), 4)
    assert [len(made.table("rows", r)) for r in range(4)] == [1, 0, 0, 0]
    assert len(made.table("signals", 3)) == 2


def test_explicit_groups_and_tiles():
    places = ((2, 0), SequencePlace(tiles=(1, 1, 3)))
    graph = place(Explicit(sequences=places, tile=32), 4, prefill_problem([128, 70]))
    assert owners(graph, 0) == [2, 0, 0, 2]
    assert owners(graph, 1) == [1, 1, 3]
    plan(prefill_problem([128, 70]), 4, placement=Explicit(sequences=places, tile=32), verify="each")


@pytest.mark.parametrize(
    ("places", "field"),
    [
        (((0, 1),), "sequences"),
        (((0, 7), (0,)), r"sequences\[0\].ranks"),
        (((0, 0), (0,)), r"sequences\[0\].ranks"),
        (((), (0,)), r"sequences\[0\]"),
        (((0,), SequencePlace(tiles=(0,))), r"sequences\[1\].tiles"),
        (((0,), SequencePlace(ranks=(0,), tiles=(0,))), r"sequences\[1\]"),
        (((0,), SequencePlace(tiles=(0, 0, -1))), r"sequences\[1\].tiles"),
    ],
)
def test_explicit_places_that_make_no_sense(places, field: str):
    with pytest.raises(InvalidField, match=field):
        place(Explicit(sequences=places, tile=32), 4, prefill_problem([128, 70]))


def test_explicit_from_a_file(tmp_path):
    path = tmp_path / "places.json"
    path.write_text(json.dumps({"format": 1, "sequences": [{"ranks": [1, 0]}, {"tiles": [0, 1, 1]}]}))
    graph = place(Explicit(file=str(path), tile=32), 2, prefill_problem([128, 70]))
    assert owners(graph, 0) == [1, 0, 0, 1]
    path.write_text("{")
    with pytest.raises(LiquidCPError, match="cannot be read as JSON"):
        place(Explicit(file=str(path)), 2, prefill_problem([128, 70]))
    path.write_text(json.dumps({"format": 1, "sequences": [{"rank": 1}]}))
    with pytest.raises(InvalidField, match=r"sequences\[0\]"):
        place(Explicit(file=str(path)), 2, prefill_problem([128, 70]))


def test_kinds_of_problem_take_their_own_placements():
    with pytest.raises(PassError, match="takes the placement dcp"):
        plan(decode_problem(), 2, placement="zigzag-all")
    with pytest.raises(PassError, match="takes zigzag-all"):
        plan(prefill_problem(), 2, placement="dcp")
    with pytest.raises(InvalidField, match="placement is 'zigzag'; allowed: zigzag-all, explicit, dcp"):
        plan(prefill_problem(), 2, placement="zigzag")


@pytest.mark.parametrize("world", [0, -1, True, 2.0, "4", 5000])
def test_worlds_that_are_none(world):
    with pytest.raises(InvalidField, match="cp_size"):
        plan(prefill_problem(), world)


@given(st.integers(1, 500), st.integers(1, 5), st.integers(1, 70))
def test_interleave_maps_are_bijections(length: int, world: int, interleave: int):
    """fault L3"""
    local = shard_lengths(np.array([length]), world, interleave)[0]
    assert local.sum() == length
    seen = []
    for rank in range(world):
        j = np.arange(local[rank])
        token = (j // interleave * world + rank) * interleave + j % interleave
        assert (tokens_before(token, np.full(len(token), rank), world, interleave) == j).all()
        seen.extend(token.tolist())
    assert sorted(seen) == list(range(length))


def test_dcp_makes_no_task_for_an_empty_shard():
    """fault A4"""
    graph = compile_plan(decode_problem([(3, 1), (8, 1)], num_heads_q=8), 8, verify="each").graph
    t = graph.tasks
    history = np.flatnonzero((t.kind == TaskKind.COMPUTE) & (t.role == Role.HISTORY))
    request = graph.q_tiles.sequence[t.reads.lo[t.reads.ptr[history]]]
    assert sorted(t.rank[history[request == 0]].tolist()) == [0, 1, 2]
    assert sorted(t.rank[history[request == 1]].tolist()) == list(range(8))


def test_dcp_packs_query_tiles_of_several_ranks_into_one_task():
    graph = place(Dcp(), 2, decode_problem([(300, 16)], num_heads_q=8))
    t = graph.tasks
    history = np.flatnonzero(t.role == Role.HISTORY)
    row, lo, hi = t.reads.take(history).of_space(Space.Q)
    assert (hi - lo).tolist() == [2, 2]
    assert (graph.q_tiles.rows[lo] * graph.q_tiles.num_heads[lo]).tolist() == [64, 64]


def test_dcp_divides_heads_over_ranks():
    """fault D10"""
    with pytest.raises(InvalidField, match="cp_size is 3; allowed: a divisor of num_heads_q = 4"):
        plan(decode_problem(), 3)
