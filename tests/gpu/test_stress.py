"""Thousands of launches of the generated kernel with changing plans and inputs: races that one launch would not show.

python3 -m pytest tests/gpu/test_stress.py -m "gpu and long" -q -s
"""

from __future__ import annotations

import random

import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime.loopback_world import LoopbackWorld, loopback

pytestmark = [pytest.mark.gpu, pytest.mark.long]

NUM_PLANS, LAUNCHES_A_PLAN = 1000, 10
LENGTHS = (1, 64, 100, 128, 129, 300, 1000, 1025, 2049, 4096)
#: bf16 rounds P and the result; two right kernels differ by less than this in relative Frobenius norm.
BOUND = 6e-3


def random_problem(rng: random.Random) -> PrefillProblem:
    lengths = [rng.choice(LENGTHS) for _ in range(rng.randint(1, 6))]
    heads_kv, mask = rng.choice((1, 2, 8)), rng.choice(("causal", "full"))
    return PrefillProblem(lengths=lengths, num_heads_q=8, num_heads_kv=heads_kv, mask={"type": mask})


def fp32_attention(p: PrefillProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """torch's own attention in fp32, sequence by sequence, on the device."""
    out = torch.empty_like(q, dtype=torch.float32)
    for a, b in zip(p.q_offsets[:-1].tolist(), p.q_offsets[1:].tolist(), strict=True):
        rows = [x[a:b].float().transpose(0, 1) for x in (q, k, v)]
        rows[1:] = [x.repeat_interleave(p.group_size, 0) for x in rows[1:]]
        causal = p.mask.to_json()["type"] == "causal"
        result = torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in rows), is_causal=causal)
        out[a:b] = result[0].transpose(0, 1)
    return out


def warm_world(size: int, num_comm_ctas: int | None) -> LoopbackWorld:
    """A world with memory for the largest of all plans."""
    world = loopback(size, num_comm_ctas=num_comm_ctas, wait_budget=3.0)
    largest = PrefillProblem(lengths=[max(LENGTHS)] * 6, num_heads_q=8, num_heads_kv=8)
    world.warmup([make_plan(largest, size, placement=ZigzagAll(tile=tile)) for tile in (64, 128)])
    return world


def test_thousands_of_launches() -> None:
    rng = random.Random(1)
    sizes, comms = (2, 3, 4, 8), (None, 1, 2, 4)
    worlds = {(size, comm): warm_world(size, comm) for size in sizes for comm in comms}
    torch.manual_seed(0)
    memory: list[int] = []
    for i in range(NUM_PLANS):
        size, comm = rng.choice(sizes), rng.choice(comms)
        world, p = worlds[size, comm], random_problem(rng)
        plan = make_plan(p, size, placement=ZigzagAll(tile=rng.choice((64, 128))), deterministic=rng.random() < 0.3)
        for _ in range(LAUNCHES_A_PLAN):
            shapes = (p.total_q, 8), (p.total_kv, p.num_heads_kv), (p.total_kv, p.num_heads_kv)
            q, k, v = (torch.randn(*s, p.head_dim, device="cuda", dtype=torch.bfloat16) for s in shapes)
            out, _ = world.run(plan, q, k, v)  # in stream order with what computes the inputs and reads the result
            expected = fp32_attention(p, q, k, v)
            error = torch.linalg.norm(out.float() - expected) / torch.linalg.norm(expected)
            assert error < BOUND, (i, size, comm, p.lengths, p.mask, plan.spec.name, float(error))
        world.wait()
        del q, k, v, out, expected, plan
        memory.append(torch.cuda.memory_allocated())
    print(
        f"\n{NUM_PLANS * LAUNCHES_A_PLAN} launches, memory {min(memory) / 2**20:.1f} to {max(memory) / 2**20:.1f} MiB"
    )
    # Buffers of packed plans are kept for later plans; nothing else may stay.
    assert max(memory[NUM_PLANS // 2 :]) - min(memory[NUM_PLANS // 2 :]) < 4 << 20
