"""Placement ``zeppelin``: long sequences get ranks in proportion to their squared length, short ones stay whole."""

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
class Zeppelin(Placer, Pass[AuthoredGraph, PlacedGraph]):
    """Our reading of Algorithm 2 of Zeppelin (arXiv 2509.21841), the part within one node (paper appendix B.1).

    before:  24K, 24K, 14K and 2K tokens on four ranks
    after:   each 24K over two ranks, 14K and 2K whole on ranks 0 and 1

    A reading and not a copy: its authors' code is not public, and on FreeLaw-like batches this one leaves more
    imbalance of attention than the LiquidCP paper reports for its own version. In words: sequences of at least a
    threshold are long, and take ceil(L^2 / Q) ranks, the ones with the least attention (sum of L^2 / ranks), longest
    first, Q being the mean per rank of the squared lengths of all long ones; the others go whole to the rank with the
    fewest tokens, longest first. Where that exceeds the capacity, the longest short one becomes long, and all starts
    over. Groups need be neither aligned nor powers of two. Where lengths do not divide, tiles are shared out as
    evenly as whole tiles allow, instead of padding the sequence. There is no remapping of tokens for linear modules.

    Fields:
        capacity: tokens that short sequences may fill a rank to; the first threshold too. 0 is the mean over ranks.
        tile: tokens of a tile.
    """

    name: ClassVar[str] = "zeppelin"
    capacity: int = 0
    tile: int = 128

    def __post_init__(self) -> None:
        set_whole_numbers(self, 0, "capacity")
        set_whole_numbers(self, 1, "tile")

    def place(self, lengths: IntArray | list[int], world: int) -> Placement:
        """The placement of a batch; empty sequences get no rank."""
        world, checked = check_ranks(world), check_lengths(lengths).tolist()
        order = sorted((i for i, length in enumerate(checked) if length), key=lambda i: -checked[i])
        ranks = _share(checked, order, world, self.capacity or -(-sum(checked) // world))
        places = [SequencePlace(length=n, ranks=ranks.get(i, ())) for i, n in enumerate(checked)]
        return Placement(scheme=self.name, world=world, tile=self.tile, sequences=tuple(places))

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        return build_placed(graph, context, self)


def _share(lengths: list[int], order: list[int], world: int, capacity: int) -> dict[int, tuple[int, ...]]:
    """Ranks of every sequence in ``order`` (longest first)."""
    threshold = capacity
    while True:
        long = [i for i in order if lengths[i] >= threshold]
        ranks, tokens = _place_long(lengths, long, world)
        short = order[len(long) :]
        if not short or _place_short(lengths, short, tokens, capacity, ranks):
            return ranks
        threshold = lengths[short[0]]


def _place_long(lengths: list[int], long: list[int], world: int) -> tuple[dict[int, tuple[int, ...]], list[float]]:
    """(ranks by sequence, tokens by rank)."""
    ranks: dict[int, tuple[int, ...]] = {}
    tokens, work = [0.0] * world, [0.0] * world
    squares = sum(lengths[i] ** 2 for i in long)
    for i in long:
        degree = min(world, -(-(lengths[i] ** 2 * world) // squares))
        chosen = sorted(sorted(range(world), key=work.__getitem__)[:degree])
        ranks[i] = tuple(chosen)
        for rank in chosen:
            tokens[rank] += lengths[i] / degree
            work[rank] += lengths[i] ** 2 / degree
    return ranks, tokens


def _place_short(
    lengths: list[int], short: list[int], tokens: list[float], capacity: int, ranks: dict[int, tuple[int, ...]]
) -> bool:
    """Adds the short sequences to ``ranks`` and ``tokens``. False as soon as one does not fit the capacity."""
    for i in short:
        rank = tokens.index(min(tokens))
        tokens[rank] += lengths[i]
        if tokens[rank] > capacity:
            return False
        ranks[i] = (rank,)
    return True
