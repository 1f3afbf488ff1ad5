"""Compiled exchange of sequences between nodes until their loads are alike (ours)."""

from __future__ import annotations

import numpy as np
from numba import njit

#: Smallest tolerance used as a weight.
LEAST_TOLERANCE = 1e-3


@njit(cache=True)
def balance(p, group, first_movable, budget):
    """Moves and exchanges sequences from ``first_movable`` on between single ranks of ``p`` (here nodes), ``budget``
    random tries, each kept if the sum over ranks of the squared deviations of both loads, in units of their
    tolerances, falls. The extremes alone would not tell most tries apart. Changes ``group``.
    """
    n, movable = p.num_ranks, len(group) - first_movable
    if movable < 1 or n < 2:
        return
    unit_t = p.mean_tokens * max(p.tolerance_tokens, LEAST_TOLERANCE)
    unit_w = p.mean_work * max(p.tolerance_work, LEAST_TOLERANCE)
    over_t, over_w = deviations(p, group, unit_t, unit_w)
    random = np.uint64(1)
    for _ in range(budget):
        random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        i = first_movable + np.int64((random >> np.uint64(33)) % np.uint64(movable))
        random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        # A number beyond the sequences is a rank to move to; otherwise it is a sequence to exchange with.
        j = first_movable + np.int64((random >> np.uint64(33)) % np.uint64(movable + n))
        moves = j >= len(group)
        a, b = group[i] - n, j - len(group) if moves else group[j] - n
        if a == b:
            continue
        d_t = (p.tokens[i] - (0 if moves else p.tokens[j])) / unit_t
        d_w = (p.work[i] - (0 if moves else p.work[j])) / unit_w
        # (x - d)^2 + (y + d)^2 < x^2 + y^2
        if d_t * (d_t - over_t[a] + over_t[b]) + d_w * (d_w - over_w[a] + over_w[b]) < -1e-12:
            group[i] = n + b
            if not moves:
                group[j] = n + a
            over_t[a], over_t[b] = over_t[a] - d_t, over_t[b] + d_t
            over_w[a], over_w[b] = over_w[a] - d_w, over_w[b] + d_w


@njit(cache=True)
def deviations(p, group, unit_t, unit_w):
    """Deviations of the ranks from the means, in the given units."""
    over_t = np.full(p.num_ranks, -p.mean_tokens / unit_t)
    over_w = np.full(p.num_ranks, -p.mean_work / unit_w)
    for i in range(len(group)):
        k, first = p.size_log[group[i]], p.first[group[i]]
        for r in range(first, first + (1 << k)):
            over_t[r] += (p.tokens[i] >> k) / unit_t
            over_w[r] += (p.work[i] >> k) / unit_w
    return over_t, over_w
