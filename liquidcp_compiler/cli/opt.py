"""``liquidcp opt``: apply passes to a graph's text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from liquidcp_compiler.cli.inputs import JsonOption, WorldOption, check_world_option
from liquidcp_compiler.cli.output import Output
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem_fields import MISSING


def opt(
    graph: Annotated[str, typer.Argument(metavar="GRAPH", help="A file with a graph's text; - is standard input.")],
    passes: Annotated[str, typer.Option("--passes", metavar="A,B,C", help="Passes in order, as name{option=value}.")],
    world: WorldOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the text there instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a graph's text, apply passes, verify, and print the text."""
    from liquidcp_compiler.ir.atomic_file import write_file
    from liquidcp_compiler.ir.graph import TaskGraph
    from liquidcp_compiler.ir.parser import parse_graph
    from liquidcp_compiler.ir.printer import print_graph
    from liquidcp_compiler.passes.base import PassContext
    from liquidcp_compiler.passes.pipeline import Pipeline
    from liquidcp_compiler.passes.registry import parse_pipeline

    out = Output(as_json)
    chosen = parse_pipeline(passes)
    before = parse_graph(_read(graph))
    if isinstance(before, TaskGraph):
        if world not in (None, before.world):
            raise InvalidField("--world", world, f"{before.world}, as the graph says")
        world = before.world
    if world is None:
        raise InvalidField("--world", MISSING, "a whole number of ranks, which an authored graph does not say itself")
    check_world_option(world)
    with out.working("applying passes"):
        after, seconds = Pipeline(passes=chosen).run(before, PassContext(world=world))
    text = print_graph(after)
    if output is not None:
        write_file(output, text)
        out.line(f"graph     {output}")
    elif not as_json:
        sys.stdout.write(text)
    out.result({"stage": str(after.stage), "seconds": seconds, "text": text})


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_bytes().decode("utf-8")
    except OSError as error:
        raise InvalidField("graph file", name, "a readable file", error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise InvalidField("graph file", name, "text in UTF-8", str(error)) from error
