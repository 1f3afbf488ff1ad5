"""CUDA graphs: a captured launch runs whatever plan its slot holds, epoch after epoch."""

from __future__ import annotations

import random

import pytest
import torch

from liquidcp_compiler.errors import GraphCaptureError, InvalidField, OutOfResources, PlanError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.loopback_world import LoopbackWorld, loopback
from liquidcp_runtime.plan_slot import PlanSlot
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from tests.gpu.support import expected, hold, problem, zigzag

pytestmark = pytest.mark.gpu

WORLD, REPLAYS = 4, 1000
HEADS = (8, 2)


def buffers(plans: list[Plan]) -> list[RankTensors]:
    """Local tensors that hold the largest of ``plans``."""
    made = []
    for rank in range(WORLD):
        rows = max(int(p.header(rank)["num_local_q_tokens"]) for p in plans)
        keys = max(int(p.header(rank)["num_local_kv_tokens"]) for p in plans)

        def new(tokens: int, heads: int) -> torch.Tensor:
            return torch.empty(tokens, heads, 128, dtype=torch.bfloat16, device="cuda")

        made.append(
            RankTensors(
                q=new(rows, HEADS[0]),
                k=new(keys, HEADS[1]),
                v=new(keys, HEADS[1]),
                out=new(rows, HEADS[0]),
                lse=torch.empty(HEADS[0], rows, device="cuda"),
            )
        )
    return made


def fill(tensors: list[RankTensors], plan: Plan, seed: int) -> None:
    """Inputs of ``seed`` in, results poisoned."""
    q, k, v, _ = expected(plan.problem, seed)[0]  # type: ignore[arg-type]
    for rank, local in enumerate(tensors):
        for name, shard in (
            ("q", shard_q(plan, rank, q)),
            ("k", shard_kv(plan, rank, k)),
            ("v", shard_kv(plan, rank, v)),
        ):
            getattr(local, name)[: len(shard)] = shard
        local.out.fill_(float("nan"))
        local.lse.fill_(float("nan"))


def results(tensors: list[RankTensors], plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of the whole batch."""
    rows = [int(plan.header(r)["num_local_q_tokens"]) for r in range(WORLD)]
    outs = [x.out[:n] for x, n in zip(tensors, rows, strict=True)]
    lses = [x.lse.flatten()[: HEADS[0] * n].view(HEADS[0], n) for x, n in zip(tensors, rows, strict=True)]
    return unshard(plan, outs), unshard_lse(plan, lses)


def capture(w: LoopbackWorld, slot: PlanSlot, tensors: list[RankTensors]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        w.run_local(slot, tensors)
    return graph


def test_a_thousand_replays_with_changing_plans_and_inputs() -> None:
    lengths = [(100,), (5000,), (300, 17, 1025), (1, 2, 3), (2048, 2048)]
    plans = [zigzag(problem(x, HEADS), WORLD) for x in lengths]
    w, rng = loopback(WORLD), random.Random(0)
    slot, tensors = w.reserve(plans), buffers(plans)
    graph = capture(w, slot, tensors)
    references = {(p, s): expected(p.problem, s)[1][0].float().cuda() for p in plans for s in range(3)}  # type: ignore[arg-type]
    memory = []
    for i in range(REPLAYS):
        plan, seed = rng.choice(plans), rng.randrange(3)
        slot.load(plan)
        fill(tensors, plan, seed)
        graph.replay()
        out, lse = results(tensors, plan)
        right = references[plan, seed]
        assert torch.linalg.norm(out - right) < 6e-3 * torch.linalg.norm(right), (i, plan.problem, seed)
        if i % 20 == 0:
            hold(plan.problem, seed, out.cpu(), lse.cpu())  # type: ignore[arg-type]
        del out, lse
        if i >= 100:  # references are cached by then
            memory.append(torch.cuda.memory_allocated())
    w.wait()
    assert max(memory) == min(memory)
    assert int(w.control.words[0]) == REPLAYS + 1


def test_replays_between_ordinary_launches_and_of_two_graphs() -> None:
    small, large = zigzag(problem((100,), HEADS), WORLD), zigzag(problem((3000,), HEADS), WORLD)
    w = loopback(WORLD)
    slots = {p: w.reserve(p) for p in (small, large)}
    tensors = {p: buffers([p]) for p in (small, large)}
    graphs = {p: capture(w, slots[p], tensors[p]) for p in (small, large)}
    for seed in range(20):
        for plan in (small, large):
            fill(tensors[plan], plan, seed % 3)
            graphs[plan].replay()
            out, lse = results(tensors[plan], plan)
            hold(plan.problem, seed % 3, out.cpu(), lse.cpu())  # type: ignore[arg-type]
        q, k, v, _ = expected(large.problem, seed % 3)[0]  # type: ignore[arg-type]
        out, lse = w.run(large, q, k, v)
        w.wait()
        hold(large.problem, seed % 3, out.cpu(), lse.cpu())  # type: ignore[arg-type]


def test_a_plan_cannot_be_captured() -> None:
    plan = zigzag(problem((100,), HEADS), WORLD)
    w, tensors = loopback(WORLD), buffers([plan])
    w.warmup([plan])
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        torch.zeros(1, device="cuda")  # a graph is not empty
        with pytest.raises(GraphCaptureError, match="reserve"):
            w.run_local(plan, tensors)
        graph.capture_end()


def test_a_slot_refuses_what_it_cannot_hold() -> None:
    w = loopback(WORLD)
    slot = w.reserve(zigzag(problem((1000,), HEADS), WORLD))
    with pytest.raises(OutOfResources, match="of the slot"):
        slot.load(zigzag(problem((5000,), HEADS), WORLD))
    with pytest.raises(PlanError, match="full"):
        slot.load(zigzag(problem((1000,), HEADS, "full"), WORLD))
    with pytest.raises(InvalidField, match="num_heads_kv"):
        slot.load(zigzag(problem((1000,), (8, 4)), WORLD))
