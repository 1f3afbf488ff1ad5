"""The BuddyRing search of one set of ranks: stages of beam, fill and repair (paper 4.2, A.1), and ours on top.

The kernels need numba, which is imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.passes.buddy_loads import NUM_CLASSES, Loads, smallest_sizes

#: Work limits of the full search: partial placements of branch and bound, and sequences it is tried for; changes that
#: the local search measures.
EXACT_BUDGET, EXACT_SEQUENCES = 25_000, 16
IMPROVE_BUDGET = 10_000


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Parameters of the search (paper table 1); ``full`` adds what goes beyond the paper."""

    full: bool = True
    structural_threshold: float = 0.5
    beam_width: int = 64
    load_bin: float = 0.02
    smooth_max: float = 8.0
    num_refined: int = 8
    repair_iterations: int = 32
    extremes: int = 2
    candidates: int = 4
    exact_budget: int = EXACT_BUDGET
    improve_budget: int = IMPROVE_BUDGET


@dataclass(frozen=True, kw_only=True)
class Found:
    """Groups of the sequences (heap numbers, int64 [n]), the key, the stage that ended the search, whether proven."""

    node: IntArray
    key: IntArray
    stage: int
    proven: bool = False


def search(loads: Loads, kappa: np.ndarray, options: SearchOptions) -> Found:
    """The best placement found for sequences by decreasing kappa."""
    from liquidcp_compiler.passes import buddy_exact, buddy_repair
    from liquidcp_compiler.passes.buddy_kernels import VIOLATION

    best = search_stages(loads, kappa, options)
    if not options.full:
        return best
    node, key, n = best.node, best.key, len(best.node)
    small = n <= EXACT_SEQUENCES
    proven = small and buddy_exact.decide(loads, node, key, options.exact_budget)
    # In a large batch, feasible and not split, nothing is left to gain but deviations within tolerance.
    if not proven and (small or key[: VIOLATION + NUM_CLASSES + 1].any()):
        buddy_repair.improve(loads, node, key, options.improve_budget, n)
    return Found(node=node, key=key, stage=best.stage, proven=proven)


def search_stages(loads: Loads, kappa: np.ndarray, options: SearchOptions) -> Found:
    """The paper's search: stops at the first feasible stage, else the best over all stages."""
    from liquidcp_compiler.passes.buddy_kernels import VIOLATION, less

    best: Found | None = None
    least = least_violation(loads) if options.full else 0
    for number, (items, allowed, last) in enumerate(stages(loads, kappa, options.structural_threshold)):
        # Where no placement can violate less, the stages between add splits only; the last one also removes some.
        if best is not None and options.full and best.key[VIOLATION] <= least and not last:
            continue
        node, key = run_stage(loads, items, allowed, options)
        if best is None or less(key, best.key):
            best = Found(node=node, key=key, stage=number)
        if not best.key[: VIOLATION + 1].any():
            break
    assert best is not None, "there is always a first stage"
    return best


def run_stage(loads: Loads, items: IntArray, allowed: IntArray, options: SearchOptions) -> tuple[IntArray, IntArray]:
    """(groups, key) of the best placement of one stage."""
    from liquidcp_compiler.passes.buddy_beam import beam
    from liquidcp_compiler.passes.buddy_rank import best_refined

    nodes = beam(loads, items, allowed, options.beam_width, options.load_bin)
    return best_refined(
        loads,
        nodes,
        options.smooth_max,
        options.num_refined,
        options.repair_iterations,
        options.extremes,
        options.candidates,
    )


def stages(loads: Loads, kappa: np.ndarray, threshold: float) -> Iterator[tuple[IntArray, IntArray, bool]]:
    """(sequences of the beam, their allowed sizes as bit masks, whether it is the last) of each stage that differs
    from the one before.

    First only structural sequences, from their minimum size up; then fillers too, class by class from the longest
    and up to groups of 2, 4, ...; last every legal group of every sequence.
    """
    from liquidcp_compiler.passes.buddy_beam import MAX_ITEMS

    structural = kappa >= threshold
    least = smallest_sizes(loads, loads.legal)
    allowed = np.where(structural, loads.legal >> least << least, 1)
    items = np.flatnonzero(structural)[:MAX_ITEMS]
    yield items, allowed[items], False
    for length_class in range(NUM_CLASSES - 1, -1, -1):
        for k in range(1, loads.num_ranks.bit_length()):
            entering = ~structural & (loads.length_class == length_class)
            relaxed = np.where(entering, loads.legal & (2 << k) - 1, allowed)
            if (relaxed != allowed).any():
                allowed = relaxed
                items = np.flatnonzero(structural | (allowed != 1))[:MAX_ITEMS]
                yield items, allowed[items], False
    if (loads.legal != allowed).any():
        items = np.flatnonzero(loads.legal != 1)[:MAX_ITEMS]
        yield items, loads.legal[items], True


def least_violation(loads: Loads) -> int:
    """A violation that no placement goes below, in the key's units: that of the sequence that is worst to divide, or of
    the mean of these ranks where it is not the target's."""
    from liquidcp_compiler.passes.buddy_kernels import NUM_KEY, VIOLATION, measure_loads, overload

    mean = np.zeros(NUM_KEY, np.int64)
    t = loads.base_tokens + int(loads.tokens.sum()) // loads.num_ranks
    w = loads.base_work + int(loads.work.sum()) // loads.num_ranks
    measure_loads(loads, t, t, w, w, mean)
    largest = np.array([int(x).bit_length() - 1 for x in loads.legal], np.int64)
    most_t = loads.base_tokens + int((loads.tokens >> largest).max(initial=0))
    most_w = loads.base_work + int((loads.work >> largest).max(initial=0))
    return max(int(mean[VIOLATION]), int(overload(loads, most_t, most_w)))
