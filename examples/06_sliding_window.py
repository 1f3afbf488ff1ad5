"""Sliding-window attention: only the keys inside the window travel."""

from __future__ import annotations

import torch

import liquidcp_runtime
from liquidcp_compiler import Causal, PrefillProblem, SlidingWindow, explain_mask, plan
from liquidcp_runtime.profiles import transfer_bytes
from liquidcp_runtime.reference import error_report


def main() -> None:
    tiny = PrefillProblem(lengths=(12,), num_heads_q=1, num_heads_kv=1, mask=SlidingWindow(left=3, right=0))
    print(explain_mask(tiny))

    # Both ends are included: a query sees itself and the 200 tokens before it. Sinks are one extra logit a head.
    window = SlidingWindow(left=200, right=0)
    problem = PrefillProblem(lengths=(1800,), num_heads_q=4, num_heads_kv=2, head_dim=64, sinks=True, mask=window)
    whole = PrefillProblem(lengths=(1800,), num_heads_q=4, num_heads_kv=2, head_dim=64, mask=Causal())
    narrow, causal = plan(problem, 4), plan(whole, 4)
    moved, moved_causal = transfer_bytes(narrow).sum(), transfer_bytes(causal).sum()
    print(f"pulled: {moved / 1024:.0f} KiB in the window, {moved_causal / 1024:.0f} KiB without one")
    assert moved < moved_causal

    q = torch.randn(1800, 4, 64).bfloat16()
    k, v = (torch.randn(1800, 2, 64).bfloat16() for _ in "kv")
    sinks = torch.randn(4)
    out, lse = liquidcp_runtime.cpu(4).run(narrow, q, k, v, sinks=sinks)
    report = error_report(problem, out, lse, q, k, v, sinks)
    print(report.explain())
    assert report.ok()


if __name__ == "__main__":
    main()
