"""Placement ``magi-chunks``: equal chunks of the packed batch, as many on every rank, balanced in attention."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.tiles import contiguous_tiles
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
class MagiChunks(Placer, Pass[AuthoredGraph, PlacedGraph]):
    """Deals chunks of the packed batch to ranks as MagiAttention's default dispatch does.

    before:  one sequence of 8 tiles, chunks of one tile
    after:   two ranks: tiles 7, 4, 3, 0 on rank 0 and 6, 5, 2, 1 on rank 1

    The batch, sequence after sequence, is cut into equal chunks. The chunk with the largest causal attention goes
    first, always to the rank with the least, which takes no more once it has its share of the chunks. So tokens are
    balanced exactly where chunks divide, and sequences are scattered: there are no groups of ranks. A chunk is a run of
    tiles and tiles do not cross sequences, so chunks are equal in tiles, and in tokens where tiles are full.

    Fields:
        chunk: tokens of a chunk, a multiple of ``tile``.
        min_chunks_per_rank: a small batch gets smaller chunks, down to one tile, so that every rank has this many.
        tile: tokens of a tile.
    """

    name: ClassVar[str] = "magi-chunks"
    chunk: int = 2048
    min_chunks_per_rank: int = 8
    tile: int = 128

    def __post_init__(self) -> None:
        set_whole_numbers(self, 1, "tile", "chunk", "min_chunks_per_rank")
        if self.chunk % self.tile:
            raise InvalidField("chunk", self.chunk, f"multiples of the tile, {self.tile} tokens")

    def place(self, lengths: IntArray | list[int], world: int) -> Placement:
        """The placement of a batch, tile by tile."""
        world, checked = check_ranks(world), check_lengths(lengths)
        sequence, position, rows = contiguous_tiles(checked, self.tile)
        per_chunk = self.tiles_per_chunk(len(sequence), world)
        chunk = np.arange(len(sequence)) // per_chunk
        work = np.bincount(chunk, causal_area(position, rows))
        owner = _deal(work.tolist(), world)[chunk] if len(chunk) else np.zeros(0, np.int64)
        shared = np.zeros((len(checked), world), bool)
        shared[sequence, owner] = True
        places = [
            SequencePlace(length=int(n), ranks=tuple(np.flatnonzero(has).tolist()))
            for n, has in zip(checked, shared, strict=True)
        ]
        return Placement(
            scheme=self.name,
            world=world,
            tile=self.tile,
            sequences=tuple(places),
            tile_ranks=tuple(owner.tolist()),
        )

    def tiles_per_chunk(self, num_tiles: int, world: int) -> int:
        """Tiles of a chunk in a batch of this many tiles."""
        enough = num_tiles // (self.min_chunks_per_rank * world)
        return max(1, min(self.chunk // self.tile, enough))

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        return build_placed(graph, context, self)


def causal_area(position: IntArray, rows: IntArray) -> IntArray:
    """Query-key pairs of tiles of causal sequences, from their first positions and numbers of rows."""
    return rows * position + rows * (rows + 1) // 2


def _deal(work: list[float], world: int) -> IntArray:
    """Rank of every chunk: largest first, to the least loaded rank that still has room; ties take the lower rank."""
    share = -(-len(work) // world)
    heap, count = [(0.0, rank) for rank in range(world)], [0] * world
    owner = np.zeros(len(work), np.int64)
    for chunk in sorted(range(len(work)), key=lambda c: -work[c]):
        load, rank = heapq.heappop(heap)
        owner[chunk] = rank
        count[rank] += 1
        if count[rank] < share:
            heapq.heappush(heap, (load + work[chunk], rank))
    return owner
