"""Compiled local repair of complete placements (paper A.1), and the wider search of ours after it.

A change is (i, to) or (i, to, j, to_j): one or two sequences and their new groups; j = -1 where there is no second.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from liquidcp_compiler.passes.buddy_kernels import (
    COMM,
    GROUPS,
    NUM_AGG,
    NUM_KEY,
    SPLIT,
    VIOLATION,
    add,
    key_of,
    less,
    measure_loads,
    state_of,
)


@njit(cache=True)
def try_change(p, state, node, i, to, j, to_j, trial, best, change):
    """Keeps a change as ``change`` with its key as ``best`` if it is the best so far; leaves the state as it is."""
    if measure_change(p, state, node, i, to, j, to_j, trial, best) and less(trial, best):
        best[:] = trial
        change[0], change[1], change[2], change[3] = i, to, j, to_j


@njit(cache=True)
def measure_change(p, state, node, i, to, j, to_j, trial, best):
    """Writes the key after a change. Stops with False where the loads alone make it worse than ``best``: the search
    spends most of its time here."""
    old, old_j = node[i], node[j]
    taken_t, taken_w, taken_0, taken_1 = share(p, i, old)
    given_t, given_w, given_0, given_1 = share(p, i, to)
    taken_tj, taken_wj, taken_j0, taken_j1 = share(p, j, old_j)
    given_tj, given_wj, given_j0, given_j1 = share(p, j, to_j)
    low_t = low_w = np.int64(1) << 62
    high_t = high_w = np.int64(0)
    tokens, work, agg, count = state
    for r in range(p.num_ranks):
        t, w = tokens[r], work[r]
        if taken_0 <= r < taken_1:
            t, w = t - taken_t, w - taken_w
        if given_0 <= r < given_1:
            t, w = t + given_t, w + given_w
        if taken_j0 <= r < taken_j1:
            t, w = t - taken_tj, w - taken_wj
        if given_j0 <= r < given_j1:
            t, w = t + given_tj, w + given_wj
        low_t, high_t, low_w, high_w = min(low_t, t), max(high_t, t), min(low_w, w), max(high_w, w)
    measure_loads(p, low_t, high_t, low_w, high_w, trial)
    if trial[0] > best[0] or (trial[0] == best[0] and trial[VIOLATION] > best[VIOLATION]):
        return False
    for k in range(NUM_AGG):
        trial[2 + k] = agg[k]
    change_splits(p, trial, i, old, to)
    change_splits(p, trial, j, old_j, to_j)
    trial[2 + GROUPS] += change_groups(count, old, to, old_j if j >= 0 else 0, to_j)
    return True


@njit(cache=True)
def share(p, i, h):
    """(tokens, work, first rank, rank after the last) of sequence i on group h; an empty range where i is -1."""
    if i < 0:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    k = p.size_log[h]
    return p.tokens[i] >> k, p.work[i] >> k, p.first[h], p.first[h] + (1 << k)


@njit(cache=True)
def change_splits(p, key, i, old, to):
    """Adds to the profile and the communication of a key what moving sequence i from ``old`` to ``to`` changes."""
    before, after = p.size_log[old], p.size_log[to]
    if i >= 0 and before != after:
        key[2 + p.length_class[i]] += after - before + SPLIT * (int(after > 0) - int(before > 0))
        key[2 + COMM] += (p.tokens[i] >> before) - (p.tokens[i] >> after)


@njit(cache=True)
def change_groups(count, old, to, old_j, to_j):
    """How the number of groups in use changes when one or two (old_j > 0) sequences move."""
    total = 0
    for k in range(4):
        h = (old, to, old_j, to_j)[k]
        seen = h == 0
        for m in range(k):
            seen |= (old, to, old_j, to_j)[m] == h
        if not seen:
            after = count[h] + (to == h) - (old == h) + (old_j > 0) * (int(to_j == h) - int(old_j == h))
            total += int(after > 0) - int(count[h] > 0)
    return total


@njit(cache=True)
def apply_change(p, state, node, change):
    """Carries a change out."""
    for k in (0, 2):
        i, to = change[k], change[k + 1]
        if i >= 0:
            add(p, state, i, node[i], -1)
            node[i] = to
            add(p, state, i, to, 1)


@njit(cache=True)
def allows(p, i, h):
    """Sequence i may lie on group h."""
    return p.legal[i] >> p.size_log[h] & 1


@njit(cache=True)
def repair(p, node, iterations, extremes, candidates):
    """Takes the best improvement that the paper's moves offer until there is none; changes ``node``.

    Moves concern the ``candidates`` sequences of highest kappa on the ``extremes`` most and least loaded ranks of each
    load: see ``moves_of``, ``splits_of``. Returns the key.
    """
    state = state_of(p, node)
    key, trial, best = key_of(p, node), np.empty(NUM_KEY, np.int64), np.empty(NUM_KEY, np.int64)
    change = np.empty(4, np.int64)
    top = np.empty((p.num_ranks, candidates), np.int64)
    for _ in range(iterations):
        high, low = marked(state[0], extremes), marked(-state[0], extremes)
        high |= marked(state[1], extremes)
        low |= marked(-state[1], extremes)
        list_top(p, node, top, high | low)
        best[:] = key
        change[0] = -1
        for r in range(p.num_ranks):
            if high >> r & 1:
                for i in top[r]:
                    if i >= 0:
                        moves_of(p, state, node, i, r, low, top, trial, best, change)
        splits(p, state, node, high | low, top, trial, best, change)
        if change[0] < 0:
            break
        apply_change(p, state, node, change)
        key[:] = best
    return key


@njit(cache=True)
def marked(load, extremes):
    """Bit mask of the ``extremes`` most loaded ranks; ties go to the lower rank."""
    order = np.argsort(-load, kind="mergesort")
    mask = 0
    for k in range(min(extremes, len(order))):
        mask |= 1 << order[k]
    return mask


@njit(cache=True)
def list_top(p, node, top, ranks):
    """Fills ``top[r]`` with the first sequences (highest kappa) that lie on rank r of the mask; -1 where fewer."""
    top[:] = -1
    size = np.zeros(p.num_ranks, np.int64)
    for i in range(len(node)):
        first = p.first[node[i]]
        for r in range(first, first + (1 << p.size_log[node[i]])):
            if ranks >> r & 1 and size[r] < top.shape[1]:
                top[r, size[r]] = i
                size[r] += 1


@njit(cache=True)
def moves_of(p, state, node, i, r, low, top, trial, best, change):
    """Tries the moves of a sequence on a high-load rank: a local one to a low-load rank or swapped with a local one
    there; any to its parent group; a split one to a group of the same size or a half of its own with a low-load rank.
    """
    h, n = node[i], p.num_ranks
    local = h >= n
    if h > 1 and allows(p, i, h >> 1):
        try_change(p, state, node, i, h >> 1, -1, 0, trial, best, change)
    for q in range(n):
        if not low >> q & 1:
            continue
        same = (n + q) >> p.size_log[h]
        if same != h:
            try_change(p, state, node, i, same, -1, 0, trial, best, change)
        if local and q != r:
            for j in top[q]:
                if j >= 0 and node[j] == n + q:
                    try_change(p, state, node, i, n + q, j, h, trial, best, change)
        if not local:
            child = (n + q) >> (p.size_log[h] - 1)
            if child >> 1 == h and allows(p, i, child):
                try_change(p, state, node, i, child, -1, 0, trial, best, change)


@njit(cache=True)
def splits(p, state, node, ranks, top, trial, best, change):
    """Tries moving one sequence of a group with a marked rank to each of its halves."""
    for h in range(1, p.num_ranks):
        first, last = p.first[h], p.first[h] + (1 << p.size_log[h])
        for r in range(first, last):
            if ranks >> r & 1:
                for i in top[r]:
                    for j in top[r]:
                        if i >= 0 and j >= 0 and i != j and node[i] == h and node[j] == h:
                            split_pair(p, state, node, i, j, h, trial, best, change)
                break  # the ranks of a group hold the same sequences of it, up to the limit of candidates


@njit(cache=True)
def split_pair(p, state, node, i, j, h, trial, best, change):
    """Tries sequence i on the left half of its group and j on the right one."""
    if allows(p, i, 2 * h) and allows(p, j, 2 * h):
        try_change(p, state, node, i, 2 * h, j, 2 * h + 1, trial, best, change)


@njit(cache=True)
def improve(p, node, key, budget, seed):
    """Ours: local search over every move of one sequence and every exchange of two, then again from small random
    changes of the best, until ``budget`` changes were measured. Changes ``node`` and ``key`` to the best found.
    """
    n = len(node)
    here, here_key = node.copy(), key.copy()
    random = np.uint64(seed * 2 + 1)
    while True:
        budget = descend(p, here, here_key, budget)
        if less(here_key, key):
            node[:] = here
            key[:] = here_key
        if budget <= 0 or n < 2:
            return
        here[:] = node
        for _ in range(2 + n // 16):
            random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            i = np.int64((random >> np.uint64(33)) % np.uint64(n))
            random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            h = 1 + np.int64((random >> np.uint64(33)) % np.uint64(2 * p.num_ranks - 1))
            if allows(p, i, h):
                here[i] = h
        here_key[:] = key_of(p, here)


@njit(cache=True)
def descend(p, node, key, budget):
    """Takes, sequence by sequence, its best change until no sequence has one. Returns the budget left."""
    n, groups = len(node), 2 * p.num_ranks
    state = state_of(p, node)
    trial, change = np.empty(NUM_KEY, np.int64), np.empty(4, np.int64)
    idle, i = np.int64(0), np.int64(0)  # typed, or each kernel is also compiled for the literal
    while idle < n and budget > 0:
        change[:] = -1
        for h in range(1, groups):
            if h != node[i] and allows(p, i, h):
                try_change(p, state, node, i, h, -1, 0, trial, key, change)
        for j in range(n):
            if node[j] == node[i]:
                if j != i and node[i] < p.num_ranks:
                    split_pair(p, state, node, i, j, node[i], trial, key, change)
            elif allows(p, i, node[j]) and allows(p, j, node[i]):
                try_change(p, state, node, i, node[j], j, node[i], trial, key, change)
        budget -= groups + n
        idle += 1
        if change[0] >= 0:
            apply_change(p, state, node, change)
            idle = 0
        i = (i + 1) % n
    return budget
