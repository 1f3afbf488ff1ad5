"""A graph written task by task: two ranks, and each kind of task."""

from __future__ import annotations

import torch

import liquidcp_runtime
from liquidcp_compiler import Full, GraphBuilder, PrefillProblem, plan, print_graph
from liquidcp_runtime.reference import error_report


def main() -> None:
    problem = PrefillProblem(lengths=(384,), num_heads_q=2, num_heads_kv=1, head_dim=64, mask=Full())
    b = GraphBuilder(problem, world=2)

    # Who owns what: rank 0 has the first two tiles of 128 tokens, rank 1 the last one.
    b.own((0, 256), rank=0)
    b.own((256, 384), rank=1)

    # Rank 0 pulls the keys it lacks. (With ready=(1, 2) the engine would form tasks of 1 to 2 tiles from what is there,
    # but then every task of that rank and sequence has to.)
    b.transfer(kv=2, src=1, dst=0)
    for tile in (0, 1):
        b.compute(0, q=tile, kv=[0, 1, 2])

    # Rank 1 does it the other way round: its queries travel, and a partial result comes back.
    b.transfer(q=2, src=1, dst=0)
    far = b.compute(0, q=2, kv=[0, 1], into="state")
    near = b.compute(1, q=2, kv=2, into="state")
    b.transfer(state=far, src=0, dst=1)
    b.reduce(1, states=[near, far], q=2)

    graph = b.finish()
    print(print_graph(graph))

    # The passes that the graph has behind it are left out; the verifier checks the rest of its way.
    by_hand = plan(graph, 2)
    print(by_hand.counts())

    q = torch.randn(384, 2, 64).bfloat16()
    k, v = (torch.randn(384, 1, 64).bfloat16() for _ in "kv")
    out, lse = liquidcp_runtime.cpu(2).run(by_hand, q, k, v)
    report = error_report(problem, out, lse, q, k, v)
    print(report.explain())
    assert report.ok()


if __name__ == "__main__":
    main()
