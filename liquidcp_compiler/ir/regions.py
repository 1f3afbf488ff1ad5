"""From a mask to KV tiles: which tiles each query range needs."""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.ir.intervals import IntArray, merge_sorted
from liquidcp_compiler.ir.problem import Problem
from liquidcp_compiler.ir.tiles import TileTable


def needed_tiles(
    problem: Problem,
    sequence: IntArray,
    q_lo: IntArray,
    q_hi: IntArray,
    kv_tiles: TileTable,
    rank: IntArray | None = None,
    kv_lo: IntArray | None = None,
    kv_hi: IntArray | None = None,
) -> tuple[IntArray, IntArray, IntArray]:
    """KV tiles with a key that some query of a range may see.

    Ranges are [q_lo, q_hi) of ``sequence`` (int64 [N]). Returns (range, lo, hi): intervals of tile ids, sorted by
    (range, lo), disjoint. With ``rank`` (int64 [N]) only the tiles of that owner count (a shard), else all of them.
    ``kv_lo`` and ``kv_hi`` (int64 [N]) narrow the keys to [kv_lo, kv_hi).
    """
    shards = ShardIndex(kv_tiles)
    ptr, lo, hi = problem.mask_bound.intervals(sequence, q_lo, q_hi)
    row = np.repeat(np.arange(len(sequence)), np.diff(ptr))
    if kv_lo is not None and kv_hi is not None:
        lo, hi = np.maximum(lo, kv_lo[row]), np.minimum(hi, kv_hi[row])
        row, lo, hi = row[lo < hi], lo[lo < hi], hi[lo < hi]
    owner = None if rank is None else rank[row]
    entry, shard = shards.of_sequence(sequence[row], owner)
    first, last = shards.tiles_within(shard, lo[entry], hi[entry])
    keep = first < last
    row, first, last = row[entry][keep], first[keep], last[keep]
    order = np.lexsort((first, row))
    return merge_sorted(row[order], first[order], last[order])


class ShardIndex:
    """Finds tiles by token. A shard is a run of consecutive tiles of one sequence, in ascending token order: a
    contiguous sequence is one shard; an interleaved one has a shard a rank; replicated tiles are one more."""

    def __init__(self, tiles: TileTable) -> None:
        n = len(tiles)
        self.first_token, self.last_token = tiles.first_token, tiles.last_token
        fresh = np.ones(n, bool)
        same = (tiles.sequence[1:] == tiles.sequence[:-1]) & (tiles.phase[1:] == tiles.phase[:-1])
        same &= (tiles.group[1:] == tiles.group[:-1]) & (self.first_token[1:] > self.last_token[:-1])
        fresh[1:] = ~same
        self.start = np.flatnonzero(fresh)
        self.end = np.append(self.start[1:], n).astype(np.int64)
        self.sequence = tiles.sequence[self.start]
        mixed = tiles.group[self.start] == 1
        self.owner = np.where(mixed & (tiles.rank[self.start] >= 0), -2, tiles.rank[self.start])
        self._by_sequence = np.argsort(self.sequence, kind="stable")
        self._sorted = self.sequence[self._by_sequence]

    def of_sequence(self, sequence: IntArray, owner: IntArray | None) -> tuple[IntArray, IntArray]:
        """(entry, shard) pairs: every shard of each entry's sequence, or only those of its owner (replicated and
        unsharded ones always count)."""
        a = np.searchsorted(self._sorted, sequence, "left")
        b = np.searchsorted(self._sorted, sequence, "right")
        entry = np.repeat(np.arange(len(sequence)), b - a)
        if not len(entry):
            return entry, entry
        offset = np.arange(len(entry)) - np.repeat(np.cumsum(b - a) - (b - a), b - a)
        shard = self._by_sequence[a[entry] + offset]
        if owner is not None:
            keep = (self.owner[shard] == owner[entry]) | (self.owner[shard] < 0)
            entry, shard = entry[keep], shard[keep]
        return entry, shard

    def tiles_within(self, shard: IntArray, lo: IntArray, hi: IntArray) -> tuple[IntArray, IntArray]:
        """Tile id interval of each shard whose token spans meet [lo, hi); empty as first >= last."""
        first = self._search(self.last_token, shard, lo, "left")
        last = self._search(self.first_token, shard, hi, "left")
        return first, last

    def _search(self, tokens: IntArray, shard: IntArray, value: IntArray, side) -> IntArray:
        big = int(max(tokens.max(initial=0), value.max(initial=0))) + 2
        shard_of_tile = np.repeat(np.arange(len(self.start)), self.end - self.start)
        return np.searchsorted(shard_of_tile * big + tokens, shard * big + np.clip(value, 0, big - 1), side)
