"""Masks bound to the lengths of one problem: exact visibility, and key intervals of row ranges for many tiles
at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from liquidcp_compiler.errors import InvalidField, MaskError
from liquidcp_compiler.ir.mask import Causal, Full, Mask
from liquidcp_compiler.ir.problem_fields import whole_number

if TYPE_CHECKING:
    from liquidcp_compiler.ir.problem import Problem

Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Intervals = tuple[Int64Array, Int64Array, Int64Array]
UNLIMITED = 2**42
"""Window reach that covers any sequence (problem_fields.MAX_TOKENS is 2**40)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundMask(ABC):
    """A mask over the sequences of one problem.

    ``q_idx`` is a query's index in its sequence, 0 .. q_len - 1; ``k_pos`` a key's position, 0 .. kv_len - 1.
    ``q_lengths``, ``kv_lengths``: int64 [num_sequences].
    """

    mask: Mask
    q_lengths: Int64Array
    kv_lengths: Int64Array

    @property
    def is_prefix_mask(self) -> bool:
        """True where a row range's keys are always [0, n) (causal and full)."""
        return isinstance(self.mask, (Causal, Full))

    def visible(self, seq: int, q_idx: ArrayLike, k_pos: ArrayLike) -> BoolArray:
        """bool [m, n]: may query ``q_idx[m]`` see key ``k_pos[n]``? Pairs outside the sequence are hidden."""
        q, k = _int64(q_idx), _int64(k_pos)
        q_len, kv_len = int(self.q_lengths[seq]), int(self.kv_lengths[seq])
        if q_len == 0 or kv_len == 0:
            return np.zeros((q.size, k.size), np.bool_)
        inside = ((q >= 0) & (q < q_len))[:, None] & ((k >= 0) & (k < kv_len))[None, :]
        return inside & self._visible(seq, np.clip(q, 0, q_len - 1), k)

    def intervals(self, seq: ArrayLike, q_lo: ArrayLike, q_hi: ArrayLike) -> Intervals:
        """Key intervals that hold every visible pair of each row range [q_lo, q_hi); all int64 [N],
        broadcast.

        Returns ``(ptr [N + 1], lo, hi)``: range ``i`` has the intervals ``[lo[j], hi[j])``, ptr[i] <= j <
        ptr[i + 1], sorted, disjoint, apart from each other, not empty. The keys at both ends are visible to
        some row of the range.
        """
        s, lo, hi = np.broadcast_arrays(_int64(seq), _int64(q_lo), _int64(q_hi))
        return self._intervals(s, np.maximum(lo, 0), np.minimum(hi, self.q_lengths[s]))

    def fully_visible(
        self, seq: ArrayLike, q_lo: ArrayLike, q_hi: ArrayLike, k_lo: ArrayLike, k_hi: ArrayLike
    ) -> BoolArray:
        """bool [N]: are all pairs of the rectangle [q_lo, q_hi) x [k_lo, k_hi) visible? An empty rectangle
        is.

        A rectangle that leaves the sequence is not.
        """
        s, q0, q1, k0, k1 = np.broadcast_arrays(*map(_int64, (seq, q_lo, q_hi, k_lo, k_hi)))
        empty = (q0 >= q1) | (k0 >= k1)
        inside = (q0 >= 0) & (q1 <= self.q_lengths[s]) & (k0 >= 0) & (k1 <= self.kv_lengths[s])
        test = np.flatnonzero(inside & ~empty)
        result = empty.copy()
        result[test] = self._fully_visible(s[test], q0[test], q1[test], k0[test], k1[test])
        return result

    def count_visible(self, seq: int) -> int:
        """Number of visible (query, key) pairs of one sequence, exact."""
        return int(self.visible_per_row(seq).sum())

    @abstractmethod
    def visible_per_row(self, seq: int) -> Int64Array:
        """int64 [q_len]: how many keys each query of the sequence sees."""

    @abstractmethod
    def _visible(self, seq: int, q: Int64Array, k: Int64Array) -> BoolArray: ...

    @abstractmethod
    def _intervals(self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array) -> Intervals: ...

    @abstractmethod
    def _fully_visible(
        self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array, k_lo: Int64Array, k_hi: Int64Array
    ) -> BoolArray: ...


