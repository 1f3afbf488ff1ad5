"""Problems of every mask, their references, and the check of a launch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_runtime.loopback_world import LoopbackWorld, loopback
from liquidcp_runtime.reference import error_report, reference_attention, sdpa_baseline

LSE_TOLERANCE = 1e-3
MASKS = ("causal", "full", "sliding_window", "document", "shared_prefix", "block_sparse")
WORLD_SIZES = (1, 2, 3, 4, 8)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def mask_of(kind: str, lengths: Sequence[int]) -> dict[str, Any]:
    """A mask of that kind that leaves something to see, with borders off the tiles' borders."""
    total = sum(lengths)
    if kind == "sliding_window":
        return {"type": kind, "left": 150, "right": 3}
    if kind == "document":
        cuts = sorted({0, total, *(c for c in (1, 70, 200, 333, 1000) if c < total)})
        return {"type": kind, "cu_seqlens": cuts}
    if kind == "shared_prefix":
        return {"type": kind, "prefix": max(min(90, lengths[0]), 1)}
    if kind == "block_sparse":
        block, rng = 48, random.Random(total)
        count = -(-total // block)
        rows = [sorted(rng.sample(range(count), max(1, count // 3))) for _ in range(count)]
        return {"type": kind, "block": block, "rows": rows}
    return {"type": kind}


def problem(
    lengths: tuple[int, ...], heads: tuple[int, int] = (8, 2), mask: str = "causal", **fields: Any
) -> PrefillProblem:
    """A bf16 problem of head_dim 128 unless said otherwise; masks of one sequence take the lengths' sum."""
    if mask == "block_sparse":
        lengths = (sum(lengths),)
    return PrefillProblem(
        lengths=lengths, num_heads_q=heads[0], num_heads_kv=heads[1], mask=mask_of(mask, lengths), **fields
    )


def inputs(p: PrefillProblem, seed: int = 0) -> Tensors:
    """Random q, k, v of the problem's dtype and sinks where it has them, on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    q, k, v = (
        normal(tokens, heads, p.head_dim).to(p.dtype.torch)
        for tokens, heads in (
            (p.total_q, p.num_heads_q),
            (p.total_kv, p.num_heads_kv),
            (p.total_kv, p.num_heads_kv),
        )
    )
    return q, k, v, normal(p.num_heads_q) if p.sinks else None


@cache
def expected(p: PrefillProblem, seed: int) -> tuple[Tensors, tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """(inputs, float64 reference, SDPA's result): the same for any number of ranks."""
    given = inputs(p, seed)
    return given, reference_attention(p, *given), sdpa_baseline(p, *given)


@cache
def world(world_size: int, **options: Any) -> LoopbackWorld:
    """One world a set of options for the whole session; buffers are poisoned before each launch."""
    return loopback(world_size, poison=True, **options)


def run(w: LoopbackWorld, plan: Plan, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch, awaited; (out, lse) on the CPU."""
    q, k, v, sinks = tensors
    out, lse = w.run(plan, q, k, v, sinks=sinks)
    w.wait()
    return out.cpu(), lse.cpu()


def hold(p: PrefillProblem, seed: int, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Hold a result to the accuracy that every run must have."""
    given, reference, baseline = expected(p, seed)
    report = error_report(p, out, lse, *given, reference=reference, baseline=baseline)
    assert report.ok(LSE_TOLERANCE), f"{p}\n{report.explain(LSE_TOLERANCE)}"


def check(w: LoopbackWorld, plan: Plan, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Run and compare with float64; returns (out, lse)."""
    p = plan.problem
    assert isinstance(p, PrefillProblem)
    out, lse = run(w, plan, expected(p, seed)[0])
    hold(p, seed, out, lse)
    return out, lse


def zigzag(p: PrefillProblem, world_size: int, **options: Any) -> Plan:
    """The default plan of a problem."""
    return make_plan(p, cp_size=world_size, placement="zigzag-all", **options)
