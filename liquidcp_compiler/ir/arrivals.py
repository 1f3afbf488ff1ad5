"""Arrival classes: which pulled KV tiles a rank's queries need, as nested sets.

Readiness-driven formation keeps one committed prefix of arrivals per (rank, sequence). It works where a query tile's
pulled tiles are exactly a prefix of that order. Under a causal or full mask a row reads one run of KV tiles from the
sequence's start, so the sets are nested; with zigzag placement there are at most two: the front-half queries' set, and
the back-half queries' (paper sections 4.1 and 6.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.graph import TaskGraph, owned_matrix
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.memo import once_a_graph
from liquidcp_compiler.ir.tasks import TaskKind

FRONT, BACK = 0, 1


@dataclass(frozen=True, eq=False)
class ArrivalClasses:
    """Fields:

    task: int64 [N], compute rows that read KV; key: rank * num_sequences + sequence of each.
    remote: int64 [N], pulled KV tiles of each row; local: its own ones.
    prefix: bool [num_keys], the rows of this (rank, sequence) may form by readiness.
    num_front, num_all: int64 [num_keys], pulled tiles of the front class, and of both.
    """

    num_sequences: int
    kv_sequence: IntArray
    task: IntArray
    key: IntArray
    remote: IntArray
    local: IntArray
    prefix: NDArray[np.bool_]
    num_front: IntArray
    num_all: IntArray
    order_of: IntArray  # [world, num_kv_tiles]: place among the pulled tiles of its (rank, sequence)

    def class_of(self, rank: IntArray, item: IntArray) -> IntArray:
        """FRONT or BACK of pulled tiles; FRONT where the sequence has no classes."""
        key = rank * self.num_sequences + self.kv_sequence[item]
        back = self.prefix[key] & (self.order_of[rank, item] >= self.num_front[key])
        return np.where(back, BACK, FRONT)


@once_a_graph
def arrival_classes(graph: TaskGraph) -> ArrivalClasses:
    """Arrival classes of a placed or planned graph, from its compute rows and tile owners."""
    t, tiles = graph.tasks, graph.kv_tiles
    num_sequences = max(graph.problem.num_sequences, 1)
    num_keys = graph.world * num_sequences
    if not graph.problem.mask_bound.is_prefix_mask or not (t.role == Role.SELF).any():
        return _no_classes(graph, num_sequences)
    row, lo, hi = t.reads.of_space(Space.KV)
    compute = t.kind[row] == TaskKind.COMPUTE
    row, lo, hi = row[compute], lo[compute], hi[compute]
    foreign = ~owned_matrix(graph, Space.KV)
    prefix_sum = np.concatenate((np.zeros((graph.world, 1), np.int64), np.cumsum(foreign, axis=1)), axis=1)
    rank = t.rank[row]
    remote = prefix_sum[rank, hi] - prefix_sum[rank, lo]
    key = rank * num_sequences + tiles.sequence[lo] if len(lo) else rank

    start = np.searchsorted(tiles.sequence, np.arange(num_sequences))
    legal = np.ones(num_keys, bool)
    once = np.bincount(row, minlength=len(t))[row] == 1
    legal[key[~once | (lo != start[tiles.sequence[lo]] if len(lo) else once)]] = False
    legal[key[tiles.group[lo] != 1]] = False

    num_all, num_front = _two_classes(key, remote, num_keys, legal)
    order = prefix_sum[:, :-1] - prefix_sum[:, start[tiles.sequence]]
    return ArrivalClasses(
        num_sequences=num_sequences,
        kv_sequence=tiles.sequence,
        task=row,
        key=key,
        remote=remote,
        local=hi - lo - remote,
        prefix=legal,
        num_front=num_front,
        num_all=num_all,
        order_of=order,
    )


def _no_classes(graph: TaskGraph, num_sequences: int) -> ArrivalClasses:
    """Where nothing can form by readiness: another mask, or a decode batch."""
    none, zero = np.zeros(0, np.int64), np.zeros(graph.world * num_sequences, np.int64)
    return ArrivalClasses(
        num_sequences=num_sequences,
        kv_sequence=graph.kv_tiles.sequence,
        task=none,
        key=none,
        remote=none,
        local=none,
        prefix=zero > 0,
        num_front=zero,
        num_all=zero,
        order_of=np.zeros((graph.world, len(graph.kv_tiles)), np.int64),
    )


def _two_classes(key: IntArray, remote: IntArray, num_keys: int, legal: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """(largest, smallest non-zero) remote count of each key; clears ``legal`` where there is a third."""
    num_all, num_front = np.zeros(num_keys, np.int64), np.full(num_keys, np.iinfo(np.int64).max)
    some = remote > 0
    np.maximum.at(num_all, key[some], remote[some])
    np.minimum.at(num_front, key[some], remote[some])
    num_front = np.minimum(num_front, num_all)
    between = some & (remote != num_all[key]) & (remote != num_front[key])
    legal[key[between]] = False
    return num_all, num_front
