"""Compiled branch and bound over all placements: ours, for batches small enough to be decided."""

from __future__ import annotations

import numpy as np
from numba import njit

from liquidcp_compiler.passes.buddy_beam import is_mirror
from liquidcp_compiler.passes.buddy_kernels import NUM_AGG, NUM_KEY, VIOLATION, add, less, measure, new_state, overload


@njit(cache=True)
def decide(p, node, key, budget):
    """Looks for a better placement than ``node``; changes ``node`` and ``key`` to the best found.

    Visits at most ``budget`` partial placements; returns True if none was left out, so that the result is the best
    of all legal placements.
    """
    n, num_groups = len(node), 2 * p.num_ranks - 1
    state, bound = new_state(p), np.empty(NUM_KEY, np.int64)
    rest_t, rest_w = rest_of(p.tokens), rest_of(p.work)
    path = np.zeros(n, np.int64)
    below = np.zeros(n + 1, np.int64)
    step = np.int64(0)
    path[0] = num_groups + 1
    while step >= 0:
        h = path[step]
        if h <= num_groups:
            add(p, state, step, h, -1)
        h = next_group(p, step, h - 1, below[step])
        path[step] = h if h > 0 else num_groups + 1
        if h == 0:
            step -= 1
            continue
        if budget == 0:
            return False
        budget -= 1
        add(p, state, step, h, 1)
        if step + 1 == n:
            measure(p, state, bound)
            if less(bound, key):
                key[:] = bound
                node[:] = path
            continue
        lower_bound(p, state, rest_t[step + 1], rest_w[step + 1], bound)
        if less(bound, key):
            below[step + 1] = below[step] | ancestors(h)
            step += 1
            path[step] = num_groups + 1
    return True


@njit(cache=True)
def rest_of(load):
    """Sum of the loads from each sequence on."""
    rest = np.zeros(len(load) + 1, np.int64)
    for i in range(len(load) - 1, -1, -1):
        rest[i] = rest[i + 1] + load[i]
    return rest


@njit(cache=True)
def next_group(p, i, h, below):
    """The next group at or below number h that sequence i may take, small groups first; 0 if none."""
    while h > 0 and (not p.legal[i] >> p.size_log[h] & 1 or is_mirror(h, below)):
        h -= 1
    return h


@njit(cache=True)
def ancestors(h):
    """Bit mask of a group and all groups around it."""
    mask = 0
    while h > 0:
        mask |= 1 << h
        h >>= 1
    return mask


@njit(cache=True)
def lower_bound(p, state, rest_t, rest_w, bound):
    """Writes a key that no completion of the state can beat: loads only grow, and the rest may not fill the gaps."""
    tokens, work, agg, count = state
    high_t = high_w = lack_t = lack_w = np.int64(0)
    least_t, least_w = p.mean_tokens - p.slack_tokens, p.mean_work - p.slack_work
    for r in range(p.num_ranks):
        high_t, high_w = max(high_t, tokens[r]), max(high_w, work[r])
        lack_t += max(0, least_t - tokens[r])
        lack_w += max(0, least_w - work[r])
    short = lack_t > rest_t or lack_w > rest_w
    bound[0] = max(0, high_t - p.token_cap)
    bound[VIOLATION] = max(overload(p, high_t, high_w), np.int64(short))
    for k in range(NUM_AGG):
        bound[2 + k] = agg[k]
    bound[2 + NUM_AGG] = high_w - p.mean_work
    bound[3 + NUM_AGG] = high_t - p.mean_tokens
