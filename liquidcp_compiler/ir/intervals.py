"""Rows of integer intervals in CSR form, and the few operations that builders, passes and the verifier need on them.

An interval is half open: [lo, hi). Row i of a table owns entries ptr[i]:ptr[i+1]. Everything here is vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AccessTable:
    """What each task reads (or writes): CSR rows of (space, lo, hi).

    Fields: ``ptr`` int64 [num_tasks + 1]; ``space`` uint8, ``lo`` and ``hi`` int64 [num_entries].
    """

    ptr: IntArray
    space: NDArray[np.uint8]
    lo: IntArray
    hi: IntArray

    @classmethod
    def empty(cls, num_rows: int = 0) -> AccessTable:
        """``num_rows`` rows without entries."""
        z = np.zeros(0, np.int64)
        return cls(np.zeros(num_rows + 1, np.int64), np.zeros(0, np.uint8), z, z)

    @classmethod
    def single(cls, space: int, lo: IntArray, hi: IntArray) -> AccessTable:
        """One entry a row."""
        n = len(lo)
        return cls(np.arange(n + 1, dtype=np.int64), np.full(n, space, np.uint8), as_int(lo), as_int(hi))

    @classmethod
    def from_rows(cls, num_rows: int, row: IntArray, space: NDArray, lo: IntArray, hi: IntArray) -> AccessTable:
        """Entries in any order, sorted (stably) into their rows."""
        order = sort_by(as_int(row))
        ptr = np.zeros(num_rows + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=num_rows), out=ptr[1:])
        return cls(ptr, np.asarray(space, np.uint8)[order], as_int(lo)[order], as_int(hi)[order])

    @cached_property
    def row(self) -> IntArray:
        """Row of every entry."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))

    @cached_property
    def _by_space(self) -> dict[int, tuple[IntArray, IntArray, IntArray]]:
        return {}

    def of_space(self, space: int) -> tuple[IntArray, IntArray, IntArray]:
        """(row, lo, hi) of the entries in one space, in row order."""
        if space not in self._by_space:
            keep = np.flatnonzero(self.space == space)
            self._by_space[space] = self.row[keep], self.lo[keep], self.hi[keep]
        return self._by_space[space]

    def take(self, rows: IntArray) -> AccessTable:
        """The table of the given rows, in the given order (rows may repeat)."""
        rows = as_int(rows)
        counts = np.diff(self.ptr)[rows]
        ptr = np.concatenate(([0], np.cumsum(counts)))
        src = expand(self.ptr[rows], self.ptr[rows] + counts)
        return AccessTable(ptr, self.space[src], self.lo[src], self.hi[src])


def as_int(values) -> IntArray:
    """An int64 array of the values."""
    return np.asarray(values, dtype=np.int64)


def concat(tables: list[AccessTable]) -> AccessTable:
    """The rows of several tables one after another."""
    starts = np.cumsum([0] + [len(t.lo) for t in tables])
    ptrs = [t.ptr[:-1] + s for t, s in zip(tables, starts, strict=False)]
    return AccessTable(
        np.concatenate([*ptrs, starts[-1:]]).astype(np.int64),
        np.concatenate([t.space for t in tables]).astype(np.uint8),
        np.concatenate([t.lo for t in tables]).astype(np.int64),
        np.concatenate([t.hi for t in tables]).astype(np.int64),
    )


def expand(lo: IntArray, hi: IntArray) -> IntArray:
    """All integers of all intervals, one interval after another."""
    counts = as_int(hi) - as_int(lo)
    total = int(counts.sum())
    if not total:
        return np.zeros(0, np.int64)
    starts = np.cumsum(counts) - counts
    return np.arange(total, dtype=np.int64) - np.repeat(starts - as_int(lo), counts)


def merge_sorted(row: IntArray, lo: IntArray, hi: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Joins entries that overlap or touch. Entries must be sorted by (row, lo), with hi non-decreasing in a row."""
    if not len(row):
        return row, lo, hi
    fresh = np.ones(len(row), bool)
    fresh[1:] = (row[1:] != row[:-1]) | (lo[1:] > hi[:-1])
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(row)) - 1
    return row[first], lo[first], hi[last]


def sort_by(key: IntArray) -> IntArray:
    """Stable order of an integer key; the identity if it is sorted already, which is the usual case."""
    if len(key) < 2 or bool((key[1:] >= key[:-1]).all()):
        return np.arange(len(key), dtype=np.int64)
    return np.argsort(key, kind="stable")


def rank_in_group(key: IntArray) -> IntArray:
    """For each element its place among the earlier elements of the same key (0, 1, …)."""
    order = sort_by(key)
    sorted_key = key[order]
    start = np.ones(len(key), bool)
    start[1:] = sorted_key[1:] != sorted_key[:-1]
    first = np.flatnonzero(start)
    place = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
    out = np.empty(len(key), np.int64)
    out[order] = place
    return out
