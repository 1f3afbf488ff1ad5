"""What the BuddyRing search works on: lengths as exact integer loads, the buddy tree, and which groups are legal.

All loads are integers in units of 1 / scale tokens (and 1 / scale query-key pairs), where scale is a power of two that
every group size divides, so that shares, means and deviations are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.intervals import IntArray

#: Longest length of each class of the splitting profile but the last (paper A.1).
CLASS_LIMITS = (2048, 4096, 8192, 16384)
NUM_CLASSES = len(CLASS_LIMITS) + 1
#: A token limit that nothing reaches.
NO_LIMIT = 1 << 62


class Loads(NamedTuple):
    """Sequences and ranks of one search; the compiled kernels take it as it is.

    Sequences run by decreasing kappa. Groups are numbered as a heap: 1 is all ranks, 2h and 2h + 1 are the halves of
    h. Fields: ``tokens``, ``work`` (int64 [num_sequences], scaled), ``length_class``, ``legal`` (bit k: groups of
    2**k ranks); ``size_log``, ``first`` (int64 [2 * num_ranks], by group); ``base_tokens``, ``base_work``: load that
    every rank has already; ``mean_*``: target a rank; ``slack_*``: deviation allowed, rounded down; ``tolerance_*``:
    the same as a share; ``token_cap``: most tokens a rank may hold.
    """

    tokens: IntArray
    work: IntArray
    length_class: IntArray
    legal: IntArray
    size_log: IntArray
    first: IntArray
    num_ranks: int
    base_tokens: int
    base_work: int
    mean_tokens: int
    mean_work: int
    slack_tokens: int
    slack_work: int
    tolerance_tokens: float
    tolerance_work: float
    token_cap: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """Means and tolerances of a whole batch, shared by the searches of all its nodes.

    Fields: ``world``; ``scale``: units of a token; ``mean_tokens``, ``mean_work``: exact means of a rank, scaled;
    ``tolerance_tokens``, ``tolerance_work``; ``token_cap``: scaled.
    """

    world: int
    scale: int
    mean_tokens: int
    mean_work: int
    tolerance_tokens: float
    tolerance_work: float
    token_cap: int

    @classmethod
    def make(
        cls, lengths: IntArray, world: int, tolerances: tuple[float, float], token_cap: int | None = None
    ) -> Target:
        """Of lengths > 0. Raises InvalidField when the work does not fit 62 bits."""
        scale = max(8, world)
        total = sum(int(n) * (int(n) + 1) // 2 for n in lengths)
        if total * scale >= NO_LIMIT:
            raise InvalidField("lengths", total, f"query-key pairs below 2**62 / {scale} in all")
        return cls(
            world=world,
            scale=scale,
            mean_tokens=int(lengths.sum()) * (scale // world),
            mean_work=total * (scale // world),
            tolerance_tokens=tolerances[0],
            tolerance_work=tolerances[1],
            token_cap=NO_LIMIT if token_cap is None else token_cap * scale,
        )

    def slack(self, mean: int, tolerance: float) -> int:
        """Largest deviation within tolerance. The tolerance counts as the decimal number it prints as."""
        return min(int(Fraction(repr(tolerance)) * mean), NO_LIMIT)

    def kappa(self, lengths: IntArray) -> np.ndarray:
        """float64 [n]: the larger of a sequence's shares of a rank's mean tokens and mean work (paper 4.2)."""
        tokens, work = scaled(lengths, self.scale)
        return np.maximum(tokens / self.mean_tokens, work / self.mean_work)

    def loads(self, lengths: IntArray, legal: IntArray, num_ranks: int, base: tuple[int, int] = (0, 0)) -> Loads:
        """The search over ``num_ranks`` ranks for sequences given by decreasing kappa."""
        tokens, work = scaled(lengths, self.scale)
        depth = np.array([max(h, 1).bit_length() - 1 for h in range(2 * num_ranks)], np.int64)
        size_log = num_ranks.bit_length() - 1 - depth
        first = (np.arange(2 * num_ranks) - (1 << depth)) << size_log
        return Loads(
            tokens,
            work,
            np.searchsorted(CLASS_LIMITS, lengths).astype(np.int64),
            np.asarray(legal, np.int64),
            size_log,
            first,
            num_ranks,
            *base,
            self.mean_tokens,
            self.mean_work,
            self.slack(self.mean_tokens, self.tolerance_tokens),
            self.slack(self.mean_work, self.tolerance_work),
            self.tolerance_tokens,
            self.tolerance_work,
            self.token_cap,
        )


def scaled(lengths: IntArray, scale: int) -> tuple[IntArray, IntArray]:
    """(tokens, work) in units of 1 / scale; work of a causal sequence is L (L + 1) / 2."""
    return lengths * scale, lengths * (lengths + 1) // 2 * scale


def legal_sizes(lengths: IntArray, tile: int, legality: str, max_group: int, token_limit: int | None) -> IntArray:
    """Bit k of each: a group of 2**k ranks may share the sequence.

    ``paper``: 256 * g divides the length (A.1). ``tile``: at least 2 * g tiles, so that every rank holds a piece of
    both halves. With ``token_limit``, only groups whose largest share fits it.
    """
    num_tiles = -(-lengths // tile)
    legal = np.zeros(len(lengths), np.int64)
    for k in range(max_group.bit_length()):
        g = 1 << k
        fits = (lengths % (256 * g) == 0 if legality == "paper" else num_tiles >= 2 * g) | (g == 1)
        if token_limit is not None:
            fits &= largest_share(lengths, tile, g) <= token_limit
        legal |= fits.astype(np.int64) << k
    return legal


def largest_share(lengths: IntArray, tile: int, group: int) -> IntArray:
    """Most tokens that a rank gets of each sequence when ``group`` ranks share it by whole tiles."""
    runs = np.arange(2 * group + 1)[:, None] * (-(-lengths // tile)) // (2 * group)
    tokens = np.diff(np.minimum(runs * tile, lengths), axis=0)
    return (tokens[:group] + tokens[: group - 1 : -1]).max(0)


def smallest_sizes(loads: Loads, legal: IntArray) -> IntArray:
    """log2 of the minimum group size of structural sequences (A.1): the smallest legal that keeps both loads within
    tolerance of the mean, else the largest legal."""
    most_tokens, most_work = loads.mean_tokens + loads.slack_tokens, loads.mean_work + loads.slack_work
    best = np.full(len(legal), -1, np.int64)
    largest = np.zeros(len(legal), np.int64)
    for k in range(loads.num_ranks.bit_length()):
        allowed = (legal >> k & 1).astype(bool)
        fits = allowed & (loads.tokens >> k <= most_tokens) & (loads.work >> k <= most_work)
        best = np.where((best < 0) & fits, k, best)
        largest = np.where(allowed, k, largest)
    return np.where(best < 0, largest, best)
