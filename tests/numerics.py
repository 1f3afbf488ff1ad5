"""Random tensors for a problem, plans of it with small tiles, and the check of a run against the float64 reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from liquidcp_compiler.driver import Compiled, compile_plan
from liquidcp_compiler.ir.graph import SyncedGraph
from liquidcp_compiler.ir.parser import parse_graph
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.printer import print_graph
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem, Request
from liquidcp_compiler.passes.base import AnyPass
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.insert_sync import InsertSync
from liquidcp_compiler.passes.insert_transfers import InsertTransfers
from liquidcp_compiler.passes.lower import lower
from liquidcp_compiler.passes.order import Order
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime.cpu_world import CpuWorld
from liquidcp_runtime.reference import ErrorReport, error_report

#: One graph in so many is printed, parsed and printed again; the plan's fingerprint picks which.
TEXT_SAMPLE = 8


def prefill(*lengths: int, **fields) -> PrefillProblem:
    """A prefill problem, fp32 with 2 query heads on 1 KV head of 16 unless said otherwise."""
    return PrefillProblem(lengths=lengths, **(_SMALL | fields))


def decode(*requests: tuple[int, int], **fields) -> DecodeProblem:
    """A decode problem of (history, query) pairs, fp32 with 8 query heads on 1 KV head of 16 unless said otherwise."""
    made = tuple(Request(history=h, query=q) for h, q in requests)
    return DecodeProblem(requests=made, **(_SMALL | {"num_heads_q": 8} | fields))


_SMALL = {"num_heads_q": 2, "num_heads_kv": 1, "head_dim": 16, "dtype": "fp32"}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """q [total_q, num_heads_q, head_dim], k and v [total_kv, num_heads_kv, head_dim] in the problem's dtype, and sinks
    [num_heads_q] fp32 or None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None = None

    def with_changes(self, **changes: torch.Tensor) -> Inputs:
        """The inputs with some tensors replaced."""
        return replace(self, **changes)


def random_inputs(problem: Problem, seed: int = 0) -> Inputs:
    """Normal numbers, the same for the same problem and seed."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    dtype, head_dim = problem.dtype.torch, problem.head_dim
    return Inputs(
        q=normal(problem.total_q, problem.num_heads_q, head_dim).to(dtype),
        k=normal(problem.total_kv, problem.num_heads_kv, head_dim).to(dtype),
        v=normal(problem.total_kv, problem.num_heads_kv, head_dim).to(dtype),
        sinks=normal(problem.num_heads_q) if problem.sinks else None,
    )


def passes(
    problem: Problem,
    tile: int = 32,
    formation: str = "ready",
    split: SplitKv | None = None,
    place: AnyPass | None = None,
) -> tuple:
    """The default pipeline of a problem, with tiles of ``tile`` tokens unless ``place`` is given."""
    placement = place or (Dcp(tile=tile) if isinstance(problem, DecodeProblem) else ZigzagAll(tile=tile))
    return (placement, InsertTransfers(), Coalesce(formation=formation), split or SplitKv(), Order(), InsertSync())


def compiled(problem: Problem, world: int, **options) -> Compiled:
    """The plan and graph of a problem, verified after each pass; ``options`` are those of :func:`passes`."""
    made = compile_plan(problem, world, passes=passes(problem, **options), verify="each")
    if made.plan.fingerprint % TEXT_SAMPLE == 0:
        check_text(made.graph, made.plan)
    return made


def check_text(graph: SyncedGraph, plan: Plan) -> None:
    """The graph's text parses, prints the same again, and lowers to the same plan."""
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert print_graph(parsed) == text, "print -> parse -> print changed the text"
    assert isinstance(parsed, SyncedGraph)
    assert lower(parsed, plan.pipeline).fingerprint == plan.fingerprint, "the parsed graph lowers to another plan"


def run(plan: Plan, inputs: Inputs, profile: str = "random", seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a plan in the CPU world; both are NaN before the run."""
    out = torch.full_like(inputs.q, math.nan)
    lse = torch.full((inputs.q.shape[1], inputs.q.shape[0]), math.nan)
    CpuWorld(plan.world).run(
        plan, inputs.q, inputs.k, inputs.v, sinks=inputs.sinks, profile=profile, seed=seed, out=out, lse=lse
    )
    return out, lse


def report(problem: Problem, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor, **known) -> ErrorReport:
    """Errors of a result beside those of torch's own attention."""
    return error_report(problem, out, lse, inputs.q, inputs.k, inputs.v, inputs.sinks, **known)


def check(
    problem: Problem, world: int, *, inputs: Inputs | None = None, profile: str = "random", seed: int = 0, **options
) -> tuple[Plan, torch.Tensor, torch.Tensor]:
    """Plan a problem, run it and hold the result to the accuracy that every run must have: (plan, out, lse).

    ``options``: see :func:`passes`. What is compared: the whole tensor and the worst tile of 128 rows x head against
    float64, relative to what torch's own attention costs, and lse to 1e-5.
    """
    plan = compiled(problem, world, **options).plan
    given = random_inputs(problem, seed) if inputs is None else inputs
    out, lse = run(plan, given, profile, seed)
    errors = report(problem, given, out, lse)
    assert errors.ok(), f"{problem}, {world} ranks\n{errors.explain()}"
    return plan, out, lse
