"""``liquidcp plan``: who owns what, and what every rank does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from liquidcp_compiler.cli.inputs import (
    DeterministicOption,
    JsonOption,
    OrderOption,
    PassesOption,
    PlacementOption,
    ProblemArgument,
    WorldOption,
    load_work,
)
from liquidcp_compiler.cli.output import Output


def plan_command(
    problem: ProblemArgument,
    world: WorldOption = None,
    placement: PlacementOption = None,
    passes: PassesOption = None,
    order: OrderOption = None,
    deterministic: DeterministicOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the region map (.png, .svg, .pdf).")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Save the plan.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a batch: who owns what, tasks a rank, bytes moved, balance."""
    from liquidcp_compiler import report
    from liquidcp_compiler.plot import check_suffix, region_map, save_figure

    out = Output(as_json)
    if plot is not None:
        check_suffix(plot)
    with out.working("planning"):
        work = load_work(problem, world, placement, passes, order, deterministic)
    data = report.summarize(work.plan) | {"seconds": work.seconds}
    # Files first: an output that cannot be written is the only thing that is said then.
    if output is not None:
        data["plan_file"] = str(work.plan.save(output))
    if plot is not None:
        with out.working("drawing"):
            data["plot"] = str(save_figure(region_map(work.plan), plot))
    for line in report.summary_lines(work.plan):
        out.line(line)
    out.table(list(report.RANK_COLUMNS.values()), report.rank_cells(work.plan))
    for label, name in (("plan", "plan_file"), ("picture", "plot")):
        if name in data:
            out.line(f"{label:<9} {data[name]}")
    out.result(data)
