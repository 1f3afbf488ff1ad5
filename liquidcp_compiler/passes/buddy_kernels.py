"""Compiled kernels of the BuddyRing search: loads of a partial placement, the rank key, and placing fillers.

A state is (tokens [num_ranks], work [num_ranks], agg [7], count [2 * num_ranks]): loads of the ranks, what the key adds
up (splitting profile by class, communication, distinct groups), and sequences in each group. The kernels are cached on
disk beside the source; the cache watches only the file of the kernel that is called, so remove it (``__pycache__``)
after a change to another one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

#: One split sequence in an entry of the profile; its depth is added below.
SPLIT = 1 << 24
COMM, GROUPS, NUM_AGG = 5, 6, 7
#: Key: tokens above the cap, violation, profile of 5 classes, communication, distinct groups, D_W, D_T (as integers).
NUM_KEY = 11
VIOLATION = 1
#: Violations are compared in units of 2**-50, far below what one token changes.
ONE = float(1 << 50)
MAX_EXPONENT = 300.0


@njit(cache=True)
def less(a, b):
    """a < b, lexicographically."""
    for k in range(len(a)):
        if a[k] != b[k]:
            return a[k] < b[k]
    return False


@njit(cache=True)
def new_state(p):
    """The state with no sequence placed."""
    tokens = np.full(p.num_ranks, p.base_tokens, np.int64)
    work = np.full(p.num_ranks, p.base_work, np.int64)
    return tokens, work, np.zeros(NUM_AGG, np.int64), np.zeros(2 * p.num_ranks, np.int64)


@njit(cache=True)
def add(p, state, i, h, sign):
    """Puts sequence i on group h (sign 1) or takes it away (sign -1)."""
    tokens, work, agg, count = state
    k = p.size_log[h]
    share, pairs = sign * (p.tokens[i] >> k), sign * (p.work[i] >> k)
    for r in range(p.first[h], p.first[h] + (1 << k)):
        tokens[r] += share
        work[r] += pairs
    if k > 0:
        agg[p.length_class[i]] += sign * (SPLIT + k)
        agg[COMM] += sign * (p.tokens[i] - (p.tokens[i] >> k))
    before = count[h]
    count[h] += sign
    if before == 0 or count[h] == 0:
        agg[GROUPS] += sign


@njit(cache=True)
def state_of(p, node):
    """The state of a placement; sequences with node 0 are left out."""
    state = new_state(p)
    for i in range(len(node)):
        if node[i] > 0:
            add(p, state, i, node[i], 1)
    return state


@njit(cache=True)
def excess(deviation, slack, mean, tolerance):
    """How far a relative deviation is beyond its tolerance, in units of 1 / ONE; 0 within."""
    if deviation <= slack:
        return np.int64(0)
    return max(np.int64(1), np.int64((deviation / mean - tolerance) * ONE))


@njit(cache=True)
def measure(p, state, key):
    """Writes the rank key of a state (paper 4.2); smaller is better."""
    tokens, work, agg, count = state
    measure_loads(p, tokens.min(), tokens.max(), work.min(), work.max(), key)
    for k in range(NUM_AGG):
        key[2 + k] = agg[k]


@njit(cache=True)
def measure_loads(p, low_t, high_t, low_w, high_w, key):
    """Writes what the extreme loads decide of a key: violations and deviations."""
    dev_t = max(high_t - p.mean_tokens, p.mean_tokens - low_t)
    dev_w = max(high_w - p.mean_work, p.mean_work - low_w)
    key[0] = max(0, high_t - p.token_cap)
    key[VIOLATION] = max(
        excess(dev_t, p.slack_tokens, p.mean_tokens, p.tolerance_tokens),
        excess(dev_w, p.slack_work, p.mean_work, p.tolerance_work),
    )
    key[2 + NUM_AGG] = dev_w
    key[3 + NUM_AGG] = dev_t


@njit(cache=True)
def key_of(p, node):
    """The rank key of a placement: int64 [NUM_KEY]."""
    key = np.zeros(NUM_KEY, np.int64)
    measure(p, state_of(p, node), key)
    return key


@njit(cache=True)
def overload(p, high_t, high_w):
    """The larger overload of the two loads, in units of 1 / ONE."""
    return max(
        excess(high_t - p.mean_tokens, p.slack_tokens, p.mean_tokens, p.tolerance_tokens),
        excess(high_w - p.mean_work, p.slack_work, p.mean_work, p.tolerance_work),
    )


@njit(cache=True)
def power(load, mean, smooth):
    """exp(smooth * load / mean), the term of a rank in the smooth maximum."""
    return np.exp(min(smooth * load / mean, MAX_EXPONENT))


@njit(cache=True)
def fill(p, node, smooth):
    """Places every sequence whose node is 0 on one rank, by decreasing kappa (A.1); changes ``node``.

    The sum of two smooth maxima is least where the product of their sums of exponentials is. Terms come from the
    integer loads, so that ranks of equal loads tie exactly and the lower one is taken.
    """
    state = state_of(p, node)
    tokens, work = state[0], state[1]
    n = p.num_ranks
    term_t, term_w = np.empty(n), np.empty(n)
    for r in range(n):
        term_t[r], term_w[r] = power(tokens[r], p.mean_tokens, smooth), power(work[r], p.mean_work, smooth)
    for i in range(len(node)):
        if node[i] > 0:
            continue
        r = lightest(p, state, i, term_t, term_w, smooth)
        node[i] = n + r
        add(p, state, i, n + r, 1)
        term_t[r], term_w[r] = power(tokens[r], p.mean_tokens, smooth), power(work[r], p.mean_work, smooth)


@njit(cache=True)
def lightest(p, state, i, term_t, term_w, smooth):
    """Rank where sequence i gives the smallest larger overload; ties by smooth maxima, then the lower rank."""
    tokens, work = state[0], state[1]
    high_t, high_w, sum_t, sum_w = tokens.max(), work.max(), term_t.sum(), term_w.sum()
    grow_t = power(p.tokens[i], p.mean_tokens, smooth) - 1
    grow_w = power(p.work[i], p.mean_work, smooth) - 1
    best, best_over, best_smooth = 0, np.int64(1) << 62, np.inf
    for r in range(p.num_ranks):
        over = overload(p, max(high_t, tokens[r] + p.tokens[i]), max(high_w, work[r] + p.work[i]))
        product = (sum_t + term_t[r] * grow_t) * (sum_w + term_w[r] * grow_w)
        if over < best_over or (over == best_over and product < best_smooth):
            best, best_over, best_smooth = r, over, product
    return best
