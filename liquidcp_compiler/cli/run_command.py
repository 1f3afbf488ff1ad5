"""``liquidcp run``: run a plan and compare with dense attention in float64."""

from __future__ import annotations

import io
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from liquidcp_compiler.cli.timeline_output import print_timeline, timeline_data

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from liquidcp_compiler.cli.tensors import Inputs
    from liquidcp_compiler.ir.plan import Plan
    from liquidcp_runtime.reference import ErrorReport
    from liquidcp_runtime.timeline import Timeline


class On(StrEnum):
    """Worlds by name."""

    CPU = "cpu"
    LOOPBACK = "loopback"
    SOLO = "solo"


#: Largest error of lse: contracts of the interpreter and of a GPU.
LSE_TOLERANCE = {On.CPU: 1e-5, On.LOOPBACK: 1e-3, On.SOLO: 1e-3}


def run_command(
    problem: ProblemArgument,
    world: WorldOption = None,
    placement: PlacementOption = None,
    passes: PassesOption = None,
    order: OrderOption = None,
    deterministic: DeterministicOption = False,
    on: Annotated[
        On,
        typer.Option("--on", help="cpu: interpreter; loopback: all ranks on one GPU; solo: one rank after another."),
    ] = On.CPU,
    tensors: Annotated[
        Path | None, typer.Option("--tensors", metavar="FILE", help="q, k, v, sinks from .pt or .npz. Default: random.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of random tensors and of the interleaving.")
    ] = 0,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Which interleavings the interpreter samples. Default: random."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Save out and lse as a .pt file.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Save a timeline for ui.perfetto.dev (JSON).")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Run a plan and print its errors beside those of torch's own attention; exit 1 if they are too large."""
    from liquidcp_compiler.cli.tensors import load_tensors, random_tensors
    from liquidcp_compiler.errors import InvalidField
    from liquidcp_runtime.reference import error_report

    out = Output(as_json)
    if output is not None and output.suffix.lower() not in (".pt", ".pth"):
        raise InvalidField("--output", str(output), "a file name that ends in .pt, .pth")
    with out.working("planning"):
        plan = load_work(problem, world, placement, passes, order, deterministic).plan
    given = random_tensors(plan.problem, seed) if tensors is None else load_tensors(tensors, plan.problem)
    with out.working(f"running on {plan.world} ranks"):
        result, lse, timeline = run_on(on, plan, given, seed, profile, trace is not None)
    q, k, v, sinks = given
    with out.working("computing the dense reference in float64"):
        report = error_report(plan.problem, result, lse, q, k, v, sinks)
    data = error_data(report, LSE_TOLERANCE[on]) | {"on": str(on), "world": plan.world, "seed": seed}
    # Files first: an output that cannot be written is the only thing that is said then.
    if output is not None:
        data["output"] = _save(output, result, lse)
    if trace is not None and timeline is not None:
        with out.working("writing the timeline"):
            data["timeline"] = timeline_data(timeline, timeline.to_perfetto(trace))
    print_errors(report, LSE_TOLERANCE[on], out)
    if output is not None:
        out.line(f"result    {output}")
    if timeline is not None:
        print_timeline(timeline, out)
        out.line(f"timeline  {trace}")
    out.result(data)
    return 0 if data["ok"] else 1


def run_on(
    on: On, plan: Plan, given: Inputs, seed: int, profile: str | None, trace: bool = False
) -> tuple[Tensor, Tensor, Timeline | None]:
    """(out, lse, timeline) on the CPU. Raises InvalidField for an option that the world has no use for.

    With ``trace`` the timeline is that of the run, and on the CPU that of a simulation by the cost model.
    """
    from liquidcp_compiler.errors import InvalidField
    from liquidcp_runtime.cpu_world import CpuWorld

    if on is On.CPU:
        q, k, v, sinks = given
        out, lse = CpuWorld(plan.world).run(plan, q, k, v, sinks=sinks, seed=seed, profile=profile or "random")
        return out, lse, _simulated(plan) if trace else None
    if profile is not None:
        raise InvalidField("--profile", profile, f"nothing on {on}: the GPU itself decides the interleaving")
    return (_run_loopback if on is On.LOOPBACK else _run_solo)(plan, given, trace)


