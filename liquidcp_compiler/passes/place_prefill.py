"""What every placement of a prefill batch shares: from tile owners to tiles and compute tasks."""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.errors import PassError
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import AccessTable, IntArray
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_compiler.ir.regions import needed_tiles
from liquidcp_compiler.ir.tasks import TaskKind, TaskTable
from liquidcp_compiler.ir.tiles import TileTable, contiguous_tiles, shard_lengths


def zigzag_owner(sequence: IntArray, index: IntArray, num_tiles: IntArray, group: IntArray, turn: IntArray) -> IntArray:
    """Place of each tile among the ``group`` ranks of its sequence.

    The tiles of a sequence are cut into 2 * group runs as equal as whole tiles allow; run c and run 2 * group - 1 - c
    go to the same rank (paper section 2.1). ``turn`` (per sequence) turns the ranks, so that sequences with fewer
    tiles than runs do not all start at the same one.
    """
    g, n = group[sequence], num_tiles[sequence]
    run = ((index + 1) * 2 * g - 1) // np.maximum(n, 1)
    return (np.minimum(run, 2 * g - 1 - run) + turn[sequence]) % g


def turns(num_tiles: IntArray, group: IntArray) -> IntArray:
    """Turn of each sequence: where the sequences before it, by their left-over tiles, ended. 0 where tiles divide."""
    left_over = num_tiles % (2 * group)
    return (np.cumsum(left_over) - left_over) % group


def build_prefill(
    graph: AuthoredGraph, world: int, tile: int, q_rank: IntArray, kv_rank: IntArray, pass_name: str
) -> PlacedGraph:
    """The placed graph of a prefill problem, from the owner of every query tile and KV tile."""
    problem = prefill_problem(graph, pass_name)
    sequence, position, rows = contiguous_tiles(problem.kv_lengths_array, tile)
    kv_tiles = TileTable.make(
        sequence=sequence, position=position, rows=rows, rank=kv_rank, num_heads=problem.num_heads_kv
    )
    return attach_computes(graph, problem, world, tile, q_rank, kv_tiles)


def attach_computes(
    graph: AuthoredGraph, problem: PrefillProblem, world: int, tile: int, q_rank: IntArray, kv_tiles: TileTable
) -> PlacedGraph:
    """Query tiles with the given owners and one compute task each, over all KV tiles that the mask shows it."""
    sequence, position, rows = contiguous_tiles(problem.q_lengths, tile)
    q_tiles = TileTable.make(
        sequence=sequence, position=position, rows=rows, rank=q_rank, num_heads=problem.num_heads_q
    )
    n = len(q_tiles)
    row, lo, hi = needed_tiles(problem, sequence, position, position + rows, kv_tiles)
    ids = np.arange(n, dtype=np.int64)
    reads = AccessTable.from_rows(
        n,
        np.concatenate((ids, row)),
        np.concatenate((np.full(n, Space.Q), np.full(len(row), Space.KV))),
        np.concatenate((ids, lo)),
        np.concatenate((ids + 1, hi)),
    )
    tasks = TaskTable.make(
        TaskKind.COMPUTE, q_tiles.rank, reads, AccessTable.single(Space.OUT, ids, ids + 1), role=Role.SELF
    )
    return PlacedGraph(
        problem=problem,
        world=world,
        tile=tile,
        q_tiles=q_tiles,
        kv_tiles=kv_tiles,
        states=np.zeros(0, np.int64),
        tasks=tasks,
        locs=graph.locs,
    )


def interleaved_kv_tiles(lengths: IntArray, world: int, interleave: int, tile: int, num_heads: int) -> TileTable:
    """KV tiles of token-interleaved shards: every ``interleave`` tokens go to the next rank. Tile ids run by
    (sequence, rank, position)."""
    local = shard_lengths(lengths, world, interleave).ravel()
    shard, position, rows = contiguous_tiles(local, tile)
    rank = shard % world
    return TileTable.make(
        sequence=shard // world,
        position=position,
        rows=rows,
        rank=rank,
        group=world,
        interleave=interleave if world > 1 else 1,
        phase=rank,
        num_heads=num_heads,
    )


def prefill_problem(graph: AuthoredGraph, pass_name: str) -> PrefillProblem:
    """The graph's problem, if it is a prefill problem."""
    if not isinstance(graph, AuthoredGraph):
        raise PassError(pass_name, f"places authored graphs; this one is {graph.stage} already")
    if not isinstance(graph.problem, PrefillProblem):
        raise PassError(pass_name, f"places prefill problems; a {graph.problem.kind} problem takes the placement dcp")
    return graph.problem
