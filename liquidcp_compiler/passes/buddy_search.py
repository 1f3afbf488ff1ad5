"""The BuddyRing search of one set of ranks: stages of beam, fill and repair (paper 4.2, A.1), and ours on top.

The kernels need numba, which is imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.passes.buddy_loads import NUM_CLASSES, Loads, smallest_sizes

#: Sequences that the beam of the full search places in a relaxed stage; the paper's takes all.
FULL_BEAM_ITEMS = 32
#: Work limits of the full search: partial placements of branch and bound, and sequences it is tried for; changes that
#: the local search measures.
EXACT_BUDGET, EXACT_SEQUENCES = 40_000, 16
IMPROVE_BUDGET = 20_000


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

    best = search_stages(loads, kappa, options)
    if not options.full:
        return best
    node, key, n = best.node, best.key, len(best.node)
    improvable = bool(key[:7].any())
    if n <= EXACT_SEQUENCES and options.exact_budget:
        if buddy_exact.decide(loads, node, key, options.exact_budget):
            return Found(node=node, key=key, stage=best.stage, proven=True)
        improvable = True
    if improvable and options.improve_budget:
        buddy_repair.improve(loads, node, key, options.improve_budget, n)
    return Found(node=node, key=key, stage=best.stage)


def search_stages(loads: Loads, kappa: np.ndarray, options: SearchOptions) -> Found:
    """The paper's search: stops at the first feasible stage, else the best over all stages."""
    from liquidcp_compiler.passes.buddy_kernels import VIOLATION, less

    best: Found | None = None
    least = least_violation(loads)
    for number, (items, allowed) in enumerate(stages(loads, kappa, options)):
        node, key = run_stage(loads, items, allowed, options)
        if best is None or less(key, best.key):
            best = Found(node=node, key=key, stage=number)
        if not best.key[: VIOLATION + 1].any() or (options.full and best.key[VIOLATION] <= least):
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


def stages(loads: Loads, kappa: np.ndarray, options: SearchOptions) -> Iterator[tuple[IntArray, IntArray]]:
    """(sequences of the beam, their allowed sizes as bit masks) of each stage that differs from the one before.

    First only structural sequences, from their minimum size up; then fillers too, class by class from the longest
    and up to groups of 2, 4, ...; last every legal group of every sequence.
    """
    structural = kappa >= options.structural_threshold
    least = smallest_sizes(loads, loads.legal)
    allowed = np.where(structural, loads.legal >> least << least, 1)
    yield limit(structural, allowed, options)
    for length_class in range(NUM_CLASSES - 1, -1, -1):
        for k in range(1, loads.num_ranks.bit_length()):
            entering = ~structural & (loads.length_class == length_class)
            relaxed = np.where(entering, loads.legal & (2 << k) - 1, allowed)
            if (relaxed != allowed).any():
                allowed = relaxed
                yield limit(structural | (allowed != 1), allowed, options)
    if (loads.legal != allowed).any():
        yield limit(loads.legal != 1, loads.legal, options, last=True)


def limit(
    chosen: np.ndarray, allowed: IntArray, options: SearchOptions, last: bool = False
) -> tuple[IntArray, IntArray]:
    """The first of the chosen sequences that the beam takes, with what they are allowed."""
    from liquidcp_compiler.passes.buddy_beam import MAX_ITEMS

    most = FULL_BEAM_ITEMS if options.full else MAX_ITEMS
    items = np.flatnonzero(chosen)[:most]
    return items, allowed[items]


def least_violation(loads: Loads) -> int:
    """A violation that no placement goes below, in the key's units: that of the sequence that is worst to divide."""
    from liquidcp_compiler.passes.buddy_kernels import overload

    largest = np.array([int(x).bit_length() - 1 for x in loads.legal], np.int64)
    most_t = loads.base_tokens + int((loads.tokens >> largest).max(initial=0))
    most_w = loads.base_work + int((loads.work >> largest).max(initial=0))
    return int(overload(loads, most_t, most_w))


def warm(loads: Loads, kappa: np.ndarray) -> Any:
    """Compiles every kernel."""
    return search(loads, kappa, SearchOptions())
