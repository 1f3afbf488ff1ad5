"""The rules by which CTAs take work, as a discrete-event simulation over the tables of all ranks.

This is the one place that says who takes what and when: comm CTAs take transfers in queue order, compute CTAs claim KV
intervals of rows in plan order (paper sections 4.1 and 6.1), and CTAs without attention work take reductions. With
hostile durations it samples interleavings; with a cost model it is the simulator. It imports numba: import it on use.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numba import njit

# Kinds of events. What a record holds is said in scheduling.py.
LAND, COMPUTE, REDUCE = 1, 2, 3

# How a run ends.
FINISHED, DEADLOCK, OVERFULL_PREFIX, OVERFULL_OUTPUT = 0, 1, 2, 3

# What a CTA does next.
TAKE_TRANSFER, WAIT_SOURCE, COPY_DONE = 0, 1, 2
SCAN_ROWS, WAIT_INPUTS, COMPUTE_DONE = 10, 11, 12
TAKE_REDUCTION, WAIT_STATES, REDUCE_DONE = 20, 21, 22
EXITED = 30

# The named tuples stand in this file on purpose: numba compiles again when this file changes, not when one that it
# imports does, and it reads their fields by place.


class CoreTables(NamedTuple):
    """Inputs of the event core. ``*_start`` are int64 [world + 1]; the rest are int64 or bool, one entry a row.

    A *word* is what a CTA can wait for: first the signals of all ranks, then one committed prefix a sequence row.
    """

    transfer_start: np.ndarray
    row_start: np.ndarray
    reduction_start: np.ndarray
    transfer_peer: np.ndarray
    transfer_wait: np.ndarray  #: word of the peer
    transfer_signal: np.ndarray  #: word; -1: publish in the prefix
    transfer_sequence: np.ndarray  #: sequence row; -1: none
    transfer_back: np.ndarray  #: published only after all front arrivals
    sequence_arrivals: np.ndarray
    sequence_front: np.ndarray
    row_q_lo: np.ndarray
    row_q_hi: np.ndarray
    row_sequence: np.ndarray
    row_ready: np.ndarray
    row_local_lo: np.ndarray
    row_own: np.ndarray  #: own KV tiles of a ready row
    row_arrivals: np.ndarray
    row_tiles: np.ndarray
    row_tau_min: np.ndarray
    row_tau_max: np.ndarray
    row_kv_list: np.ndarray
    row_to_out: np.ndarray
    row_target_list: np.ndarray
    reduction_q_tile: np.ndarray
    reduction_to_out: np.ndarray
    reduction_target: np.ndarray  #: state
    reduction_lo: np.ndarray
    reduction_hi: np.ndarray
    q_signal: np.ndarray
    q_merge_count: np.ndarray
    kv_signal: np.ndarray
    state_signal: np.ndarray
    q_list: np.ndarray  #: query tiles
    kv_list: np.ndarray  #: KV tiles
    target_list: np.ndarray  #: states
    state_list: np.ndarray  #: states
    word_expected: np.ndarray
    ready_word: np.ndarray  #: [world]
    done_word: np.ndarray  #: [world]


class Durations(NamedTuple):
    """Times, float64 in one unit of the caller's choice; one entry a transfer, row, reduction, CTA or rank."""

    transfer: np.ndarray
    transfer_not_before: np.ndarray  #: a copy is never complete earlier
    row_per_tile: np.ndarray
    row_overhead: np.ndarray
    reduction: np.ndarray
    cta_start: np.ndarray
    cta_slowdown: np.ndarray
    rank_ready: np.ndarray


class CoreResult(NamedTuple):
    """Events in order of completion (trimmed arrays), how it ended, and the state at the end."""

    status: int
    fault_cta: Any
    fault_item: Any
    time: np.ndarray
    begin: np.ndarray
    claim: np.ndarray
    cta: np.ndarray
    kind: np.ndarray
    index: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    words: np.ndarray
    merged: np.ndarray
    row_claimed: np.ndarray
    cta_phase: np.ndarray
    cta_task: np.ndarray
    cta_word: np.ndarray
    cta_threshold: np.ndarray


@njit(cache=True)
def claim_end(claimed: int, ready: int, total: int, tau_min: int, tau_max: int) -> int:
    """End E of the interval [C, E) that a ready row hands out now; C itself when nothing may be claimed.

    ``claimed`` is C, ``ready`` is R (both in the row's logical KV order), ``total`` the row's KV tiles. A task takes at
    most ``tau_max`` tiles, and at least ``tau_min`` unless no more are to come.
    """
    if claimed < ready and (ready - claimed >= tau_min or ready == total):
        return claimed + min(ready - claimed, tau_max)
    return claimed


