"""A packed batch of documents of any length: no padding, partial tiles, documents of a single token."""

from __future__ import annotations

import torch

import liquidcp_runtime
from liquidcp_compiler import PrefillProblem, plan
from liquidcp_compiler.report import summary_text
from liquidcp_runtime.reference import error_report


def main() -> None:
    # As variable-length attention takes it: prefix sums, and one packed tensor each of q, k and v.
    cu_seqlens = torch.tensor([0, 900, 977, 978, 1491], dtype=torch.int32)
    problem = PrefillProblem.from_cu_seqlens(cu_seqlens, num_heads_q=4, num_heads_kv=1, head_dim=64)
    print("lengths", problem.lengths)

    # Any number of ranks will do; no length has to divide by anything.
    batch = plan(problem, 3)
    print(summary_text(batch))

    q = torch.randn(problem.total_q, 4, 64).bfloat16()
    k, v = (torch.randn(problem.total_kv, 1, 64).bfloat16() for _ in "kv")
    world = liquidcp_runtime.cpu(3)
    for profile in ("random", "lifo", "late-rank"):  # hostile orders of arrival give the same answer
        out, lse = world.run(batch, q, k, v, profile=profile, seed=1)
        report = error_report(problem, out, lse, q, k, v)
        print(f"{profile}\n{report.explain()}")
        assert report.ok()


if __name__ == "__main__":
    main()
