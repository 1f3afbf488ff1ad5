"""Placement ``dcp``: decode context parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import InvalidField, PassError
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.problem import DecodeProblem
from liquidcp_compiler.ir.problem_fields import MAX_INT32, whole_number
from liquidcp_compiler.ir.tiles import REPLICATED, TileTable, contiguous_tiles, shard_lengths
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.dcp_tasks import DcpTasks

#: Rows (query tokens x local heads) of one attention task's query side.
ROWS_PER_TASK = 128


@dataclass(frozen=True)
class Dcp(Pass[AuthoredGraph, PlacedGraph]):
    """Places a decode or mixed batch on the ranks of one DCP group (paper sections 2.1 and 5).

    Query heads are divided over the ranks; the history of every request is token-interleaved over them; the new tokens
    lie on every rank (or, with ``new_kv = "in_cache"``, in the interleaved cache). A query tile is one rank's heads of
    up to 16 tokens of a request (of a longer query: as many as an attention task's 128 rows hold). Each rank attends
    from all query tiles to its own shard of the history.

    before:  a request's chunk region and history region
    after:   two ranks: a chunk compute and a final reduction a query tile on its owner; on each rank with history
             tokens a history compute, and a reduction that makes one result a query tile

    Fields:
        tile: tokens of a KV tile.
        block_tokens: query tokens of a query tile; fewer where a rank holds more than 8 heads, more in long queries.

    Raises InvalidField if the number of ranks does not divide the query heads.
    """

    name: ClassVar[str] = "dcp"
    tile: int = 128
    block_tokens: int = 16

    def __post_init__(self) -> None:
        for name in ("tile", "block_tokens"):
            whole_number(name, getattr(self, name), 1, MAX_INT32)

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        if not isinstance(graph, AuthoredGraph):
            raise PassError(self.name, f"places authored graphs; this one is {graph.stage} already")
        problem, world = graph.problem, context.world
        if not isinstance(problem, DecodeProblem):
            raise PassError(self.name, "places decode problems; a prefill problem takes zigzag-all or explicit")
        if problem.num_heads_q % world:
            raise InvalidField(
                "cp_size",
                world,
                f"a divisor of num_heads_q = {problem.num_heads_q}",
                "DCP divides query heads over ranks",
            )
        q_tiles, group = self._query_tiles(problem, world)
        kv_tiles = self._kv_tiles(problem, world)
        builder = DcpTasks(problem, world, q_tiles, kv_tiles, group)
        tasks, states = builder.build()
        return PlacedGraph(
            problem=problem,
            world=world,
            tile=self.tile,
            q_tiles=q_tiles,
            kv_tiles=kv_tiles,
            states=states,
            tasks=tasks,
            locs=graph.locs,
        )

    def _query_tiles(self, problem: DecodeProblem, world: int) -> tuple[TileTable, IntArray]:
        """Query tiles by (request, rank, token), and for each the task group (within its request) it belongs to."""
        heads = problem.num_heads_q // world
        lengths = problem.q_lengths
        most = max(1, ROWS_PER_TASK // heads)
        block = np.where(lengths > self.block_tokens, most, min(self.block_tokens, most))
        sequence, position, rows = contiguous_tiles(np.repeat(lengths, world), np.repeat(block, world))
        request, rank = sequence // world, sequence % world
        tiles = TileTable.make(
            sequence=request, position=position, rows=rows, rank=rank, head=rank * heads, num_heads=heads
        )
        per_task = np.maximum(1, ROWS_PER_TASK // np.maximum(1, np.minimum(block, lengths) * heads))
        start = np.searchsorted(request, np.arange(len(lengths)))
        place = np.arange(len(request)) - start[request]
        return tiles, place // per_task[request]

    def _kv_tiles(self, problem: DecodeProblem, world: int) -> TileTable:
        """KV tiles by (request, [history by (rank, position), new tokens])."""
        chunked = problem.new_kv == "chunk"
        cached = problem.histories if chunked else problem.kv_lengths_array
        local = shard_lengths(cached, world, problem.interleave).ravel()
        shard, position, rows = contiguous_tiles(local, self.tile)
        request, rank = shard // world, shard % world
        group = np.full(len(shard), world)
        interleave = np.full(len(shard), problem.interleave if world > 1 else 1)
        columns = [request, position, rows, group, interleave, np.where(group > 1, rank, 0), rank]
        if chunked:
            new = problem.kv_lengths_array - cached
            r, p, n = contiguous_tiles(new, self.tile)
            one = np.ones_like(r)
            extra = [r, p + cached[r], n, one, one, 0 * r, np.full(len(r), REPLICATED)]
            order = np.argsort(np.concatenate((request, r)), kind="stable")
            columns = [np.concatenate((a, b))[order] for a, b in zip(columns, extra, strict=True)]
        names = ("sequence", "position", "rows", "group", "interleave", "phase", "rank")
        return TileTable.make(num_heads=problem.num_heads_kv, **dict(zip(names, columns, strict=True)))
