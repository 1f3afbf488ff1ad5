"""A decode step with its histories split over four ranks: queries go to the keys, partial results come back."""

from __future__ import annotations

import torch

import liquidcp_runtime
from liquidcp_compiler import DecodeProblem, Request, plan
from liquidcp_compiler.passes.registry import parse_pipeline
from liquidcp_runtime.reference import error_report

RANKS = 4


def main() -> None:
    # One token each for two conversations, four speculated ones, a prefill chunk, and a request without history.
    requests = (Request(3000, 1), Request(700, 1), Request(250, 4), Request(512, 40), Request(0, 7))
    problem = DecodeProblem(requests=requests, num_heads_q=8, num_heads_kv=2, head_dim=64)
    whole = plan(problem, RANKS)
    # Each rank's share of a history may be cut again, so that a long one does not hold up the batch.
    passes = "dcp,insert-transfers,split-kv{policy=fixed,num-splits=3},order,insert-sync"
    step = plan(problem, RANKS, passes=parse_pipeline(passes))
    for rank in range(RANKS):
        print(
            f"rank {rank}: heads {2 * rank}:{2 * rank + 2}, {step.header(rank)['num_local_kv_tokens']} keys, "
            f"{len(whole.table('rows', rank))} attention tasks whole, {len(step.table('rows', rank))} cut, "
            f"{len(step.table('reductions', rank))} reductions"
        )
    assert len(step.tables["rows"]) > len(whole.tables["rows"])

    # K and V are packed by request: the history's tokens, then the new ones.
    q = torch.randn(problem.total_q, 8, 64).bfloat16()
    k, v = (torch.randn(problem.total_kv, 2, 64).bfloat16() for _ in "kv")
    out, lse = liquidcp_runtime.cpu(RANKS).run(step, q, k, v)
    report = error_report(problem, out, lse, q, k, v)
    print(report.explain())
    assert report.ok()


if __name__ == "__main__":
    main()
