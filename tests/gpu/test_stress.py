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


def test_thousands_of_launches() -> None:
    rng, worlds = random.Random(1), dict[tuple, LoopbackWorld]()
    torch.manual_seed(0)
    memory: list[int] = []
    for i in range(NUM_PLANS):
        size, comm = rng.choice((2, 3, 4, 8)), rng.choice((None, 1, 2, 4))
        world = worlds.setdefault((size, comm), loopback(size, num_comm_ctas=comm, wait_budget=3.0))
        p = random_problem(rng)
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
    print(f"\n{NUM_PLANS * LAUNCHES_A_PLAN} launches, memory {min(memory) >> 20} to {max(memory) >> 20} MiB")
