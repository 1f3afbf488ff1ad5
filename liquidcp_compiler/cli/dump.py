"""``liquidcp dump``: the graph's text, the plan's tables, the kernel's source."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from liquidcp_compiler.cli.inputs import (
    DeterministicOption,
    JsonOption,
    OrderOption,
    PassesOption,
    PlacementOption,
    ProblemArgument,
    Work,
    WorldOption,
    load_work,
)
from liquidcp_compiler.cli.output import Output


class KernelPath(StrEnum):
    """How a kernel computes: ``ir.kernel_path.PATHS``."""

    PORTABLE = "portable"
    HOPPER = "hopper"


class What(StrEnum):
    """What can be dumped."""

    GRAPH = "graph"
    PLAN = "plan"
    CUDA = "cuda"


def dump(
    problem: ProblemArgument,
    what: Annotated[list[What], typer.Option("--what", help="What to write; may be given several times.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder, made if missing.")],
    world: WorldOption = None,
    placement: PlacementOption = None,
    passes: PassesOption = None,
    order: OrderOption = None,
    deterministic: DeterministicOption = False,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="SM", help="Write and compile the CUDA for it, e.g. sm_90a; repeatable."),
    ] = None,
    path: Annotated[
        KernelPath | None, typer.Option("--path", help="How the CUDA computes; else the best that the arch has.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the graph as text, the plan as a file and as text, or the CUDA as one self-contained file."""
    from liquidcp_compiler.cli.kernel_output import print_kernels, write_kernels
    from liquidcp_compiler.errors import InvalidField

    if arch and What.CUDA not in what:
        raise InvalidField("--arch", arch, "only with --what cuda")
    if path and What.CUDA not in what:
        raise InvalidField("--path", path.value, "only with --what cuda")
    out = Output(as_json)
    with out.working("planning"):
        work = load_work(problem, world, placement, passes, order, deterministic)
    data: dict[str, Any] = {}
    if What.GRAPH in what:
        data["graph"] = _dump_graph(work, output)
        out.line(f"graph     {data['graph']}")
    if What.PLAN in what:
        data |= _dump_plan(work, output)
        out.line(f"plan      {data['plan']}\ntables    {data['tables']}")
    if What.CUDA in what:
        data["cuda"] = write_kernels(work.plan.spec, output, arch or [], out, path.value if path else None)
        print_kernels(data["cuda"], out)
    out.result(data)


def _dump_graph(work: Work, folder: Path) -> str:
    from liquidcp_compiler.errors import InvalidField
    from liquidcp_compiler.ir.atomic_file import write_file
    from liquidcp_compiler.ir.printer import print_graph

    if work.graph is None:
        raise InvalidField("--what", "graph", "plan, cuda", "A plan file holds no graph: give the problem file")
    return str(write_file(folder / "graph.txt", print_graph(work.graph)))


def _dump_plan(work: Work, folder: Path) -> dict[str, str]:
    from liquidcp_compiler.ir.atomic_file import write_file
    from liquidcp_compiler.report import plan_text

    saved = work.plan.save(folder / "plan.npz")
    return {"plan": str(saved), "tables": str(write_file(folder / "plan.txt", plan_text(work.plan)))}
