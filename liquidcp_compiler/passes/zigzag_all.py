"""Placement ``zigzag-all``: every sequence over all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.problem_fields import MAX_INT32, whole_number
from liquidcp_compiler.ir.tiles import contiguous_tiles
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.place_prefill import (
    attach_computes,
    build_prefill,
    interleaved_kv_tiles,
    prefill_problem,
    turns,
    zigzag_owner,
)
from liquidcp_compiler.passes.placement import Placement, Placer, SequencePlace, check_lengths, check_ranks


@dataclass(frozen=True)
class ZigzagAll(Placer, Pass[AuthoredGraph, PlacedGraph]):
    """Zigzag-partitions every sequence across all ranks (paper sections 2.1 and 7.1, "All CP").

    before:  region of a sequence of 8 tiles
    after:   two ranks: tiles 0, 1, 6, 7 on rank 0 and 2, 3, 4, 5 on rank 1, one compute task a query tile

    Fields:
        tile: tokens of a tile.
        legality: ``tile`` takes any length; ``paper`` wants 256 * world to divide every length (paper A.1).
        kv_interleave: 0, or the number of tokens after which the next rank holds the keys: KV as a decode cache keeps
            it, while queries stay zigzag.
    """

    name: ClassVar[str] = "zigzag-all"
    tile: int = 128
    legality: str = "tile"
    kv_interleave: int = 0

    def __post_init__(self) -> None:
        whole_number("tile", self.tile, 1, MAX_INT32)
        if self.legality not in ("tile", "paper"):
            raise InvalidField("legality", self.legality, "tile, paper")
        whole_number("kv_interleave", self.kv_interleave, 0, MAX_INT32)

    def place(self, lengths: IntArray | list[int], world: int) -> Placement:
        """The placement of a batch of queries. Where tiles do not divide, the ranks of a sequence are turned.

        Raises InvalidField for lengths that ``legality`` forbids. Keys by ``kv_interleave`` are not in a placement.
        """
        world, checked = check_ranks(world), check_lengths(lengths)
        if self.legality == "paper":
            check_paper_legality(checked, np.full(len(checked), world))
        first = turns(-(-checked // self.tile), np.full(len(checked), world)).tolist()
        ranks = [tuple((start + i) % world for i in range(world)) for start in first]
        places = [SequencePlace(length=n, ranks=r if n else ()) for n, r in zip(checked.tolist(), ranks, strict=True)]
        return Placement(scheme=self.name, world=world, tile=self.tile, sequences=tuple(places))

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        problem, world = prefill_problem(graph, self.name), context.world
        if self.legality == "paper":
            check_paper_legality(problem.q_lengths, np.full(len(problem.q_lengths), world))
        q_rank = self._owners(problem.q_lengths, world)
        if self.kv_interleave:
            tiles = interleaved_kv_tiles(
                problem.kv_lengths_array, world, self.kv_interleave, self.tile, problem.num_heads_kv
            )
            return attach_computes(graph, problem, world, self.tile, q_rank, tiles)
        kv_rank = self._owners(problem.kv_lengths_array, world)
        return build_prefill(graph, world, self.tile, q_rank, kv_rank, self.name)

    def _owners(self, lengths: IntArray, world: int) -> IntArray:
        sequence, position, _ = contiguous_tiles(lengths, self.tile)
        num_tiles, group = -(-lengths // self.tile), np.full(len(lengths), world)
        return zigzag_owner(sequence, position // self.tile, num_tiles, group, turns(num_tiles, group))


def check_paper_legality(lengths: IntArray, group: IntArray) -> None:
    """Raises InvalidField for the first split sequence whose length 256 * g does not divide (paper A.1)."""
    bad = np.flatnonzero((group > 1) & (lengths % (256 * group) != 0))
    if len(bad):
        i, g = int(bad[0]), int(group[bad[0]])
        raise InvalidField(
            f"lengths[{i}]",
            int(lengths[i]),
            f"multiples of {256 * g} on {g} ranks (legality paper)",
            "Use legality tile",
        )
