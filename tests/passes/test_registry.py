"""Pipelines as text: every pass has a name, specs come back as printed, and a wrong name lists what there is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest

import liquidcp_compiler.passes
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.graph import PlannedGraph
from liquidcp_compiler.passes.base import Pass
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_compiler.passes.explicit import Explicit
from liquidcp_compiler.passes.insert_transfers import InsertTransfers
from liquidcp_compiler.passes.pipeline import Pipeline
from liquidcp_compiler.passes.registry import PASSES, parse_pipeline, pass_from_spec
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_compiler.passes.zigzag_all import ZigzagAll


@dataclass(frozen=True)
class Mine(Pass[PlannedGraph, PlannedGraph]):
    """A pass that is not in the package."""

    name: ClassVar[str] = "mine"
    deep: bool = False


def test_every_pass_of_the_package_has_a_name_here() -> None:
    found = set()
    for path in Path(liquidcp_compiler.passes.__file__).parent.glob("*.py"):
        module = import_module(f"liquidcp_compiler.passes.{path.stem}")
        found |= {c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Pass) and c is not Pass}
    assert {c for c in found if not inspect.isabstract(c)} == set(PASSES.values())
    assert all(name == cls.name for name, cls in PASSES.items())


def test_text_gives_the_passes_in_order() -> None:
    found = parse_pipeline("zigzag-all{tile=64}, insert-transfers ,coalesce{formation=static, min-factor=0.25}")
    assert found == (ZigzagAll(tile=64), InsertTransfers(), Coalesce(formation="static", min_factor=0.25))


@pytest.mark.parametrize("name", list(PASSES))
def test_every_pass_is_made_by_its_name_alone(name: str) -> None:
    assert pass_from_spec(name) == pass_from_spec(f" {name} {{ }} ") == PASSES[name]()


@pytest.mark.parametrize(
    "passes",
    [
        (ZigzagAll(), InsertTransfers()),
        (ZigzagAll(tile=64, legality="paper", kv_interleave=16), Coalesce(max_factor=1e3)),
        (Explicit(file="/a folder/places.json"), SplitKv(policy="fixed", num_splits=3)),
    ],
)
def test_what_a_pipeline_prints_comes_back(passes: tuple[Pass, ...]) -> None:
    assert parse_pipeline(Pipeline(passes=passes).spec) == passes


def test_a_quoted_value_may_hold_any_character() -> None:
    assert pass_from_spec(r'explicit{file="a,b}\".json"}') == Explicit(file='a,b}".json')


def test_a_pass_of_ones_own_can_be_named() -> None:
    known = PASSES | {Mine.name: Mine}
    assert parse_pipeline("mine{deep=true},coalesce", known) == (Mine(deep=True), Coalesce())
    assert parse_pipeline(Mine(deep=True).spec, known) == (Mine(deep=True),)
    with pytest.raises(InvalidField, match=r"mine\.deep is 'yes'; allowed: true, false"):
        pass_from_spec("mine{deep=yes}", known)


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        ("zigzag", "pass", ", ".join(PASSES)),
        ("zigzag-all{tyle=64}", "zigzag-all.tyle", "no such option; the options of zigzag-all are tile, legality, "),
        ("insert-sync{x=1}", "insert-sync.x", "no such option; insert-sync has no options"),
        ("zigzag-all{tile=64.5}", "zigzag-all.tile", "a whole number"),
        ("zigzag-all{tile=}", "zigzag-all.tile", "a whole number"),
        ("coalesce{min-factor=half}", "coalesce.min-factor", "a number"),
        ("coalesce{min-factor=nan}", "coalesce.min-factor", "a number"),
        ("explicit{sequences=0}", "explicit.sequences", "nothing in pipeline text; make this pass in Python"),
        ("zigzag-all{tile=0}", "tile", "whole numbers >= 1"),
        ("dcp{block-tokens=0}", "block_tokens", "whole numbers >= 1"),
        ("order{policy=lifo}", "policy", "fifo, longest-first"),
        ("zigzag-all{tile=1,tile=2}", "zigzag-all.tile", "every option once"),
        ("", "pipeline", "the name of a pass at column 1, found the end"),
        ("order,", "pipeline", "the name of a pass at column 7, found the end"),
        ("order insert-sync", "pipeline", "a comma or the end at column 7, found 'insert-sync'"),
        ("order}", "pipeline", "a comma or the end at column 6, found '}'"),
        ("zigzag-all{tile", "pipeline", "'=' after tile at column 16, found the end"),
        ("zigzag-all{tile=64", "pipeline", "a comma or '}' at column 19, found the end"),
        ("zigzag-all{=64}", "pipeline", "an option of zigzag-all at column 12, found '=64}'"),
        (r'explicit{file="\q"}', "pipeline", "a JSON string at column 15"),
        ('explicit{file="a}', "pipeline", "a comma or '}' at column 15"),
    ],
)
def test_errors_name_the_field_and_list_what_there_is(text: str, field: str, allowed: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_pipeline(text)
    assert caught.value.field == field
    assert caught.value.allowed.startswith(allowed)


@pytest.mark.parametrize("text", ["", "order,insert-sync"])
def test_one_pass_is_one_pass(text: str) -> None:
    with pytest.raises(InvalidField):
        pass_from_spec(text)


PAGE = (Path(__file__).parents[2] / "docs" / "passes.md").read_text()


def test_the_page_lists_every_pass() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE) == list(PASSES)


def test_the_page_s_pass_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "longest_first.py").write_text(code)
    done = subprocess.run(
        [sys.executable, tmp_path / "longest_first.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stderr, done.stdout) == ("", output)
