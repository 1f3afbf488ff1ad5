"""Pipelines: order, verification, dumps, and what the driver leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from liquidcp_compiler.driver import compile_plan, passes_for, plan
from liquidcp_compiler.errors import InvalidField, PassError, VerificationError
from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.graph import PlannedGraph
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_compiler.passes.insert_sync import InsertSync
from liquidcp_compiler.passes.insert_transfers import InsertTransfers
from liquidcp_compiler.passes.pipeline import Pipeline
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from tests.graphs import decode_graph, prefill_graph, prefill_problem, zigzag_passes


@dataclass(frozen=True)
class DropLastTask(Pass[PlannedGraph, PlannedGraph]):
    """A pass with a fault."""

    name: ClassVar[str] = "drop-last-task"

    def apply(self, graph: PlannedGraph, context: PassContext) -> PlannedGraph:
        return graph.with_changes(tasks=graph.tasks.take(np.arange(len(graph.tasks) - 1)))


def faulty() -> tuple:
    first, transfers, *rest = zigzag_passes()
    return (first, transfers, DropLastTask(), *rest)


def test_the_faulty_pass_is_named():
    with pytest.raises(VerificationError, match=r"outputs-at-home \(planned\) after pass drop-last-task") as caught:
        compile_plan(prefill_problem(), 2, passes=faulty(), verify="each")
    assert caught.value.pass_name == "drop-last-task"


def test_final_verification_names_the_last_pass_and_off_looks_away():
    with pytest.raises(VerificationError, match="after pass insert-sync"):
        compile_plan(prefill_problem(), 2, passes=faulty(), verify="final")
    compile_plan(prefill_problem(), 2, passes=faulty(), verify="off")
    with pytest.raises(InvalidField, match="verify is 'maybe'; allowed: each, final, off"):
        compile_plan(prefill_problem(), 2, verify="maybe")


def test_every_pass_is_timed_and_dumped(tmp_path):
    context = PassContext(world=2)
    pipeline = Pipeline(passes=zigzag_passes(), dump=str(tmp_path))
    _, seconds = pipeline.run(author(prefill_problem()), context)
    names = ["zigzag-all", "insert-transfers", "coalesce", "split-kv", "order", "insert-sync"]
    assert list(seconds) == names
    files = sorted(f.name for f in tmp_path.iterdir())
    assert files == ["00-authored.txt", *(f"{i:02d}-{n}.txt" for i, n in enumerate(names, 1))]
    assert (tmp_path / "06-insert-sync.txt").read_text().startswith("liquidcp-graph 1 synced")


def test_static_formation_undoes_readiness():
    from liquidcp_compiler.ir.layout import Formation

    synced = prefill_graph()
    planned = synced.advance(PlannedGraph)
    context = PassContext(world=4)
    static = Coalesce(formation="static").apply(planned, context)
    assert (planned.tasks.formation == Formation.READY).any()
    assert not (static.tasks.formation == Formation.READY).any()
    assert static.tasks.tau_max.max() == 0
    again = Coalesce().apply(static, context)
    assert (again.tasks.tau_min == planned.tasks.tau_min).all()


def test_the_pipeline_is_text():
    assert Pipeline(passes=zigzag_passes(tile=32)).spec == (
        "zigzag-all{tile=32},insert-transfers,coalesce,split-kv,order,insert-sync"
    )
    assert plan(prefill_problem(), 2).pipeline.startswith("zigzag-all,insert-transfers")


def test_passes_refuse_graphs_of_the_wrong_stage():
    context = PassContext(world=4)
    authored, synced = author(prefill_problem()), prefill_graph()
    for p, graph in (
        (InsertTransfers(), authored),
        (InsertTransfers(), synced),
        (Coalesce(), authored),
        (InsertSync(), synced),
        (ZigzagAll(), synced),
    ):
        with pytest.raises(PassError, match=p.name):
            p.apply(graph, context)  # type: ignore[arg-type]


def test_a_graph_goes_on_where_it_stands():
    synced = prefill_graph()
    assert passes_for(synced, None) == ()
    assert compile_plan(synced, 4).plan.fingerprint == compile_plan(prefill_graph(), 4).plan.fingerprint
    with pytest.raises(InvalidField, match="cp_size is 2; allowed: 4"):
        compile_plan(synced, 2)
    with pytest.raises(InvalidField, match="placement"):
        compile_plan(synced, 4, placement="zigzag-all")
    placed = ZigzagAll(tile=32).apply(author(prefill_problem()), PassContext(world=4))
    assert compile_plan(placed, 4, verify="each").plan.fingerprint == compile_plan(synced, 4).plan.fingerprint


def test_a_pipeline_that_stops_short():
    with pytest.raises(PassError, match="the last pass must be insert-sync"):
        compile_plan(prefill_problem(), 2, passes=zigzag_passes()[:-1])
    with pytest.raises(InvalidField, match="either placement or passes"):
        compile_plan(prefill_problem(), 2, passes=zigzag_passes(), placement="zigzag-all")


def test_fingerprints_tell_plans_apart():
    made = {plan(prefill_problem(), w).fingerprint for w in (1, 2, 3, 4)}
    made |= {plan(prefill_problem([300, 71]), 2).fingerprint, plan(prefill_problem(softmax_scale=0.5), 2).fingerprint}
    made |= {plan(prefill_problem(), 2, deterministic=True).fingerprint}
    assert len(made) == 7
    assert plan(prefill_problem(), 4).fingerprint == plan(prefill_problem(), 4).fingerprint


def test_dependencies_for_analysis():
    graph = decode_graph()
    nx = graph.to_networkx()
    assert len(nx) == len(graph.tasks)
    assert all(kind in ("transfer", "compute", "reduction") for _, kind in nx.nodes(data="kind"))
    final = [n for n in nx if "into out" in nx.nodes[n]["name"]]
    assert final
    assert all(nx.in_degree(n) > 0 for n in final)


def test_tau_follows_the_half_shard():
    """Equation 3: tau_min = H / 2 and tau_max = 4 H, H = tiles / (2 g)."""
    made = plan(prefill_problem([32 * 64]), 4, placement=ZigzagAll(tile=32))
    rows = made.tables["rows"]
    assert set(rows["tau_min"].tolist()) == {4}
    assert set(rows["tau_max"].tolist()) == {32}
    short = plan(prefill_problem([10]), 4).tables["rows"]
    assert (short["tau_min"][0], short["tau_max"][0]) == (1, 4)
