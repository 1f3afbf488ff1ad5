"""One rank of a process group, for test_process_world.py: runs one scenario and prints one JSON line.

Usage: process_rank.py SCENARIO RANK WORLD FILE (FILE: where the ranks find each other)
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import liquidcp_runtime as runtime
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import LiquidCPError
from liquidcp_compiler.ir.mask import SlidingWindow
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import DecodeProblem, DType, PrefillProblem, Problem, Request
from liquidcp_runtime import process_world
from liquidcp_runtime.reference import reference_attention

HEADS = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 16}


def problems() -> list[Problem]:
    requests = (Request(1000, 2), Request(3, 1), Request(0, 20))
    fp32 = DType.FP32
    return [
        PrefillProblem(lengths=(1100, 1, 7), dtype=fp32, **HEADS),
        PrefillProblem(lengths=(1024,), dtype=fp32, mask=SlidingWindow(left=100, right=0), sinks=True, **HEADS),
        PrefillProblem(lengths=(100,), dtype=fp32, **HEADS),  # three of four ranks own nothing
        DecodeProblem(requests=requests, dtype=fp32, interleave=16, **HEADS),
        DecodeProblem(requests=requests, dtype=DType.BF16, exchange_dtype=DType.BF16, **HEADS),
    ]


def shards(plan: Plan, rank: int) -> tuple[list[torch.Tensor], torch.Tensor | None, list[torch.Tensor]]:
    """This rank's (q, k, v), the sinks, and its part of the right answer."""
    problem, generator = plan.problem, torch.Generator().manual_seed(7)
    sizes = [(problem.total_q, 4, 16), (problem.total_kv, 2, 16), (problem.total_kv, 2, 16)]
    q, k, v = (torch.randn(size, generator=generator).to(problem.dtype.torch) for size in sizes)
    sinks = torch.randn(4, generator=generator) if problem.sinks else None
    out, lse = reference_attention(problem, q, k, v, sinks)
    local = [runtime.shard_q(plan, rank, q), runtime.shard_kv(plan, rank, k), runtime.shard_kv(plan, rank, v)]
    return local, sinks, [runtime.shard_q(plan, rank, out), runtime.shard_q(plan, rank, lse.T).T]


def exact(world, rank: int, size: int) -> dict:
    errors = []
    for problem in problems():
        plan = make_plan(problem, cp_size=size)
        local, sinks, (out, lse) = shards(plan, rank)
        for _ in range(2):
            got_out, got_lse = world.run(plan, *local, sinks=sinks)
            assert got_out.shape == local[0].shape
            worst = [
                (a.double() - b).abs().max().item() if a.numel() else 0.0 for a, b in ((got_out, out), (got_lse, lse))
            ]
        errors.append(worst)
    return {"errors": errors}


def mismatch(world, rank: int, size: int) -> dict:
    plan = make_plan(PrefillProblem(lengths=(256 if rank == 0 else 255,), **HEADS), cp_size=size)
    return {"result": world.run(plan, *shards(plan, rank)[0])}


def wrong_tensor(world, rank: int, size: int) -> dict:
    plan = make_plan(PrefillProblem(lengths=(700,), **HEADS), cp_size=size)
    q, k, v = shards(plan, rank)[0]
    return {"result": world.run(plan, q, k, v[:-1] if rank == 1 else v)}


def silent_peer(world, rank: int, size: int) -> dict:
    """Rank 1 greets the others, and then sends nothing for longer than they wait."""

    def sleep(_: object) -> None:
        time.sleep(10.0)
        raise LiquidCPError("slept")

    if rank == 1:
        process_world._RankRun.run = sleep
    plan = make_plan(PrefillProblem(lengths=(700,), **HEADS), cp_size=size)
    return {"result": world.run(plan, *shards(plan, rank)[0])}


def dead_peer(world, rank: int, size: int) -> dict:
    """Rank 1 greets the others and dies."""

    def die(_: object) -> None:
        print("{}", flush=True)
        os._exit(1)

    if rank == 1:
        process_world._RankRun.run = die
    plan = make_plan(PrefillProblem(lengths=(700,), **HEADS), cp_size=size)
    return {"result": world.run(plan, *shards(plan, rank)[0])}


def absent_peer(world, rank: int, size: int) -> dict:
    if rank == 1:
        return {}
    plan = make_plan(PrefillProblem(lengths=(700,), **HEADS), cp_size=size)
    return {"result": world.run(plan, *shards(plan, rank)[0])}


def main() -> None:
    scenario, rank, size, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    assert dist.group.WORLD is not None
    world = runtime.cpu(group=dist.group.WORLD, timeout_s=2.0 if scenario == "silent_peer" else 60.0)
    try:
        answer = globals()[scenario](world, rank, size)
    except LiquidCPError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
