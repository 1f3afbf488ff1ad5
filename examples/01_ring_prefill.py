"""One long sequence over four ranks: each pulls the keys and values it lacks, and starts on what is there."""

from __future__ import annotations

import torch

import liquidcp_runtime
from liquidcp_compiler import PrefillProblem, plan
from liquidcp_runtime.reference import error_report

RANKS = 4


def main() -> None:
    problem = PrefillProblem(lengths=(2000,), num_heads_q=4, num_heads_kv=2, head_dim=64)

    # Once a batch, on the host: the lengths are all that a plan depends on.
    ring = plan(problem, RANKS)
    for rank in range(RANKS):
        header = ring.header(rank)
        tiles = ring.table("q_tiles", rank)["tile"].tolist()
        print(f"rank {rank}: {header['num_local_q_tokens']} tokens, query tiles {tiles}")

    # Once a layer: all ranks in this process, through every transfer and task of the plan.
    q = torch.randn(problem.total_q, 4, 64).bfloat16()
    k, v = (torch.randn(problem.total_kv, 2, 64).bfloat16() for _ in "kv")
    out, lse = liquidcp_runtime.cpu(RANKS).run(ring, q, k, v)

    report = error_report(problem, out, lse, q, k, v)
    print(report.explain())
    assert report.ok()


if __name__ == "__main__":
    main()
