"""From the arguments of a command to a plan: problem files, plan files, placements and pipelines by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem_fields import MISSING

if TYPE_CHECKING:
    from liquidcp_compiler.ir.graph import SyncedGraph
    from liquidcp_compiler.ir.plan import Plan

ProblemArgument = Annotated[
    Path, typer.Argument(metavar="PROBLEM", help="A problem file (JSON), or a plan file that `plan -o` wrote.")
]
WorldOption = Annotated[int | None, typer.Option("--world", metavar="N", help="Number of ranks.")]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        "--placement",
        metavar="NAME",
        help="zigzag-all, explicit{file=F} or dcp, with options as zigzag-all{tile=64}. "
        "Default: zigzag-all for prefill, dcp for decode.",
    ),
]
PassesOption = Annotated[
    str | None, typer.Option("--passes", metavar="A,B,C", help="The whole pipeline, instead of the default one.")
]
OrderOption = Annotated[
    str | None,
    typer.Option("--order", metavar="NAME", help="Order of a rank's computes: fifo or longest-first. Default: fifo."),
]
DeterministicOption = Annotated[
    bool, typer.Option("--deterministic", help="Static formation, merges in plan order: bit-identical runs.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A plan and, where it was made just now, the graph it was packed from."""

    plan: Plan
    graph: SyncedGraph | None
    seconds: dict[str, float]


def load_work(
    path: Path,
    world: int | None,
    placement: str | None,
    passes: str | None,
    order: str | None,
    deterministic: bool,
) -> Work:
    """The plan that a command works on. Raises LiquidCPError."""
    from liquidcp_compiler.driver import compile_plan
    from liquidcp_compiler.ir.author import author
    from liquidcp_compiler.ir.plan_file import is_plan_file
    from liquidcp_compiler.ir.problem import load_problem
    from liquidcp_compiler.passes.registry import parse_pipeline

    if is_plan_file(path):
        return _saved(path, world, placement, passes, order, deterministic)
    problem = load_problem(path)
    if world is None:
        raise InvalidField("--world", MISSING, "a whole number of ranks", "Only a plan file says it itself")
    check_world_option(world)
    if passes is not None and (placement is not None or order is not None or deterministic):
        others = "--placement, --order or --deterministic"
        raise InvalidField("--passes", passes, f"nothing beside {others}: it says everything")
    done = compile_plan(
        author(problem, loc=path.name),
        world,
        placement=None if placement is None else read_placement(placement),
        passes=None if passes is None else parse_pipeline(passes),
        order=order,
        deterministic=deterministic,
    )
    return Work(plan=done.plan, graph=done.graph, seconds=done.seconds)


def check_world_option(world: int) -> None:
    """Raises InvalidField, naming the option, for a number of ranks that is not allowed."""
    from liquidcp_compiler.driver import check_world

    try:
        check_world(world)
    except InvalidField as error:
        raise InvalidField("--world", world, error.allowed) from None


def read_placement(text: str):
    """A placement pass from its name and options. Raises InvalidField."""
    from liquidcp_compiler.driver import PLACEMENTS
    from liquidcp_compiler.passes.registry import pass_from_spec

    if text.partition("{")[0].strip() not in PLACEMENTS:
        raise InvalidField("--placement", text, ", ".join(PLACEMENTS))
    return pass_from_spec(text)


def _saved(
    path: Path, world: int | None, placement: str | None, passes: str | None, order: str | None, deterministic: bool
) -> Work:
    from liquidcp_compiler.ir.plan_file import load_plan

    plan = load_plan(path)
    if world not in (None, plan.world):
        raise InvalidField("--world", world, f"{plan.world}, the ranks of the plan in {path}")
    given = {"placement": placement, "passes": passes, "order": order, "deterministic": deterministic or None}
    for name, value in given.items():
        if value is not None:
            raise InvalidField(f"--{name}", value, "nothing: the plan file was made already")
    return Work(plan=plan, graph=None, seconds={})
