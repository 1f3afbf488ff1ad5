"""``liquidcp demo``: a prefill batch and a decode batch, planned, run and compared on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from liquidcp_compiler.cli.inputs import JsonOption
from liquidcp_compiler.cli.output import Output

if TYPE_CHECKING:
    from liquidcp_compiler.ir.plan import Plan
    from liquidcp_compiler.ir.problem import Problem

WORLD = 4
#: Documents of very different lengths: whole tiles, partial ones, a single token.
LENGTHS = (1792, 700, 77, 1, 257, 513)
#: (history, new tokens): long and short histories, a chunk of a prefill, a fresh request, two speculated tokens.
REQUESTS = ((5000, 1), (300, 4), (17, 1), (0, 33), (1531, 2))
ARCHS = ["sm_80", "sm_90a"]


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the picture, the plan and the CUDA.")
    ] = Path("build/demo"),
    as_json: JsonOption = False,
) -> int:
    """Plan two batches for four ranks, run them on the CPU, and compare with dense attention in float64."""
    from liquidcp_compiler.plot import region_map, save_figure

    out = Output(as_json)
    data: dict[str, Any] = {}
    plans = {name: _plan(problem, out) for name, problem in problems().items()}
    for name, plan in plans.items():
        folder = output / name
        data[name] = _summary(name, plan, out) | {"plan_file": str(plan.save(folder / "plan.npz"))}
        with out.working("drawing"):
            data[name]["plot"] = str(save_figure(region_map(plan), folder / "regions.png"))
        out.line(f"plan      {data[name]['plan_file']}")
        out.line(f"picture   {data[name]['plot']}")
    for name, plan in plans.items():
        data[name] |= _kernel(name, plan, output / name, out)
    ok = [_run(name, plan, data[name], out) for name, plan in plans.items()]
    out.result(data)
    return 0 if all(ok) else 1


def problems() -> dict[str, Problem]:
    """The two batches: 8 query heads over 2 KV heads of 128, bf16, causal."""
    from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Request

    requests = tuple(Request(history, query) for history, query in REQUESTS)
    return {
        "prefill": PrefillProblem(lengths=LENGTHS, num_heads_q=8, num_heads_kv=2),
        "decode": DecodeProblem(requests=requests, num_heads_q=8, num_heads_kv=2),
    }


def _plan(problem: Problem, out: Output) -> Plan:
    from liquidcp_compiler.driver import plan

    with out.working("planning"):
        return plan(problem, WORLD)


def _summary(name: str, plan: Plan, out: Output) -> dict[str, Any]:
    from liquidcp_compiler import report

    lengths = " ".join(map(str, LENGTHS)) if name == "prefill" else " ".join(f"{h}+{q}" for h, q in REQUESTS)
    out.heading(f"{name}: {lengths}")
    for line in report.summary_lines(plan):
        out.line(line)
    out.table(list(report.RANK_COLUMNS.values()), report.rank_cells(plan))
    return report.summarize(plan)


def _kernel(name: str, plan: Plan, folder: Path, out: Output) -> dict[str, Any]:
    """Writes and compiles the plan's kernel; says why where there is none."""
    from liquidcp_compiler.cli.kernel_output import print_kernels, write_kernels
    from liquidcp_compiler.errors import CodegenError

    out.heading(f"kernel of the {name} batch")
    try:
        cuda = write_kernels(plan.spec, folder, ARCHS, out)
    except CodegenError as error:
        out.line(f"none: {error}")
        return {"cuda": None, "cuda_missing": str(error)}
    print_kernels(cuda, out)
    return {"cuda": cuda}


def _run(name: str, plan: Plan, data: dict[str, Any], out: Output) -> bool:
    from liquidcp_compiler.cli.run_command import LSE_TOLERANCE, On, error_data, print_errors, run_on
    from liquidcp_compiler.cli.tensors import random_tensors
    from liquidcp_runtime.reference import error_report

    q, k, v, sinks = random_tensors(plan.problem, seed=0)
    with out.working(f"running {name} on {plan.world} ranks"):
        result, lse, _ = run_on(On.CPU, plan, (q, k, v, sinks), 0, None)
    with out.working("computing the dense reference in float64"):
        report = error_report(plan.problem, result, lse, q, k, v, sinks)
    out.heading(f"{name} on {plan.world} CPU ranks, against dense attention")
    print_errors(report, LSE_TOLERANCE[On.CPU], out)
    data["errors"] = error_data(report, LSE_TOLERANCE[On.CPU])
    return bool(data["errors"]["ok"])
