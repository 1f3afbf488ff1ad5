"""``liquidcp place``: what a placement makes of a batch of lengths, before anything is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from liquidcp_compiler.cli.inputs import JsonOption, WorldOption
from liquidcp_compiler.cli.output import Output
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem_fields import MAX_TOKENS, MISSING, check_total

if TYPE_CHECKING:
    from liquidcp_compiler.passes.placement import Placer
    from liquidcp_compiler.placement_report import PlacementReport

DEFAULT = "buddy-ring"
#: For ``app.command``: a negative length reaches the command, which says what is wrong with it.
CONTEXT = {"ignore_unknown_options": True}

COMPARE_HEADINGS = ("placement", "D_T %", "D_W %", "tolerances", "shards", "groups", "proxy tokens", "proxy bytes")


def place_command(
    lengths: Annotated[list[str], typer.Argument(metavar="L1 L2 ...", help="Tokens of every sequence.")],
    world: WorldOption = None,
    placement: Annotated[
        str | None,
        typer.Option("--placement", metavar="NAME", help=f"A placement, as name{{option=value}}. Default: {DEFAULT}."),
    ] = None,
    legality: Annotated[
        str | None,
        typer.Option("--legality", metavar="tile|paper", help="Which splits are legal: by tiles, or 256 x degree."),
    ] = None,
    target_tokens: Annotated[
        int | None, typer.Option("--target-tokens", metavar="T", help="megatron-hybrid: tokens of a rank to aim at.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All placements side by side.")] = False,
    advise: Annotated[bool, typer.Option("--advise", help="Say whether fewer ranks would be faster.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the placement (.png, .svg, .pdf).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Place a batch: which ranks share each sequence, how balanced that is, what it moves."""
    from liquidcp_compiler.plot import check_suffix

    out = Output(as_json)
    tokens, ranks = _lengths(lengths), _world(world)
    options = {name: v for name, v in (("legality", legality), ("target_tokens", target_tokens)) if v is not None}
    if plot is not None:
        check_suffix(plot)
    if compare:
        for name, given in (("--placement", placement), ("--plot", plot), ("--advise", advise or None)):
            if given is not None:
                raise InvalidField(name, str(given), "nothing beside --compare, which shows all placements")
        _compare(out, tokens, ranks, options)
        return
    placer = _placer(DEFAULT if placement is None else placement, options)
    with out.working("placing"):
        report = _report(placer, tokens, ranks)
    data = report.to_json()
    _print(out, report)
    if advise:
        from liquidcp_compiler.placement_advice import advise as ask

        advice = ask(tokens, ranks, placer)
        data["advice"] = advice.to_json()
        out.line(advice.to_text())
    if plot is not None:
        data["plot"] = str(report.plot(plot))
        out.line(f"picture   {plot}")
    out.result(data)


def _lengths(given: list[str]) -> list[int]:
    tokens = []
    for i, text in enumerate(given):
        if text.startswith("--"):
            raise typer.BadParameter(f"no such option: {text}")
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_TOKENS))
        if not digits or not 1 <= int(text) <= MAX_TOKENS:
            raise InvalidField(f"lengths[{i}]", text, f"whole numbers of tokens from 1 to {MAX_TOKENS}")
        tokens.append(int(text))
    check_total("lengths", tokens)
    return tokens


def _world(world: int | None) -> int:
    from liquidcp_compiler.driver import check_world

    if world is None:
        raise InvalidField("--world", MISSING, "a whole number of ranks", "Give --world N")
    try:
        return check_world(world)
    except InvalidField as error:
        raise InvalidField("--world", world, error.allowed) from None


def _placers() -> dict[str, type[Placer]]:
    """The placements that need lengths only."""
    from liquidcp_compiler.driver import PLACEMENTS
    from liquidcp_compiler.passes.placement import Placer

    return {name: cls for name, cls in PLACEMENTS.items() if issubclass(cls, Placer)}


def _options_of(placer: Any) -> set[str]:
    """Names of the options of a placement, or of its class."""
    return {f.name for f in fields(placer)}


def _placer(text: str, options: Mapping[str, Any]) -> Placer:
    """A placement from its name and options. Raises InvalidField for an option that it has not, or has twice."""
    from liquidcp_compiler.passes.registry import pass_from_spec

    name, known = text.partition("{")[0].strip(), _placers()
    if name not in known:
        raise InvalidField("--placement", text, ", ".join(known))
    placer: Any = pass_from_spec(text)
    defaults = {f.name: f.default for f in fields(placer)}
    for option, value in options.items():
        flag = "--" + option.replace("_", "-")
        if option not in defaults:
            raise InvalidField(flag, value, f"nothing: {name} has no such option")
        if getattr(placer, option) != defaults[option]:
            raise InvalidField(flag, value, f"nothing: --placement says {getattr(placer, option)} already")
    return replace(placer, **options)


def _report(placer: Placer, lengths: list[int], world: int) -> PlacementReport:
    from liquidcp_compiler.placement_report import PlacementReport

    names = ("token_tolerance", "work_tolerance")
    tolerances = {name: getattr(placer, name) for name in names if hasattr(placer, name)}
    try:
        placement = placer.place(lengths, world)
    except InvalidField as error:
        if error.field != "cp_size":
            raise
        raise InvalidField("--world", world, error.allowed, error.hint) from None
    return PlacementReport(placement=placement, **tolerances)


def _print(out: Output, report: PlacementReport) -> None:
    for line in report.summary_lines():
        out.line(line)
    for cells in (report.rank_cells(), report.sequence_cells()):
        out.table(cells[0], cells[1:])
    left_out = len(report.placement.sequences) - len(report.sequence_cells()) + 1
    if left_out:
        out.line(f"and {left_out} shorter; --json has all")


def _compare(out: Output, lengths: list[int], world: int, options: Mapping[str, Any]) -> None:
    """A row a placement; an option goes to those that have it. One that refuses the batch says so in its row."""
    from liquidcp_compiler.report import format_bytes

    rows, refused, data = [], [], []
    for name, cls in _placers().items():
        own = {option: v for option, v in options.items() if option in _options_of(cls)}
        placer = _placer(name, own)  # a bad option is no matter of the batch: it ends the command
        try:
            with out.working(f"placing with {name}"):
                report = _report(placer, lengths, world)
        except InvalidField as error:
            refused.append(f"{name}: {error}")
            data.append({"placement": name, "error": str(error)})
            continue
        data.append(report.to_json())
        met = "met" if report.violation == 0 else f"V {report.violation:.2f}"
        loads = [f"{report.token_imbalance:.2f}", f"{report.work_imbalance:.2f}", met]
        counts = [str(report.num_shards), str(report.num_groups), f"{report.comm_tokens:.0f}"]
        rows.append([name, *loads, *counts, format_bytes(report.comm_bytes)])
    out.table(COMPARE_HEADINGS, rows, left=(0, 3))
    for line in refused:
        out.line(f"refused by {line}")
    out.result({"world": world, "lengths": lengths, "placements": data})
