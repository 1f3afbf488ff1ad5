"""Rules of authored graphs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from liquidcp_compiler.ir.graph import AuthoredGraph


def regions_in_bounds(graph: AuthoredGraph) -> Iterator[tuple[int, str]]:
    """Every region lies inside its sequence."""
    r, p = graph.regions, graph.problem
    if len(r) and (r.sequence.min() < 0 or r.sequence.max() >= p.num_sequences):
        yield -1, f"a region names a sequence outside 0 to {p.num_sequences - 1}"
        return
    q, kv = p.q_lengths[r.sequence], p.kv_lengths_array[r.sequence]
    bad = (r.q_lo < 0) | (r.q_lo > r.q_hi) | (r.q_hi > q) | (r.kv_lo < 0) | (r.kv_lo > r.kv_hi) | (r.kv_hi > kv)
    for i in np.flatnonzero(bad)[:1]:
        yield -1, f"region {i}: q {r.q_lo[i]}:{r.q_hi[i]} kv {r.kv_lo[i]}:{r.kv_hi[i]} leaves {q[i]} x {kv[i]}"


def regions_cover_once(graph: AuthoredGraph) -> Iterator[tuple[int, str]]:
    """The regions of a sequence cover queries x keys, and do not overlap."""
    r, p = graph.regions, graph.problem
    area = (r.q_hi - r.q_lo) * (r.kv_hi - r.kv_lo)
    # Not bincount: its sums are float64, and a sequence of 100 million tokens has more pairs than that counts exactly.
    covered = np.zeros(p.num_sequences, np.int64)
    np.add.at(covered, r.sequence, area)
    whole = p.q_lengths * p.kv_lengths_array
    for s in np.flatnonzero(covered != whole)[:1]:
        yield -1, f"regions of sequence {s} cover {covered[s]} query-key pairs of {whole[s]}"
    for s in np.unique(r.sequence[1:][np.diff(np.sort(r.sequence)) == 0]):
        rows = np.flatnonzero((r.sequence == s) & (area > 0))
        lo, hi = np.maximum.outer(r.q_lo[rows], r.q_lo[rows]), np.minimum.outer(r.q_hi[rows], r.q_hi[rows])
        klo, khi = np.maximum.outer(r.kv_lo[rows], r.kv_lo[rows]), np.minimum.outer(r.kv_hi[rows], r.kv_hi[rows])
        meet = (lo < hi) & (klo < khi)
        np.fill_diagonal(meet, False)
        for a, b in np.argwhere(meet)[:1]:
            yield -1, f"regions {rows[a]} and {rows[b]} of sequence {s} overlap"