@njit(cache=True)
def contribution(lo: Any, hi: Any) -> int:
    """What one compute task counts towards its output's merge count: its KV tiles; a row without any counts once."""
    return max(hi - lo, 1)


@njit(cache=True)
def _bump(word, now, words, waiter_head, waiter_next, cta_threshold, heap, order):
    """Raise a word by one and wake the CTAs that it satisfies."""
    words[word] += 1
    cta = waiter_head[word]
    waiter_head[word] = -1
    while cta >= 0:
        following = waiter_next[cta]
        if words[word] >= cta_threshold[cta]:
            order[0] += 1
            heappush(heap, (now, order[0], cta))
        else:
            waiter_next[cta] = waiter_head[word]
            waiter_head[word] = cta
        cta = following


@njit(cache=True)
def _blocks(word, threshold, cta, words, waiter_head, waiter_next, cta_word, cta_threshold):
    """True, and the CTA queues for the word, unless the word has reached the threshold."""
    if word < 0 or words[word] >= threshold:
        return False
    cta_word[cta], cta_threshold[cta] = word, threshold
    waiter_next[cta] = waiter_head[word]
    waiter_head[word] = cta
    return True


@njit(cache=True)
def _next_input(t, row, lo, hi, cursor):
    """The word of input number ``cursor`` of a task: its query tiles, then KV tiles; -2 when there is none left."""
    num_q = t.row_q_hi[row] - t.row_q_lo[row]
    if cursor < num_q:
        return t.q_signal[t.q_list[t.row_q_lo[row] + cursor]]
    logical = lo + cursor - num_q
    if logical >= hi:
        return -2
    if not t.row_ready[row]:
        return t.kv_signal[t.kv_list[t.row_kv_list[row] + logical]]
    if logical < t.row_own[row]:
        return t.kv_signal[t.row_local_lo[row] + logical]
    return -1  # an arrival of the committed prefix


@njit(cache=True)
def _ready_tiles(t, row, words, num_signals):
    """R: own tiles and the committed arrivals that belong to the row."""
    return t.row_own[row] + min(words[num_signals + t.row_sequence[row]], t.row_arrivals[row])


