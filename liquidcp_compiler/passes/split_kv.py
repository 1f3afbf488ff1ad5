"""Pass ``split-kv``: cuts history computes along their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import InvalidField, PassError
from liquidcp_compiler.ir.graph import PlannedGraph
from liquidcp_compiler.ir.intervals import AccessTable, IntArray, expand
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.problem_fields import MAX_INT32, whole_number
from liquidcp_compiler.ir.tasks import TaskKind, TaskTable
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.fa3_heuristic import fa3_num_splits


@dataclass(frozen=True)
class SplitKv(Pass[PlannedGraph, PlannedGraph]):
    """Cuts every history compute into ``num_splits`` parts of ceil(n / num_splits) KV tiles, the last one shorter.

    Each part writes partial states of its own; the reductions that read the old states read all the parts' states.
    Parts that would be empty are not made.

    before:  compute @0 q 0 kv 0:8 -> state 0 ; reduce @0 state 0 -> state 1
    after:   compute @0 q 0 kv 0:4 -> state 0 ; compute @0 q 0 kv 4:8 -> state 1 ; reduce @0 state 0:2 -> state 2

    Fields:
        policy: ``none``; ``fixed`` (``num_splits`` parts, or fewer if there are fewer tiles); ``fa3-heuristic`` (what
            FlashAttention-3 would choose for this batch).
        num_splits: parts of the ``fixed`` policy.
        num_sms: multiprocessors that ``fa3-heuristic`` fills.
    """

    name: ClassVar[str] = "split-kv"
    policy: str = "none"
    num_splits: int = 1
    num_sms: int = 132

    def __post_init__(self) -> None:
        if self.policy not in ("none", "fixed", "fa3-heuristic"):
            raise InvalidField("policy", self.policy, "none, fixed, fa3-heuristic")
        if whole_number("num_splits", self.num_splits, 1, MAX_INT32) != 1 and self.policy != "fixed":
            raise InvalidField("num_splits", self.num_splits, "1 or more, with policy fixed")
        whole_number("num_sms", self.num_sms, 1, MAX_INT32)

    def apply(self, graph: PlannedGraph, context: PassContext) -> PlannedGraph:
        if not isinstance(graph, PlannedGraph):
            raise PassError(self.name, f"needs a planned graph; this one is {graph.stage}")
        if self.policy == "none":
            return graph
        return split_tasks(graph, self._splits(graph))

    def _splits(self, graph: PlannedGraph) -> IntArray:
        """Parts of every task; 1 for all but splittable history computes."""
        t, n = graph.tasks, len(graph.tasks)
        row, lo, hi = t.reads.of_space(Space.KV)
        tiles = np.bincount(row, hi - lo, minlength=n).astype(np.int64)
        runs = np.bincount(row, minlength=n)
        can = (t.kind == TaskKind.COMPUTE) & (t.role == Role.HISTORY) & (tiles > 1) & (runs == 1)
        if self.policy == "fixed":
            wanted = np.full(n, self.num_splits, np.int64)
        else:
            wanted = fa3_num_splits(graph, self.num_sms)
        width = -(-tiles // np.maximum(wanted, 1))
        parts = -(-tiles // np.maximum(width, 1))
        return np.where(can, np.maximum(parts, 1), 1)


def split_tasks(graph: PlannedGraph, splits: IntArray) -> PlannedGraph:
    """The graph with task i cut into ``splits[i]`` parts along its one run of KV tiles."""
    t = graph.tasks
    source = np.repeat(np.arange(len(t)), splits)
    part = np.arange(len(source)) - np.repeat(np.cumsum(splits) - splits, splits)
    copies = _copies_of_states(graph, splits)
    offset = np.concatenate(([0], np.cumsum(copies))).astype(np.int64)
    tasks = t.take(source)
    reads = _narrow_kv(tasks.reads, splits[source], part)
    reads = _renumber(reads, offset)
    writes = _part_states(tasks.writes, offset, splits[source], part)
    tasks = TaskTable(
        **{**{k: getattr(tasks, k) for k in tasks.__dataclass_fields__}, "reads": reads, "writes": writes}
    )
    return graph.with_changes(tasks=tasks, states=np.repeat(graph.states, copies))


def _copies_of_states(graph: PlannedGraph, splits: IntArray) -> IntArray:
    """How many states each state becomes: the parts of the compute that writes it."""
    copies = np.ones(len(graph.states), np.int64)
    row, lo, hi = graph.tasks.writes.of_space(Space.STATE)
    computes = graph.tasks.kind[row] == TaskKind.COMPUTE
    row, lo, hi = row[computes], lo[computes], hi[computes]
    copies[expand(lo, hi)] = np.repeat(splits[row], hi - lo)
    return copies


def _narrow_kv(reads: AccessTable, splits: IntArray, part: IntArray) -> AccessTable:
    row = reads.row
    cut = (reads.space == Space.KV) & (splits[row] > 1)
    width = -(-(reads.hi - reads.lo) // splits[row])
    lo = np.where(cut, reads.lo + part[row] * width, reads.lo)
    hi = np.where(cut, np.minimum(lo + width, reads.hi), reads.hi)
    return AccessTable(reads.ptr, reads.space, lo, hi)


def _renumber(reads: AccessTable, offset: IntArray) -> AccessTable:
    """State intervals in the new numbers: all copies of each state."""
    state = reads.space == Space.STATE
    lo, hi = reads.lo.copy(), reads.hi.copy()
    lo[state], hi[state] = offset[reads.lo[state]], offset[reads.hi[state]]
    return AccessTable(reads.ptr, reads.space, lo, hi)


def _part_states(writes: AccessTable, offset: IntArray, splits: IntArray, part: IntArray) -> AccessTable:
    """Each written state becomes this part's copy of it; runs of states are written one by one where split."""
    row = writes.row
    state = writes.space == Space.STATE
    cut = state & (splits[row] > 1)
    counts = np.where(cut, writes.hi - writes.lo, 1)
    entry = np.repeat(np.arange(len(row)), counts)
    place = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    lo, hi = writes.lo[entry] + np.where(cut[entry], place, 0), writes.hi[entry]
    hi = np.where(cut[entry], lo + 1, hi)
    r = row[entry]
    new_lo = np.where(state[entry], offset[np.where(state[entry], lo, 0)] + np.where(cut[entry], part[r], 0), lo)
    new_hi = np.where(cut[entry], new_lo + 1, np.where(state[entry], offset[np.where(state[entry], hi, 0)], hi))
    ptr = np.concatenate(([0], np.cumsum(np.bincount(r, minlength=len(writes.ptr) - 1)))).astype(np.int64)
    return AccessTable(ptr, writes.space[entry], new_lo, new_hi)
