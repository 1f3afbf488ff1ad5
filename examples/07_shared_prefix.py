"""Many answers to one prompt: its tokens are stored once, and every answer sees them."""

from __future__ import annotations

import torch

import liquidcp_runtime
from liquidcp_compiler import PrefillProblem, SharedPrefix, explain_mask, plan
from liquidcp_runtime.reference import error_report


def main() -> None:
    tiny = PrefillProblem(lengths=(4, 3, 3), num_heads_q=1, num_heads_kv=1, mask=SharedPrefix(prefix=4))
    print(explain_mask(tiny))

    # The first document is the prompt; the others are answers, each causal in itself and blind to the others.
    prompt, answers = 600, (150, 90, 201)
    mask = SharedPrefix(prefix=prompt)
    problem = PrefillProblem(lengths=(prompt, *answers), num_heads_q=4, num_heads_kv=2, head_dim=64, mask=mask)
    shared = plan(problem, 2)
    print(f"{problem.total_q} tokens, {problem.num_sequences} attention domain; {shared.counts()}")

    q = torch.randn(problem.total_q, 4, 64).bfloat16()
    k, v = (torch.randn(problem.total_kv, 2, 64).bfloat16() for _ in "kv")
    out, lse = liquidcp_runtime.cpu(2).run(shared, q, k, v)
    report = error_report(problem, out, lse, q, k, v)
    print(report.explain())
    assert report.ok()

    # The same as every answer alone behind the prompt.
    first = prompt + answers[0]
    rows = torch.cat((torch.arange(prompt), torch.arange(first, first + answers[1])))
    alone = PrefillProblem(lengths=(len(rows),), num_heads_q=4, num_heads_kv=2, head_dim=64)
    again, _ = liquidcp_runtime.cpu(2).run(plan(alone, 2), q[rows], k[rows], v[rows])
    torch.testing.assert_close(out[rows].float(), again.float(), rtol=0.02, atol=0.02)


if __name__ == "__main__":
    main()