@njit(cache=True)
def simulate_core(t, d, world, num_comm, num_compute, max_events):
    """Run everything to the end or to a standstill. ``t``: CoreTables; ``d``: Durations; CTAs count rank by rank."""
    num_ctas = num_comm + num_compute
    all_ctas = world * num_ctas
    num_words = len(t.word_expected)
    num_signals = num_words - len(t.sequence_arrivals)

    words = np.zeros(num_words, np.int64)
    waiter_head = np.full(num_words, -1, np.int64)
    waiter_next = np.full(all_ctas, -1, np.int64)
    cta_word = np.full(all_ctas, -1, np.int64)
    cta_threshold = np.zeros(all_ctas, np.int64)
    cta_phase = np.zeros(all_ctas, np.int64)
    cta_task = np.full(all_ctas, -1, np.int64)
    cta_lo, cta_hi = np.zeros(all_ctas, np.int64), np.zeros(all_ctas, np.int64)
    cta_cursor = np.zeros(all_ctas, np.int64)
    cta_claim, cta_begin = np.zeros(all_ctas), np.zeros(all_ctas)

    next_transfer, next_reduction = t.transfer_start[:-1].copy(), t.reduction_start[:-1].copy()
    first_open, open_rows = t.row_start[:-1].copy(), t.row_start[1:] - t.row_start[:-1]
    row_claimed = np.zeros(len(t.row_tiles), np.int64)
    row_taken = np.zeros(len(t.row_tiles), np.bool_)
    merged = np.zeros(len(t.q_merge_count), np.int64)
    to_pull = np.zeros((world, world), np.int64)
    for rank in range(world):
        for i in range(t.transfer_start[rank], t.transfer_start[rank + 1]):
            to_pull[rank, t.transfer_peer[i]] += 1
    idle_head = np.full(world, -1, np.int64)
    idle_next = np.full(all_ctas, -1, np.int64)

    event_time, event_begin, event_claim = np.zeros(max_events), np.zeros(max_events), np.zeros(max_events)
    event_cta, event_kind = np.zeros(max_events, np.int32), np.zeros(max_events, np.int32)
    event_index = np.zeros(max_events, np.int64)
    event_lo, event_hi = np.zeros(max_events, np.int64), np.zeros(max_events, np.int64)
    num_events = 0
    status, fault_cta, fault_item = FINISHED, -1, -1

    order = np.zeros(1, np.int64)
    heap: Any = [(0.0, np.int64(0), np.int64(-1))]
    heappop(heap)
    for rank in range(world):
        order[0] += 1
        heappush(heap, (d.rank_ready[rank], order[0], np.int64(all_ctas + rank)))
    for i in range(all_ctas):
        cta_phase[i] = TAKE_TRANSFER if i % num_ctas < num_comm else SCAN_ROWS
        order[0] += 1
        heappush(heap, (d.cta_start[i], order[0], np.int64(i)))

    while len(heap) > 0 and status == FINISHED:
        now, _, cta = heappop(heap)
        if cta >= all_ctas:
            _bump(t.ready_word[cta - all_ctas], now, words, waiter_head, waiter_next, cta_threshold, heap, order)
            continue
        rank = cta // num_ctas
        while True:
            phase, task = cta_phase[cta], cta_task[cta]

            if phase == TAKE_TRANSFER:
                if next_transfer[rank] == t.transfer_start[rank + 1]:
                    cta_phase[cta] = SCAN_ROWS
                    continue
                cta_task[cta] = next_transfer[rank]
                next_transfer[rank] += 1
                cta_claim[cta] = now
                cta_phase[cta] = WAIT_SOURCE

            elif phase == WAIT_SOURCE:
                word = t.transfer_wait[task]
                if _blocks(word, t.word_expected[word], cta, words, waiter_head, waiter_next, cta_word, cta_threshold):
                    break
                cta_begin[cta] = now
                end = max(now + d.transfer[task] * d.cta_slowdown[cta], d.transfer_not_before[task])
                cta_phase[cta] = COPY_DONE
                order[0] += 1
                heappush(heap, (end, order[0], cta))
                break

            elif phase == COPY_DONE:
                logical = -1
                if t.transfer_signal[task] >= 0:
                    _bump(t.transfer_signal[task], now, words, waiter_head, waiter_next, cta_threshold, heap, order)
                else:
                    sequence = t.transfer_sequence[task]
                    word = num_signals + sequence
                    if t.transfer_back[task] and _blocks(
                        word, t.sequence_front[sequence], cta, words, waiter_head, waiter_next, cta_word, cta_threshold
                    ):
                        break
                    logical = words[word]
                    if logical >= t.sequence_arrivals[sequence]:
                        status, fault_cta, fault_item = OVERFULL_PREFIX, cta, task
                        break
                    _bump(word, now, words, waiter_head, waiter_next, cta_threshold, heap, order)
                    if idle_head[rank] >= 0:
                        order[0] += 1
                        heappush(heap, (now, order[0], idle_head[rank]))
                        idle_head[rank] = idle_next[idle_head[rank]]
                peer = t.transfer_peer[task]
                to_pull[rank, peer] -= 1
                if to_pull[rank, peer] == 0:
                    _bump(t.done_word[peer], now, words, waiter_head, waiter_next, cta_threshold, heap, order)
                event_kind[num_events], event_index[num_events] = LAND, task
                event_lo[num_events], event_hi[num_events] = logical, logical + 1
                event_time[num_events], event_begin[num_events] = now, cta_begin[cta]
                event_claim[num_events], event_cta[num_events] = cta_claim[cta], cta
                num_events += 1
                cta_phase[cta] = TAKE_TRANSFER

            elif phase == SCAN_ROWS:
                if open_rows[rank] == 0:
                    cta_phase[cta] = TAKE_REDUCTION
                    continue
                while row_taken[first_open[rank]]:
                    first_open[rank] += 1
                found = -1
                for row in range(first_open[rank], t.row_start[rank + 1]):
                    if row_taken[row]:
                        continue
                    lo = row_claimed[row]
                    if t.row_ready[row] and t.row_tiles[row] > 0:
                        ready = _ready_tiles(t, row, words, num_signals)
                        hi = claim_end(lo, ready, t.row_tiles[row], t.row_tau_min[row], t.row_tau_max[row])
                        if hi == lo:
                            continue
                    else:
                        hi = t.row_tiles[row]
                    found = row
                    cta_lo[cta], cta_hi[cta] = lo, hi
                    row_claimed[row] = hi
                    if hi == t.row_tiles[row]:
                        row_taken[row] = True
                        open_rows[rank] -= 1
                    break
                # A claim may leave work for one more idle CTA; the last claim sends all of them to the reductions.
                if found >= 0 or open_rows[rank] == 0:
                    while idle_head[rank] >= 0:
                        order[0] += 1
                        heappush(heap, (now, order[0], idle_head[rank]))
                        idle_head[rank] = idle_next[idle_head[rank]]
                        if open_rows[rank] > 0:
                            break
                if found < 0:
                    cta_task[cta] = -1
                    idle_next[cta] = idle_head[rank]
                    idle_head[rank] = cta
                    break
                cta_task[cta], cta_cursor[cta], cta_claim[cta] = found, 0, now
                cta_phase[cta] = WAIT_INPUTS

            elif phase == WAIT_INPUTS:
                blocked = False
                while True:
                    word = _next_input(t, task, cta_lo[cta], cta_hi[cta], cta_cursor[cta])
                    if word == -2:
                        break
                    if word >= 0 and _blocks(
                        word, t.word_expected[word], cta, words, waiter_head, waiter_next, cta_word, cta_threshold
                    ):
                        blocked = True
                        break
                    cta_cursor[cta] += 1
                if blocked:
                    break
                cta_begin[cta] = now
                tiles = cta_hi[cta] - cta_lo[cta]
                duration = (d.row_overhead[task] + tiles * d.row_per_tile[task]) * d.cta_slowdown[cta]
                cta_phase[cta] = COMPUTE_DONE
                order[0] += 1
                heappush(heap, (now + duration, order[0], cta))
                break

            elif phase == COMPUTE_DONE:
                for place in range(t.row_q_hi[task] - t.row_q_lo[task]):
                    q = t.q_list[t.row_q_lo[task] + place]
                    if t.row_to_out[task]:
                        merged[q] += contribution(cta_lo[cta], cta_hi[cta])
                        if merged[q] > t.q_merge_count[q]:
                            status, fault_cta, fault_item = OVERFULL_OUTPUT, cta, q
                    else:
                        state = t.target_list[t.row_target_list[task] + place]
                        word = t.state_signal[state]
                        if word >= 0:
                            _bump(word, now, words, waiter_head, waiter_next, cta_threshold, heap, order)
                event_kind[num_events], event_index[num_events] = COMPUTE, task
                event_lo[num_events], event_hi[num_events] = cta_lo[cta], cta_hi[cta]
                event_time[num_events], event_begin[num_events] = now, cta_begin[cta]
                event_claim[num_events], event_cta[num_events] = cta_claim[cta], cta
                num_events += 1
                if status != FINISHED:
                    break
                cta_phase[cta] = SCAN_ROWS

            elif phase == TAKE_REDUCTION:
                if next_reduction[rank] == t.reduction_start[rank + 1]:
                    cta_phase[cta] = EXITED
                    break
                cta_task[cta] = next_reduction[rank]
                next_reduction[rank] += 1
                cta_claim[cta], cta_cursor[cta] = now, t.reduction_lo[cta_task[cta]]
                cta_phase[cta] = WAIT_STATES

            elif phase == WAIT_STATES:
                blocked = False
                while cta_cursor[cta] < t.reduction_hi[task]:
                    word = t.state_signal[t.state_list[cta_cursor[cta]]]
                    if word >= 0 and _blocks(
                        word, t.word_expected[word], cta, words, waiter_head, waiter_next, cta_word, cta_threshold
                    ):
                        blocked = True
                        break
                    cta_cursor[cta] += 1
                if blocked:
                    break
                cta_begin[cta] = now
                cta_phase[cta] = REDUCE_DONE
                order[0] += 1
                heappush(heap, (now + d.reduction[task] * d.cta_slowdown[cta], order[0], cta))
                break

            elif phase == REDUCE_DONE:
                if t.reduction_to_out[task]:
                    q = t.reduction_q_tile[task]
                    merged[q] += 1
                    if merged[q] > t.q_merge_count[q]:
                        status, fault_cta, fault_item = OVERFULL_OUTPUT, cta, q
                        break
                elif t.state_signal[t.reduction_target[task]] >= 0:
                    word = t.state_signal[t.reduction_target[task]]
                    _bump(word, now, words, waiter_head, waiter_next, cta_threshold, heap, order)
                event_kind[num_events], event_index[num_events] = REDUCE, task
                event_lo[num_events], event_hi[num_events] = 0, t.reduction_hi[task] - t.reduction_lo[task]
                event_time[num_events], event_begin[num_events] = now, cta_begin[cta]
                event_claim[num_events], event_cta[num_events] = cta_claim[cta], cta
                num_events += 1
                cta_phase[cta] = TAKE_REDUCTION

            else:
                break

    if status == FINISHED:
        for i in range(all_ctas):
            if cta_phase[i] != EXITED:
                status = DEADLOCK
    n = num_events
    return CoreResult(
        status,
        fault_cta,
        fault_item,
        event_time[:n],
        event_begin[:n],
        event_claim[:n],
        event_cta[:n],
        event_kind[:n],
        event_index[:n],
        event_lo[:n],
        event_hi[:n],
        words,
        merged,
        row_claimed,
        cta_phase,
        cta_task,
        cta_word,
        cta_threshold,
    )
