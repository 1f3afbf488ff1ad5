"""What ``plan`` and the CPU world say to arguments that a type checker would not let through, and to promises that a
graph does not keep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from liquidcp_compiler import GraphBuilder
from liquidcp_compiler.cli import main
from liquidcp_compiler.driver import compile_plan
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import (
    InvalidField,
    OutOfResources,
    ParseError,
    PassError,
    PlanError,
    TensorError,
    VerificationError,
)
from liquidcp_compiler.ir.mask import Causal
from liquidcp_compiler.ir.parser import parse_graph
from liquidcp_compiler.ir.printer import print_graph
from liquidcp_compiler.ir.verifier import verify
from liquidcp_compiler.passes.base import Pass
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.explicit import load_places
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime import CostModel, cpu
from liquidcp_runtime.sharding import shard_q
from tests.graphs import decode_graph, decode_problem, prefill_graph, prefill_problem, zigzag_passes


@pytest.mark.parametrize("problem", [None, {}, "prefill"])
def test_only_problems_and_graphs_are_planned(problem: Any) -> None:
    with pytest.raises(InvalidField, match="^problem is .*allowed: a PrefillProblem, a DecodeProblem, or a graph"):
        make_plan(problem, 2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("passes", "zigzag-all,order"),
        ("passes", ("order",)),
        ("placement", 3),
        ("placement", Causal()),
        ("deterministic", "no"),
        ("workspace_limit", "1 GB"),
        ("workspace_limit", -1),
        ("workspace_limit", 1.5),
    ],
)
def test_options_of_other_types_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidField, match=f"^{option} is "):
        make_plan(prefill_problem(), 2, **{option: value})


def test_numpy_numbers_are_ranks() -> None:
    assert make_plan(prefill_problem(), np.int64(2)).world == 2  # type: ignore[arg-type]
    assert cpu(np.int64(2)).world_size == 2  # type: ignore[arg-type, union-attr]
    with pytest.raises(InvalidField, match="world_size is True"):
        cpu(True)


def test_deterministic_is_refused_where_it_cannot_be_kept() -> None:
    with pytest.raises(InvalidField, match="deterministic is True.*in the order in which they arrive"):
        make_plan(prefill_problem(), 2, passes=zigzag_passes(), deterministic=True)
    with pytest.raises(InvalidField, match="deterministic is True.*in the order in which they arrive"):
        make_plan(prefill_graph(world=2), 2, deterministic=True)
    make_plan(prefill_problem(), 2, passes=zigzag_passes(formation="static"), deterministic=True)
    make_plan(decode_graph(), 2, deterministic=True)


def test_several_writers_of_one_output_are_not_deterministic() -> None:
    b = GraphBuilder(prefill_problem((384,)), world=1)
    b.own((0, 384), rank=0)
    for q in range(3):
        for kv in range(q + 1):
            b.compute(0, q=q, kv=kv)
    graph = b.finish()
    make_plan(graph, 1)
    with pytest.raises(InvalidField, match="several tasks merge into out 1"):
        make_plan(graph, 1, deterministic=True)


def test_workspace_limit_is_the_plans_own_number_and_holds_without_verifier() -> None:
    need = make_plan(prefill_problem(), 3).workspace_bytes()
    for verify_mode in ("each", "off"):
        make_plan(prefill_problem(), 3, workspace_limit=need, verify=verify_mode)
        with pytest.raises(OutOfResources, match=f"workspace_limit.*{need} needed, {need - 1} available"):
            make_plan(prefill_problem(), 3, workspace_limit=need - 1, verify=verify_mode)


def test_lengths_beyond_32_bits_are_refused_before_any_table_is_made() -> None:
    with pytest.raises(OutOfResources, match="tokens of a sequence"):
        make_plan(prefill_problem((2**40,)), 2)


def test_regions_of_a_hundred_million_tokens_are_counted_exactly() -> None:
    from liquidcp_compiler.ir.author import author

    verify(author(prefill_problem((100_000_001,))))


def test_numbers_of_passes_fit_the_tables() -> None:
    for make in (
        lambda n: ZigzagAll(tile=n),
        lambda n: ZigzagAll(kv_interleave=n),
        lambda n: Dcp(tile=n),
        lambda n: Dcp(block_tokens=n),
        lambda n: SplitKv(policy="fixed", num_splits=n),
        lambda n: decode_problem(interleave=n),
    ):
        make(2**31 - 1)
        for bad in (2**31, 10**30, -1, "8", 1.5):
            with pytest.raises(InvalidField):
                make(bad)
    with pytest.raises(InvalidField, match="max_factor"):
        Coalesce(max_factor=float("inf"))
    plan = make_plan(
        prefill_problem(), 2, passes=(*zigzag_passes()[:2], Coalesce(max_factor=1e30), *zigzag_passes()[3:])
    )
    assert plan.tables["rows"]["tau_max"].max() == 2**31 - 1


def test_thresholds_and_counts_of_a_text_that_no_table_holds() -> None:
    text = print_graph(prefill_graph(world=2))
    line = next(x for x in text.splitlines() if "ready(" in x)
    wide = (
        line[: line.index("ready(")]
        + "ready(4294967296, 4294967297)"
        + line[line.index(")", line.index("ready(")) + 1 :]
    )
    with pytest.raises(VerificationError, match="formation-legal"):
        verify(parse_graph(text.replace(line, wide, 1)))
    text = print_graph(decode_graph())
    line = next(x for x in text.splitlines() if x.startswith("state "))
    first = line.split()[1].split(":")[0]
    with pytest.raises(ParseError, match="a line declares at most"):
        parse_graph(text.replace(line, f"state {first}:4294967296 q 0", 1))


def test_placement_files_that_are_not_lists_of_ranks(tmp_path) -> None:
    path = tmp_path / "places.json"
    for value in (5, "01", [0.5], [[0]]):
        path.write_text(json.dumps({"format": 1, "sequences": [{"ranks": value}]}))
        with pytest.raises(InvalidField, match=r"sequences\[0\]\.ranks"):
            load_places(str(path))


def inputs() -> tuple[Any, torch.Tensor, torch.Tensor]:
    problem = prefill_problem((40,))
    return make_plan(problem, 2), torch.zeros(40, 4, 16).bfloat16(), torch.zeros(40, 2, 16).bfloat16()


def test_expanded_results_are_refused_since_all_heads_would_share_a_row() -> None:
    plan, q, k = inputs()
    with pytest.raises(TensorError, match="lse: strides"):
        cpu(2).run(plan, q, k, k, lse=torch.empty(1, 40).expand(4, 40))
    with pytest.raises(TensorError, match="out: strides"):
        cpu(2).run(plan, q, k, k, out=q[:1].expand(40, 4, 16))
    with pytest.raises(TensorError, match="q: layout"):
        cpu(2).run(plan, q.float().to_sparse().bfloat16(), k, k)


def test_what_is_no_plan_seed_or_profile() -> None:
    plan, q, k = inputs()
    with pytest.raises(PlanError, match="plan is a PrefillProblem"):
        cpu(2).run(plan.problem, q, k, k)  # type: ignore[arg-type]
    for option in ({"seed": -1}, {"seed": "a"}, {"seed": 1.5}, {"profile": []}):
        with pytest.raises(InvalidField, match=next(iter(option))):
            cpu(2).run(plan, q, k, k, **option)  # type: ignore[arg-type]


def test_command_line_says_one_line(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(prefill_problem((40,)).to_json()))
    world = ["--world", "2"]
    for arguments, said in (
        (["run", str(path), *world, "--seed", str(10**30)], "seed"),
        (["plan", str(path), *world, "--placement", "zigzag-all{tile=99999999999999999999}"], "tile is 9999"),
        (["plan", str(path), *world, "-o", str(tmp_path)], f"{tmp_path}: a folder"),
    ):
        assert main(arguments) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1
        assert said in errors


def test_a_batch_that_memory_does_not_hold(tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(prefill_problem((40,)).to_json()))

    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("no room for 64 GiB")

    monkeypatch.setattr("liquidcp_compiler.driver.compile_plan", full)
    assert main(["plan", str(path), "--world", "2"]) == 2
    assert "memory: no room for 64 GiB" in capsys.readouterr().err


@dataclass(frozen=True)
class Forgetful(Pass):
    name: ClassVar[str] = "forgetful"

    def apply(self, graph: Any, context: Any) -> Any:
        """Does its work and returns nothing."""


def test_a_pass_that_returns_nothing_is_named() -> None:
    with pytest.raises(PassError, match="pass forgetful: returned a NoneType"):
        make_plan(prefill_problem(), 2, passes=(ZigzagAll(), Forgetful(), *zigzag_passes()[1:]))


def test_costs_and_ranks_that_mean_nothing() -> None:
    for bad in ({"link_bytes_per_us": 0.0}, {"tile_us": -1.0}, {"task_us": float("nan")}):
        with pytest.raises(InvalidField, match=next(iter(bad))):
            CostModel(**bad)
    plan, q, _ = inputs()
    for rank in (2, -1):
        with pytest.raises(InvalidField, match="rank is"):
            shard_q(plan, rank, q)


def test_compiled_keeps_the_graph() -> None:
    assert compile_plan(prefill_problem(), 2).graph.world == 2
