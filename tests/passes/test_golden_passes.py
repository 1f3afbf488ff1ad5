"""What every pass does to three small problems, as text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.mask import SlidingWindow
from liquidcp_compiler.ir.printer import print_graph
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem
from liquidcp_compiler.ir.verifier import verify
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.registry import parse_pipeline

SHAPE = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 64}

VARLEN = PrefillProblem(lengths=(300, 70), **SHAPE)
WINDOW = PrefillProblem(lengths=(450,), mask=SlidingWindow(left=100, right=0), **SHAPE)
MIXED = DecodeProblem(requests=((300, 3), (0, 5), (700, 20)), **SHAPE)

# name -> (problem, ranks, pipeline, passes that leave this graph as it is)
CASES: dict[str, tuple[Problem, int, str, list[str]]] = {
    "varlen": (
        VARLEN,
        4,
        "zigzag-all{tile=64},insert-transfers,coalesce,split-kv,order,insert-sync",
        ["split-kv"],
    ),
    "window": (
        WINDOW,
        2,
        "zigzag-all{tile=64},insert-transfers,coalesce,split-kv,order,insert-sync",
        ["coalesce", "split-kv"],
    ),
    "mixed": (
        MIXED,
        2,
        "dcp,insert-transfers,coalesce,split-kv{policy=fixed,num-splits=2},order,insert-sync",
        ["coalesce"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_graph_after_each_pass(case: str, golden: Callable[[str, str], None]) -> None:
    problem, world, pipeline, idle = CASES[case]
    graph = author(problem, loc="")
    text = print_graph(graph)
    golden(f"{case}-0-authored.txt", text)
    unchanged = []
    for i, p in enumerate(parse_pipeline(pipeline), 1):
        graph = p.apply(graph, PassContext(world=world))
        verify(graph)
        before, text = text, print_graph(graph)
        if text == before:
            unchanged.append(p.name)
        else:
            golden(f"{case}-{i}-{p.name}.txt", text)
    assert unchanged == idle
