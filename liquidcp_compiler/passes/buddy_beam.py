"""Compiled Pareto beam over structural sequences (paper 4.2 and A.1).

Criteria of a partial placement, smaller is better: splitting profile (two words, compared as one number),
communication, distinct groups, spread of tokens, spread of work, larger overload.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from liquidcp_compiler.passes.buddy_kernels import overload

#: Columns of the criteria. The profile's two words hold three and two classes of 21 bits.
HIGH, LOW, COMM, GROUPS, SPREAD_T, SPREAD_W, OVERLOAD, NUM_CRITERIA = 0, 1, 2, 3, 4, 5, 6, 7
CLASS_BITS, DEPTH_BITS = 21, 11
#: Sequences that fit the packed profile; the caller leaves the rest to the fillers.
MAX_ITEMS = 500


@njit(cache=True)
def beam(p, items, allowed, width, bin_share):
    """Places ``items`` (indices by decreasing kappa) on groups of their allowed sizes (bit masks, like ``items``).

    Returns nodes int64 [num_states, num_sequences], 0 where a sequence is no item. Groups that differ from another
    only by exchanging two halves with nothing in them are tried once.
    """
    ranks, num_groups = p.num_ranks, 2 * p.num_ranks - 1
    room = width * num_groups
    tokens, work = np.empty((width, ranks), np.int64), np.empty((width, ranks), np.int64)
    tokens[0], work[0] = p.base_tokens, p.base_work
    node = np.zeros((1, len(p.tokens)), np.int64)
    # Per state: the first four criteria, groups in use, groups with a sequence somewhere below (bit masks).
    state = np.zeros((width, 6), np.int64)
    criteria = np.empty((room, NUM_CRITERIA), np.int64)
    origin = np.empty((room, 2), np.int64)
    table = np.empty(1 << int(np.ceil(np.log2(2 * room + 1))), np.int64)
    digests = np.empty(room, np.uint64)
    num_states = 1
    for step in range(len(items)):
        i = items[step]
        table[:] = -1
        num = np.int64(0)
        for s in range(num_states):
            for h in range(num_groups, 0, -1):
                if not allowed[step] >> p.size_log[h] & 1 or is_mirror(h, state[s, 5]):
                    continue
                digests[num] = extend(p, tokens[s], work[s], state[s], i, h, bin_share, criteria[num])
                origin[num] = s, h
                num += keep_best_of_bin(criteria, origin, digests, table, num)
        chosen = select(criteria, pareto_front(criteria, num), width)
        node, num_states = advance(p, i, chosen, origin, criteria, tokens, work, state, node)
    return node


@njit(cache=True)
def is_mirror(h, below):
    """Group h lies in a right half that is as empty as the left one beside it."""
    while h > 1:
        if h & 1 and not below >> h & 1 and not below >> (h - 1) & 1:
            return True
        h >>= 1
    return False


@njit(cache=True)
def extend(p, tokens, work, state, i, h, bin_share, out):
    """Writes the criteria of a state with sequence i on group h; returns a digest of the load bins of its ranks."""
    k = p.size_log[h]
    first, last = p.first[h], p.first[h] + (1 << k)
    share, pairs = p.tokens[i] >> k, p.work[i] >> k
    to_bin_t, to_bin_w = 1.0 / (bin_share * p.mean_tokens), 1.0 / (bin_share * p.mean_work)
    low_t = low_w = np.int64(1) << 62
    high_t = high_w = np.int64(0)
    digest = np.uint64(0)
    for r in range(p.num_ranks):
        t, w = tokens[r], work[r]
        if first <= r < last:
            t, w = t + share, w + pairs
        low_t, high_t, low_w, high_w = min(low_t, t), max(high_t, t), min(low_w, w), max(high_w, w)
        digest = (digest ^ np.uint64(t * to_bin_t)) * np.uint64(0x9E3779B97F4A7C15)
        digest = (digest ^ (digest >> np.uint64(29)) ^ np.uint64(w * to_bin_w)) * np.uint64(0xBF58476D1CE4E5B9)
    for c in range(4):
        out[c] = state[c]
    if k > 0:
        place = 2 - p.length_class[i]
        word, turn = (HIGH, place) if place >= 0 else (LOW, place + 2)
        out[word] += ((1 << DEPTH_BITS) + k) << (CLASS_BITS * turn)
        out[COMM] += p.tokens[i] - share
    out[GROUPS] += not state[4] >> h & 1
    out[SPREAD_T], out[SPREAD_W] = high_t - low_t, high_w - low_w
    out[OVERLOAD] = overload(p, high_t, high_w)
    return digest ^ (digest >> np.uint64(31))


@njit(cache=True)
def keep_best_of_bin(criteria, origin, digests, table, new):
    """1 if candidate ``new`` is the first of its load bins. Else 0, and the better of the two (by profile,
    communication, groups) is in the first one's place."""
    mask = np.uint64(len(table) - 1)
    slot = digests[new] & mask
    while table[slot] >= 0:
        old = table[slot]
        if digests[old] == digests[new]:
            for c in range(4):
                if criteria[new, c] != criteria[old, c]:
                    if criteria[new, c] < criteria[old, c]:
                        criteria[old], origin[old] = criteria[new], origin[new]
                    break
            return 0
        slot = (slot + np.uint64(1)) & mask
    table[slot] = new
    return 1


