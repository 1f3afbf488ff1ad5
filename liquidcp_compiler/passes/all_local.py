"""Placement ``all-local``: no sequence is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.placement import (
    Placement,
    Placer,
    SequencePlace,
    build_placed,
    check_lengths,
    check_ranks,
    set_whole_numbers,
)


@dataclass(frozen=True)
class AllLocal(Placer, Pass[AuthoredGraph, PlacedGraph]):
    """Each sequence whole on the rank with the fewest tokens, longest first; ties take the lower rank.

    before:  300, 200 and 100 tokens
    after:   two ranks: 300 on rank 0, 200 and 100 on rank 1; nothing is transferred

    Field ``tile``: tokens of a tile.
    """

    name: ClassVar[str] = "all-local"
    tile: int = 128

    def __post_init__(self) -> None:
        set_whole_numbers(self, 1, "tile")

    def place(self, lengths: IntArray | list[int], world: int) -> Placement:
        """The placement of a batch; empty sequences get no rank."""
        world, checked = check_ranks(world), check_lengths(lengths).tolist()
        tokens, places = [0] * world, [SequencePlace(length=0, ranks=())] * len(checked)
        for i in sorted(range(len(checked)), key=lambda i: -checked[i]):
            if checked[i]:
                rank = tokens.index(min(tokens))
                tokens[rank] += checked[i]
                places[i] = SequencePlace(length=checked[i], ranks=(rank,))
        return Placement(scheme=self.name, world=world, tile=self.tile, sequences=tuple(places))

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        return build_placed(graph, context, self)
