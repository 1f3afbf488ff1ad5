"""Placement ``buddy-ring``: each sequence over an aligned power-of-two group of ranks (paper section 4.2, A.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.problem_fields import MAX_INT32
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.buddy_loads import Target, legal_sizes
from liquidcp_compiler.passes.buddy_nodes import NODE, SINGLE_LEVEL, place_flat, place_two_level
from liquidcp_compiler.passes.buddy_search import SearchOptions
from liquidcp_compiler.passes.placement import (
    Placement,
    Placer,
    SequencePlace,
    build_placed,
    check_lengths,
    is_finite,
    set_whole_numbers,
)

TWO_LEVEL = "buddy-ring/two-level"
ANY_WORLD = "zigzag-all, all-local, magi-chunks and explicit take any number of ranks"


@dataclass(frozen=True)
class BuddyRing(Pass[AuthoredGraph, PlacedGraph], Placer):
    """Balances tokens and attention work within tolerances while splitting as few short sequences as it can.

    before:  24K, 24K, 14K and 2K tokens on four ranks
    after:   the first on ranks 0-1, the second on 2-3, the third on all, the last on rank 0 alone

    Placements are ranked by (violation of the tolerances, splitting profile from the shortest length class,
    communication, distinct groups, D_W, D_T). Up to 16 ranks one search places the batch; beyond, nodes of 8 come
    first (``buddy-ring/two-level``, ours). Work is that of causal sequences, whatever the mask.

    Fields (defaults are the paper's, table 1):
        token_tolerance, work_tolerance: deviations from the mean of a rank that are free.
        structural_threshold: kappa from which a sequence is structural: placed by the beam, others as fillers.
        beam_width: partial placements kept.
        load_bin: share of the mean load within which partial placements count as equally loaded.
        smooth_max: sharpness of the smooth maximum that breaks ties between ranks for a filler.
        num_refined, repair_iterations: placements repaired, and most changes to each.
        extremes, candidates: ranks per load extreme, and sequences on each, that repair considers.
        max_group: most ranks of a group, a power of two.
        tile: tokens of a tile.
        legality: ``tile``: groups of g take any length of at least 2 * g tiles; ``paper``: 256 * g divides it.
        search: ``full`` adds a wider local search, and branch and bound for small batches; ``paper`` is A.1 alone.
        token_limit: most tokens a rank may hold, or None.
    """

    name: ClassVar[str] = "buddy-ring"
    token_tolerance: float = 0.10
    work_tolerance: float = 0.05
    structural_threshold: float = 0.5
    beam_width: int = 64
    load_bin: float = 0.02
    smooth_max: float = 8.0
    num_refined: int = 8
    repair_iterations: int = 32
    extremes: int = 2
    candidates: int = 4
    max_group: int = 8
    tile: int = 128
    legality: str = "tile"
    search: str = "full"
    token_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("token_tolerance", "work_tolerance", "structural_threshold"):
            _require(name, value := getattr(self, name), is_finite(value) and value >= 0, "numbers >= 0")
        for name in ("load_bin", "smooth_max"):
            _require(name, value := getattr(self, name), is_finite(value) and value > 0, "numbers > 0")
        set_whole_numbers(self, 1, "beam_width", "num_refined", "extremes", "candidates", "tile")
        set_whole_numbers(self, 0, "repair_iterations")
        _require("max_group", self.max_group, _is_power(self.max_group), "powers of two")
        _require("legality", self.legality, self.legality in ("tile", "paper"), "tile, paper")
        _require("search", self.search, self.search in ("full", "paper"), "full, paper")
        if self.token_limit is not None:
            set_whole_numbers(self, 1, "token_limit")

    def place(self, lengths: IntArray | list[int], world: int) -> Placement:
        """The placement of a batch, in its order; empty sequences are placed nowhere.

        Raises InvalidField naming ``cp_size`` if it is no power of two, or the first length that is not a whole
        number >= 0 or that no legal group holds within ``token_limit``.
        """
        _require("cp_size", world, _is_power(world), "powers of two", f"{ANY_WORLD}")
        world, given = int(world), check_lengths(lengths)
        filled = np.flatnonzero(given > 0)
        first, degree = np.zeros(len(given), np.int64), np.zeros(len(given), np.int64)
        if len(filled):
            legal = self._legal(given, filled, world)
            first[filled], degree[filled] = self._within_limit(given[filled], legal, world)
        return self._placement(given, first, degree, world)

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        return build_placed(graph, context, self)

    def _legal(self, lengths: IntArray, filled: IntArray, world: int) -> IntArray:
        """Legal sizes of the sequences that are not empty, as bit masks: up to max_group, or of several nodes."""
        largest = world if world > SINGLE_LEVEL else min(world, self.max_group)
        legal = legal_sizes(lengths[filled], self.tile, self.legality, largest, self.token_limit)
        if world > SINGLE_LEVEL:
            legal &= (2 * min(self.max_group, NODE) - 1) | -2 * NODE
        for i in filled[legal == 0]:
            raise InvalidField(
                f"lengths[{i}]",
                int(lengths[i]),
                f"lengths that a group of at most {largest} of {world} ranks holds, {self.token_limit} tokens a rank",
                "Raise token_limit or the number of ranks",
            )
        return legal

    def _within_limit(self, lengths: IntArray, legal: IntArray, world: int) -> tuple[IntArray, IntArray]:
        """(first rank, degree); with a token limit, again with a lower cap where whole tiles go beyond it."""
        cap = self.token_limit
        for _ in range(4):
            target = Target.make(lengths, world, (float(self.token_tolerance), float(self.work_tolerance)), cap)
            first, degree = self._search(lengths, legal, target)
            if self.token_limit is None or cap is None:
                return first, degree
            most = self._most_tokens(lengths, first, degree, world)
            if most <= self.token_limit:
                return first, degree
            cap -= most - self.token_limit
        raise InvalidField(
            "token_limit", self.token_limit, f"at least what a rank needs; the best placement found takes {most}"
        )

    def _search(self, lengths: IntArray, legal: IntArray, target: Target) -> tuple[IntArray, IntArray]:
        if target.world <= SINGLE_LEVEL:
            first, size_log = place_flat(lengths, legal, target, self._options())
        else:
            first, size_log = place_two_level(lengths, legal, target, self._options())
        return first, np.left_shift(1, size_log)

    def _options(self) -> SearchOptions:
        return SearchOptions(
            full=self.search == "full",
            structural_threshold=float(self.structural_threshold),
            beam_width=self.beam_width,
            load_bin=float(self.load_bin),
            smooth_max=float(self.smooth_max),
            num_refined=self.num_refined,
            repair_iterations=self.repair_iterations,
            extremes=self.extremes,
            candidates=self.candidates,
        )

    def _most_tokens(self, lengths: IntArray, first: IntArray, degree: IntArray, world: int) -> int:
        """Tokens of the fullest rank, counted by tiles."""
        owners = self._placement(lengths, first, degree, world).tile_owners(lengths)
        counts = -(-lengths // self.tile)
        rows = np.full(len(owners), self.tile)
        rows[np.cumsum(counts) - 1] = lengths - (counts - 1) * self.tile
        return int(np.bincount(owners, rows).max())

    def _placement(self, lengths: IntArray, first: IntArray, degree: IntArray, world: int) -> Placement:
        places = tuple(
            SequencePlace(length=n, ranks=tuple(range(r, r + g)))
            for n, r, g in zip(lengths.tolist(), first.tolist(), degree.tolist(), strict=True)
        )
        scheme = self.name if world <= SINGLE_LEVEL else TWO_LEVEL
        return Placement(scheme=scheme, world=world, tile=self.tile, sequences=places)


def warmup() -> None:
    """Compiles the search, or loads it from the cache on disk, so that the first placement is as quick as others."""
    BuddyRing(repair_iterations=1).place([5000] * 17 + [9000], 8)
    BuddyRing().place([5000, 64], 2)
    BuddyRing().place([1 << 17, 5000, 1000], 32)


def _is_power(value: Any) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(whole and 1 <= value <= MAX_INT32 and int(value) & (int(value) - 1) == 0)


def _require(field: str, value: object, valid: bool, allowed: str, hint: str = "") -> None:
    if not valid:
        raise InvalidField(field, value, allowed, hint)