def _simulated(plan: Plan) -> Timeline:
    from liquidcp_runtime.scheduling import simulate
    from liquidcp_runtime.timeline import Timeline

    return Timeline.from_schedule(plan, simulate(plan))


def _run_loopback(plan: Plan, given: Inputs, trace: bool) -> tuple[Tensor, Tensor, Timeline | None]:
    from liquidcp_runtime.loopback_world import loopback

    world = loopback(plan.world, trace=trace)
    q, k, v, sinks = _on_device(given, world.device)
    out, lse = world.run(plan, q, k, v, sinks=sinks)
    world.wait()
    return out.cpu(), lse.cpu(), world.timeline(plan) if trace else None


def _run_solo(plan: Plan, given: Inputs, trace: bool) -> tuple[Tensor, Tensor, Timeline | None]:
    """Every rank in turn."""
    from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
    from liquidcp_runtime.solo_world import solo
    from liquidcp_runtime.timeline import Timeline

    results, timelines = [], []
    for rank in range(plan.world):
        world = solo(rank, plan.world, trace=trace)
        q, k, v, sinks = _on_device(given, world.device)
        world.load_peers(plan, k, v)
        local = shard_q(plan, rank, q), shard_kv(plan, rank, k), shard_kv(plan, rank, v)
        out, lse = world.run(plan, *local, sinks=None if sinks is None else sinks.float())
        world.wait()
        results.append((out.cpu(), lse.cpu()))
        timelines += [world.timeline(plan)] if trace else []
    out, lse = unshard(plan, [o for o, _ in results]), unshard_lse(plan, [x for _, x in results])
    return out, lse, Timeline.joined(timelines) if trace else None


def _on_device(given: Inputs, device: torch.device) -> Inputs:
    q, k, v, sinks = given
    return q.to(device), k.to(device), v.to(device), None if sinks is None else sinks.to(device)


def error_data(report: ErrorReport, lse_tolerance: float) -> dict[str, Any]:
    """The errors in plain values."""
    return {
        "max_rel_error": report.max_rel_error,
        "max_lse_error": report.lse_max,
        "rel_error": report.whole,
        "rel_error_limit": report.whole_limit,
        "rel_error_sdpa": report.whole_baseline,
        "max_rel_error_limit": report.worst_tile_limit,
        "max_rel_error_sdpa": report.worst_tile_baseline,
        "max_rel_error_row": report.worst_tile_row,
        "max_rel_error_head": report.worst_tile_head,
        "scaled_lse_error": report.lse_scaled,
        "scaled_lse_error_limit": lse_tolerance,
        "ok": report.ok(lse_tolerance),
    }


def print_errors(report: ErrorReport, lse_tolerance: float, out: Output) -> None:
    """The two numbers that people look for, then the table that judges them."""
    out.line(f"max_rel_error {report.max_rel_error:.3e}")
    out.line(f"max_lse_error {report.lse_max:.3e}")
    checks = (
        ("whole output", report.whole, report.whole_limit, f"{report.whole_baseline:.3e}"),
        ("worst tile", report.worst_tile, report.worst_tile_limit, f"{report.worst_tile_baseline:.3e}"),
        ("lse, scaled", report.lse_scaled, lse_tolerance, "-"),
    )
    rows = [[n, f"{e:.3e}", f"{limit:.3e}", sdpa, "pass" if e <= limit else "FAIL"] for n, e, limit, sdpa in checks]
    out.table(["against float64", "error", "limit", "SDPA", ""], rows, left=[0, 4])


def _save(path: Path, result: Tensor, lse: Tensor) -> str:
    import torch

    from liquidcp_compiler.ir.atomic_file import write_file

    buffer = io.BytesIO()
    torch.save({"out": result, "lse": lse}, buffer)
    return str(write_file(path, buffer.getvalue()))
