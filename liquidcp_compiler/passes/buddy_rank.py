"""Compiled choice among the placements that the beam leaves: fill, rank, repair the best ones."""

from __future__ import annotations

import numpy as np
from numba import njit

from liquidcp_compiler.passes.buddy_kernels import NUM_KEY, fill, key_of, less
from liquidcp_compiler.passes.buddy_repair import repair


@njit(cache=True)
def best_refined(p, nodes, smooth, num_refined, iterations, extremes, candidates):
    """(groups int64 [n], key) of the best placement after fillers are placed in all and the best are repaired.

    Changes ``nodes`` int64 [num_states, n], whose zeros are fillers.
    """
    num = len(nodes)
    keys = np.empty((num, NUM_KEY), np.int64)
    for s in range(num):
        fill(p, nodes[s], smooth)
        keys[s] = key_of(p, nodes[s])
    order = order_by_key(keys)
    best, best_key = nodes[order[0]], keys[order[0]]
    for s in order[:num_refined]:
        key = repair(p, nodes[s], iterations, extremes, candidates)
        if s == order[0] or less(key, best_key):
            best, best_key = nodes[s], key
    return best.copy(), best_key.copy()


@njit(cache=True)
def order_by_key(keys):
    """Indices of the keys from the best to the worst, ties in their order (insertion sort: there are few)."""
    order = np.arange(len(keys))
    for k in range(1, len(order)):
        s, at = order[k], k
        while at > 0 and less(keys[s], keys[order[at - 1]]):
            order[at] = order[at - 1]
            at -= 1
        order[at] = s
    return order