class BandMask(BoundMask):
    """Each row sees one interval whose ends never move back from a row to the next, and neighbours touch or
    overlap.
    """

    @abstractmethod
    def row_bounds(self, seq: Int64Array | int, q: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The interval [lo, hi) of each row, within [0, kv_len]; a row that sees nothing has lo >= hi."""

    def visible_per_row(self, seq: int) -> Int64Array:
        lo, hi = self.row_bounds(seq, np.arange(self.q_lengths[seq], dtype=np.int64))
        return np.maximum(hi - lo, 0)

    def _visible(self, seq: int, q: Int64Array, k: Int64Array) -> BoolArray:
        lo, hi = self.row_bounds(seq, q)
        return (k >= lo[:, None]) & (k < hi[:, None])

    def _intervals(self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array) -> Intervals:
        rows = q_hi > q_lo
        first, last = np.where(rows, q_lo, 0), np.where(rows, q_hi - 1, 0)
        lo, hi = self.row_bounds(seq, first)[0], self.row_bounds(seq, last)[1]
        return _pack(lo[:, None], np.where(rows, hi, 0)[:, None])

    def _fully_visible(
        self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array, k_lo: Int64Array, k_hi: Int64Array
    ) -> BoolArray:
        return (k_lo >= self.row_bounds(seq, q_hi - 1)[0]) & (k_hi <= self.row_bounds(seq, q_lo)[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowBoundMask(BandMask):
    """Causal, full and sliding window: position p sees p - left .. p + right."""

    left: int
    right: int

    def row_bounds(self, seq: Int64Array | int, q: Int64Array) -> tuple[Int64Array, Int64Array]:
        kv_len = self.kv_lengths[seq]
        position = q + (kv_len - self.q_lengths[seq])
        return np.maximum(position - self.left, 0), np.clip(position + (self.right + 1), 0, kv_len)


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentBoundMask(BandMask):
    """Causal inside each document; ``seq_starts``: first packed token of each sequence, ``doc_starts``:
    borders.
    """

    seq_starts: Int64Array
    doc_starts: Int64Array

    def row_bounds(self, seq: Int64Array | int, q: Int64Array) -> tuple[Int64Array, Int64Array]:
        start = self.seq_starts[seq]
        # With empty documents several borders coincide; "right" finds the last of them, the document that has
        # the token.
        document = np.searchsorted(self.doc_starts, start + q, side="right") - 1
        lo = np.maximum(self.doc_starts[document] - start, 0)
        return lo, np.minimum(q + 1, self.kv_lengths[seq])


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedPrefixBoundMask(BoundMask):
    """One packed sequence. A row sees [0, prefix) and its own document, both up to itself. ``doc_starts``:
    int64 [docs].
    """

    prefix: int
    doc_starts: Int64Array

    def own_start(self, q: Int64Array) -> Int64Array:
        """First token of the document of each row."""
        return self.doc_starts[np.searchsorted(self.doc_starts, q, side="right") - 1]

    def visible_per_row(self, seq: int) -> Int64Array:
        q = np.arange(self.q_lengths[seq], dtype=np.int64)
        start = self.own_start(q)
        return q + 1 - start + np.where(start > 0, self.prefix, 0)

    def _visible(self, seq: int, q: Int64Array, k: Int64Array) -> BoolArray:
        return (k <= q[:, None]) & ((k < self.prefix) | (k >= self.own_start(q)[:, None]))

    def _intervals(self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array) -> Intervals:
        # A range that begins in the first document sees all up to its end; a later one sees the prefix as
        # well.
        start = self.own_start(q_lo)
        joined = start <= self.prefix
        lo = np.stack([np.zeros_like(start), np.where(joined, q_hi, start)], axis=1)
        hi = np.stack([np.where(joined, q_hi, self.prefix), q_hi], axis=1)
        return _pack(lo, np.where((q_hi > q_lo)[:, None], hi, 0))

    def _fully_visible(
        self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array, k_lo: Int64Array, k_hi: Int64Array
    ) -> BoolArray:
        start = self.own_start(q_hi - 1)
        return (k_hi <= q_lo + 1) & ((k_hi <= self.prefix) | (k_lo >= start) | (start <= self.prefix))


def explain_mask(problem: Problem, sequence: int = 0, max_size: int = 64) -> str:
    """The dense mask of one small sequence as text: '#' visible, '.' hidden, with query and key positions.

    Raises InvalidField for a sequence that does not exist, MaskError where it is longer than ``max_size``.
    """
    bound = problem.mask_bound
    sequence = whole_number("sequence", sequence, maximum=max(problem.num_sequences - 1, 0))
    if problem.num_sequences == 0:
        raise InvalidField("sequence", sequence, "the index of a sequence; the batch has none")
    q_len, kv_len = int(bound.q_lengths[sequence]), int(bound.kv_lengths[sequence])
    if max(q_len, kv_len) > max_size:
        raise MaskError(
            f"sequence {sequence} has {q_len} queries and {kv_len} keys; explain_mask draws up to {max_size} "
            "(max_size). Shorten the problem, or raise max_size"
        )
    labels = [f"query {i} (position {i + kv_len - q_len}) " for i in range(q_len)]
    margin = max(map(len, labels), default=0)
    digits = len(str(max(kv_len - 1, 0)))
    header = ["".join(f"{k:>{digits}}"[row] for k in range(kv_len)) for row in range(digits)]
    cells = np.where(bound.visible(sequence, np.arange(q_len), np.arange(kv_len)), "#", ".")
    what = f"{q_len} queries x {kv_len} keys, mask {bound.mask.type}"
    title = f"sequence {sequence}: {what}; '#' visible, '.' hidden"
    lines = [title, *(" " * margin + line for line in header)]
    lines += [label.ljust(margin) + "".join(row) for label, row in zip(labels, cells, strict=True)]
    return "\n".join(lines)


def _int64(values: ArrayLike) -> Int64Array:
    array = np.atleast_1d(np.asarray(values))
    return array.astype(np.int64, casting="same_kind" if array.size else "unsafe", copy=False)


def _pack(lo: Int64Array, hi: Int64Array) -> Intervals:
    """Rows of [N, c] candidate intervals to (ptr, lo, hi), leaving the empty ones out."""
    keep = hi > lo
    ptr = np.zeros(lo.shape[0] + 1, np.int64)
    np.cumsum(keep.sum(axis=1), out=ptr[1:])
    return ptr, lo[keep], hi[keep]
