"""Graphs written by hand: they are what the calls say, they run through the pipeline, and slips are named."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from liquidcp_compiler.driver import compile_plan
from liquidcp_compiler.errors import GraphError
from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.graph import PlacedGraph, PlannedGraph
from liquidcp_compiler.ir.graph_builder import GraphBuilder
from liquidcp_compiler.ir.layout import Formation, Role, Space
from liquidcp_compiler.ir.parser import parse_graph
from liquidcp_compiler.ir.printer import print_graph
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem
from liquidcp_compiler.ir.tiles import REPLICATED
from liquidcp_compiler.ir.verifier import verify
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.registry import parse_pipeline

SHAPE = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 64}
PREFILL = PrefillProblem(lengths=(512,), **SHAPE)


def two_ranks() -> GraphBuilder:
    """Four tiles of 128 tokens: 0 and 3 on rank 0, 1 and 2 on rank 1. No tasks yet."""
    b = GraphBuilder(PREFILL, world=2)
    b.own((0, 128), rank=0)
    b.own((128, 384), rank=1)
    b.own((384, 512), rank=0)
    return b


def test_a_zigzag_graph_by_hand_is_what_the_passes_make() -> None:
    b = two_ranks()
    b.transfer(kv=[1, 2], src=1, dst=0)
    b.transfer(kv=0, src=0, dst=1)
    for q, rank in enumerate([0, 1, 1, 0]):
        assert b.compute(rank, q=q, kv=range(q + 1)) is None
    graph = b.finish()
    made = author(PREFILL, loc="")
    for p in parse_pipeline("zigzag-all,insert-transfers"):
        made = p.apply(made, PassContext(world=2))
    assert re.sub(r"(?m)^loc .*\n| loc \d+$", "", print_graph(graph)) == print_graph(made)


def test_calls_return_ids() -> None:
    b = GraphBuilder(PrefillProblem(lengths=(300, 70), **SHAPE), world=2)
    assert b.own((0, 300), rank=0) == (range(3), range(3))
    assert b.own_q(range(70), rank=1, sequence=1) == range(3, 4)
    assert b.replicate_kv((0, 70), sequence=1) == range(3, 4)
    assert b.compute(0, q=0, kv=0, into="state") == 0
    assert b.compute(0, q=0, kv=1, into="state") == 1
    assert b.reduce(0, states=[0, 1], into="state") == 2
    assert b.reduce(0, states=2) is None
    graph = b.finish()
    assert graph.q_tiles.rows.tolist() == [128, 128, 44, 70]
    assert graph.kv_tiles.rank.tolist() == [0, 0, 0, REPLICATED]
    assert graph.states.tolist() == [0, 0, 0]


def test_split_keys_over_two_ranks_verifies_and_plans() -> None:
    b = GraphBuilder(PrefillProblem(lengths=(512,), **SHAPE), world=2)
    b.own((0, 256), rank=0)
    b.own((256, 512), rank=1)
    for q in (0, 1):
        b.compute(0, q=q, kv=(0, q + 1))
    b.transfer(q=(2, 4), src=1, dst=0)
    for q in (2, 3):
        near = b.compute(1, q=q, kv=(2, q + 1), into="state")
        far = b.compute(0, q=q, kv=(0, 2), into="state")
        assert near is not None
        assert far is not None
        b.transfer(state=far, src=0, dst=1)
        b.reduce(1, q=q, states=[far, near])
    graph = b.finish()
    verify(graph)
    assert compile_plan(graph, 2).plan.world == 2


def test_a_relay_of_kv_tiles_verifies_and_plans() -> None:
    b = GraphBuilder(PrefillProblem(lengths=(384,), **SHAPE), world=3)
    for rank in range(3):
        b.own((128 * rank, 128 * rank + 128), rank=rank)
    b.transfer(kv=0, src=0, dst=1)
    b.transfer(kv=(0, 2), src=1, dst=2)
    for rank in range(3):
        b.compute(rank, q=rank, kv=(0, rank + 1))
    verify(b.finish())
    assert compile_plan(b.finish(), 3).plan.world == 3


def test_a_decode_step_by_hand_verifies() -> None:
    b = GraphBuilder(DecodeProblem(requests=((256, 1),), **SHAPE), world=2)
    b.own_q((0, 1), rank=0, heads=(0, 2))
    b.own_q((0, 1), rank=1, heads=(2, 4))
    b.own_kv((0, 128), rank=0)
    b.own_kv((128, 256), rank=1)
    b.replicate_kv((256, 257))
    for rank in (0, 1):
        other = 1 - rank
        b.transfer(q=other, src=other, dst=rank)
    chunk = [b.compute(rank, q=rank, kv=2, into="state", role="chunk") for rank in (0, 1)]
    parts = {(q, r): b.compute(r, q=q, kv=r, into="state", role="history") for q in (0, 1) for r in (0, 1)}
    for q in (0, 1):
        b.transfer(state=parts[q, 1 - q], src=1 - q, dst=q)
        b.reduce(q, states=[chunk[q], parts[q, 0], parts[q, 1]])
    graph = b.finish()
    verify(graph)
    assert set(graph.tasks.role.tolist()) == {Role.NONE, Role.CHUNK, Role.HISTORY}


def test_reads_are_stored_by_space_and_joined() -> None:
    b = two_ranks()
    b.compute(0, q=3, kv=[3, (0, 2), 2], ready=(1, 4))
    b.compute(1, q=1, kv=[0], into="state")
    b.compute(1, q=1, kv=[1], into="state")
    b.reduce(1, states=[1, 0])
    graph = b.placed()
    assert graph.task(0).reads == [(Space.Q, 3, 4), (Space.KV, 0, 4)]
    assert (graph.tasks.formation[0], graph.tasks.tau_min[0], graph.tasks.tau_max[0]) == (Formation.READY, 1, 4)
    assert graph.task(3).reads == [(Space.STATE, 1, 2), (Space.STATE, 0, 1)]  # merge order is kept


def test_each_task_knows_its_line() -> None:
    b = two_ranks()
    b.transfer(kv=[1, 2], src=1, dst=0)
    b.compute(0, q=3, kv=(0, 4))
    b.compute(0, q=0, kv=0)
    graph = b.finish()
    places = [task.loc for task in graph]
    assert all(re.fullmatch(r"test_graph_builder\.py:\d+", place) for place in places)
    line = int(places[0].split(":")[1])
    assert places == [f"test_graph_builder.py:{line + i}" for i in (0, 0, 1, 2)]


def test_placed_leaves_the_transfers_to_the_pass() -> None:
    b = two_ranks()
    for q, rank in enumerate([0, 1, 1, 0]):
        b.compute(rank, q=q, kv=range(q + 1))
    graph = b.placed()
    assert type(graph) is PlacedGraph
    verify(graph)
    assert compile_plan(graph, 2).plan.world == 2
    with pytest.raises(GraphError, match=r"task %1 \(test_graph_builder\.py:\d+\) reads kv 0 on rank 1, but rank 0"):
        b.finish()


def test_the_text_of_a_graph_by_hand_comes_back() -> None:
    b = two_ranks()
    b.compute(0, q=0, kv=0)
    text = print_graph(b.finish())
    back = parse_graph(text)
    assert type(back) is PlannedGraph
    assert print_graph(back) == text


Call = Callable[[GraphBuilder], object]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.own_q((0, 10), rank=0), "q tokens 0:10 of sequence 0 have an owner already; allowed: one"),
        (lambda b: b.own_kv((0, 10), rank=0), "tokens start at 0; allowed: 512 or more, kv tiles of a sequence go by"),
        (lambda b: b.own_q((500, 513), rank=0), "tokens is (500, 513); allowed: (first, past last) within 0 to 512"),
        (lambda b: b.own_q((5, 5), rank=0), "tokens is (5, 5); allowed: (first, past last) within 0 to 512"),
        (lambda b: b.own_q(5, rank=0), "tokens is 5; allowed: (first, past last) within 0 to 512"),
        (lambda b: b.own_q((0, 5), rank=2), "rank is 2; allowed: 0 to 1"),
        (lambda b: b.own_q((0, 5), rank=-1), "rank is -1; allowed: 0 to 1"),
        (lambda b: b.own_kv((0, 5), rank=None), "rank is None; allowed: 0 to 1"),
        (lambda b: b.own_q((0, 5), rank=0, sequence=1), "sequence is 1; allowed: 0 to 0"),
        (lambda b: b.own_q((0, 5), rank=0, heads=(0, 5)), "heads is (0, 5); allowed: (first, past last) within 0 to 4"),
        (lambda b: b.transfer(src=0, dst=1), "transfer got nothing; allowed: one of q, kv, state"),
        (lambda b: b.transfer(q=0, kv=0, src=0, dst=1), "transfer got q, kv; allowed: one of q, kv, state"),
        (lambda b: b.transfer(kv=4, src=0, dst=1), "kv is 4; allowed: 0 to 3 (4 kv ids so far)"),
        (lambda b: b.transfer(kv=[0, 0], src=0, dst=1), "kv is [0, 0]; allowed: every id once"),
        (lambda b: b.transfer(kv=(2, 2), src=0, dst=1), "kv is (2, 2), an empty interval"),
        (lambda b: b.transfer(kv="0", src=0, dst=1), "kv is '0'; allowed: an id, a pair (first, past last), a range"),
        (lambda b: b.transfer(kv=0.5, src=0, dst=1), "kv is 0.5; allowed: an id, a pair (first, past last), a range"),
        (lambda b: b.transfer(kv=0, src=1, dst=0), "src is 1; allowed: 0, which holds kv 0, or a rank that pulled it"),
        (lambda b: b.transfer(kv=0, src=0, dst=0), "dst is 0; allowed: any rank but 0, which holds kv 0 already"),
        (lambda b: b.transfer(kv=0, src=0, dst=2), "dst is 2; allowed: 0 to 1 (2 ranks)"),
        (lambda b: b.transfer(state=0, src=0, dst=1), "state is 0; allowed: none, there are no state ids so far"),
        (lambda b: [b.transfer(kv=0, src=0, dst=1) for _ in "ab"], "kv 0 is transferred to rank 1 already"),
        (lambda b: b.compute(2, q=0, kv=0), "rank is 2; allowed: 0 to 1 (2 ranks)"),
        (lambda b: b.compute(0, q=4, kv=0), "q is 4; allowed: 0 to 3 (4 q ids so far)"),
        (lambda b: b.compute(0, q=(0, 2), kv=0), "q is (0, 2); allowed: 0 to 3 (4 q ids so far)"),
        (lambda b: b.compute(0, q=0, kv=[]), "kv is empty; allowed: one KV tile or more"),
        (lambda b: b.compute(0, q=0, kv=-1), "kv is -1; allowed: 0 to 3"),
        (lambda b: b.compute(1, q=0, kv=0), "rank is 1; allowed: 0, since rank 0 owns q 0 and with it the output"),
        (lambda b: b.compute(0, q=0, kv=0, into="q"), "into is 'q'; allowed: out, state"),
        (lambda b: b.compute(0, q=0, kv=0, role="chunk"), "role is 'chunk'; allowed in a prefill problem: self"),
        (lambda b: b.compute(0, q=0, kv=0, ready=(4, 1)), "ready is (4, 1); allowed: (tau_min, tau_max) with 1 <="),
        (lambda b: b.compute(0, q=0, kv=0, ready=(1, 2), into="state"), "into is 'state'; allowed with ready: out"),
        (lambda b: b.reduce(0, states=[]), "states is empty; allowed: one state or more"),
        (lambda b: b.reduce(0, states=0), "state is 0; allowed: none, there are no state ids so far"),
        (
            lambda b: b.reduce(0, q=3, states=b.compute(0, q=0, kv=0, into="state")),
            "state 0 is of q 0; allowed: states of q 3",
        ),
        (lambda b: (b.transfer(kv=0, src=0, dst=1), b.placed()), "placed() is for graphs without transfers"),
        (lambda _: GraphBuilder(PREFILL, world=0), "world is 0; allowed: a whole number, 1 or more"),
        (lambda _: GraphBuilder(PREFILL, world=1, tile=True), "tile is True; allowed: a whole number, 1 or more"),
    ],
)
def test_a_slip_is_named_at_the_call(call: Call, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        call(two_ranks())
    assert str(caught.value).startswith(message)


def test_a_refused_call_leaves_no_trace() -> None:
    b = two_ranks()
    before = print_graph(b.placed())
    slips: list[Call] = [
        lambda b: b.own_q((0, 10), rank=0),
        lambda b: b.transfer(kv=[0, 1], src=0, dst=1),
        lambda b: b.compute(0, q=0, kv=0, into="state", role="chunk"),
        lambda b: b.compute(0, q=0, kv=0, into="state", ready=(1, 2)),
    ]
    for slip in slips:
        with pytest.raises(GraphError):
            slip(b)
    assert print_graph(b.placed()) == before


def test_tiles_go_by_sequence_and_tasks_stay_in_one() -> None:
    b = GraphBuilder(PrefillProblem(lengths=(128, 128), **SHAPE), world=1)
    b.own((0, 128), rank=0)
    b.own((0, 128), rank=0, sequence=1)
    with pytest.raises(GraphError, match="sequence is 0; allowed: 1 or more, kv tiles go by sequence"):
        b.own_kv((0, 128), rank=0)
    with pytest.raises(GraphError, match="kv 1 is of sequence 1; allowed: tiles of sequence 0, which q 0 belongs to"):
        b.compute(0, q=0, kv=[0, 1])


def test_decode_computes_must_say_their_role() -> None:
    b = GraphBuilder(DecodeProblem(requests=((8, 1),), **SHAPE), world=1)
    b.own_q((0, 1), rank=0)
    b.own_kv((0, 8), rank=0)
    with pytest.raises(GraphError, match="role is None; allowed in a decode problem: chunk, history"):
        b.compute(0, q=0, kv=0)