@njit(cache=True)
def compare(a, b):
    """-1 if a dominates b, 1 if b dominates a, else 0."""
    a_less = a[HIGH] < b[HIGH] or (a[HIGH] == b[HIGH] and a[LOW] < b[LOW])
    b_less = b[HIGH] < a[HIGH] or (a[HIGH] == b[HIGH] and b[LOW] < a[LOW])
    for c in range(COMM, NUM_CRITERIA):
        a_less |= a[c] < b[c]
        b_less |= b[c] < a[c]
        if a_less and b_less:
            return 0
    return int(b_less) - int(a_less)


@njit(cache=True)
def pareto_front(criteria, num):
    """Indices of the candidates that no other dominates."""
    front = np.empty(num, np.int64)
    size = 0
    for c in range(num):
        kept, dominated = 0, False
        for f in range(size):
            order = compare(criteria[front[f]], criteria[c])
            if order < 0:
                dominated = True
                # The candidate that dominates one often dominates the next: look there first.
                front[f], front[f // 2] = front[f // 2], front[f]
                break
            if order == 0:
                front[kept] = front[f]
                kept += 1
        if not dominated:
            front[kept] = c
            size = kept + 1
    return front[:size]


@njit(cache=True)
def select(criteria, front, width):
    """At most ``width`` of the front: the best for each criterion, then by decreasing crowding distance."""
    if len(front) <= width:
        return front
    front = np.sort(front)
    values = criteria_values(criteria, front)
    taken = np.zeros(len(front), np.bool_)
    left = width
    for c in range(values.shape[1] - 1, -1, -1):  # the larger overload first, for beams of fewer states than criteria
        f = np.argmin(values[:, c])
        if left > 0 and not taken[f]:
            taken[f] = True
            left -= 1
    for f in np.argsort(-crowding(values), kind="mergesort"):
        if left > 0 and not taken[f]:
            taken[f] = True
            left -= 1
    return front[taken]


@njit(cache=True)
def criteria_values(criteria, front):
    """float64 [num, 6]: the criteria, with the rank of the profile among those here as its value."""
    values = np.empty((len(front), NUM_CRITERIA - 1))
    for c in range(COMM, NUM_CRITERIA):
        values[:, c - 1] = criteria[front, c]
    by_low = np.argsort(criteria[front, LOW], kind="mergesort")
    order = by_low[np.argsort(criteria[front, HIGH][by_low], kind="mergesort")]
    rank = 0.0
    for k in range(len(order)):
        if k > 0:
            a, b = criteria[front[order[k - 1]]], criteria[front[order[k]]]
            rank += a[HIGH] != b[HIGH] or a[LOW] != b[LOW]
        values[order[k], 0] = rank
    return values


@njit(cache=True)
def crowding(values):
    """NSGA-II crowding distance of each row."""
    num = len(values)
    distance = np.zeros(num)
    for c in range(values.shape[1]):
        column = values[:, c].copy()
        order = np.argsort(column, kind="mergesort")
        extent = column[order[-1]] - column[order[0]]
        if extent > 0:
            distance[order[0]] = distance[order[-1]] = np.inf
            for k in range(1, num - 1):
                distance[order[k]] += (column[order[k + 1]] - column[order[k - 1]]) / extent
    return distance


@njit(cache=True)
def advance(p, i, chosen, origin, criteria, tokens, work, state, node):
    """Makes the chosen candidates the states; returns (nodes, number of states)."""
    num = len(chosen)
    new_node = np.empty((num, node.shape[1]), np.int64)
    old_t, old_w, old_state = tokens.copy(), work.copy(), state.copy()
    for c in range(num):
        s, h = origin[chosen[c]]
        new_node[c] = node[s]
        new_node[c, i] = h
        tokens[c], work[c] = old_t[s], old_w[s]
        k = p.size_log[h]
        for r in range(p.first[h], p.first[h] + (1 << k)):
            tokens[c, r] += p.tokens[i] >> k
            work[c, r] += p.work[i] >> k
        state[c, :4] = criteria[chosen[c], :4]
        state[c, 4] = old_state[s, 4] | 1 << h
        state[c, 5] = old_state[s, 5]
        while h > 0:
            state[c, 5] |= 1 << h
            h >>= 1
    return new_node, num
