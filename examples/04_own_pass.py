"""A pass of your own: the longest row of every rank first, as list scheduling does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

import liquidcp_runtime
from liquidcp_compiler import Pass, PassContext, PrefillProblem, plan
from liquidcp_compiler.ir.graph import PlannedGraph
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.passes.registry import PASSES, parse_pipeline
from liquidcp_runtime.reference import error_report


@dataclass(frozen=True)
class LongestFirst(Pass[PlannedGraph, PlannedGraph]):
    """Moves compute tasks with more KV tiles to the front of their rank's queue. Runs after ``order``."""

    name: ClassVar[str] = "longest-first"
    descending: bool = True

    def apply(self, graph: PlannedGraph, context: PassContext) -> PlannedGraph:
        tasks = graph.tasks
        row, lo, hi = tasks.reads.of_space(Space.KV)
        size = np.bincount(row, hi - lo, minlength=len(tasks))
        compute = tasks.of_kind(TaskKind.COMPUTE)
        key = -size[compute] if self.descending else size[compute]
        # Ranks keep their places, so only the order within a rank changes.
        order = np.arange(len(tasks))
        order[compute] = compute[np.lexsort((key, tasks.rank[compute]))]
        return graph.with_changes(tasks=tasks.take(order))


def main() -> None:
    problem = PrefillProblem(lengths=(1300, 200, 700), num_heads_q=2, num_heads_kv=1, head_dim=64)
    known = PASSES | {LongestFirst.name: LongestFirst}
    text = "zigzag-all,insert-transfers,coalesce,order,longest-first,insert-sync"
    mine = plan(problem, 2, passes=parse_pipeline(text, known))
    usual = plan(problem, 2)
    for name, p in (("usual", usual), ("longest first", mine)):
        print(f"{name}: rank 0 takes rows of {p.table('rows', 0)['num_kv_tiles'].tolist()} KV tiles")
    sizes = mine.table("rows", 0)["num_kv_tiles"]
    assert (np.diff(sizes) <= 0).all()

    q = torch.randn(problem.total_q, 2, 64).bfloat16()
    k, v = (torch.randn(problem.total_kv, 1, 64).bfloat16() for _ in "kv")
    out, lse = liquidcp_runtime.cpu(2).run(mine, q, k, v)
    report = error_report(problem, out, lse, q, k, v)
    print(report.explain())
    assert report.ok()


if __name__ == "__main__":
    main()
