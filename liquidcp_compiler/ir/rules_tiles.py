"""Rules of placed graphs about tiles: which tokens they hold, who owns them, and where."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from liquidcp_compiler.ir.graph import TaskGraph
from liquidcp_compiler.ir.problem_fields import MAX_INT32
from liquidcp_compiler.ir.tiles import TileTable

Findings = Iterator[tuple[int, str]]


def tiles_partition_tokens(graph: TaskGraph) -> Findings:
    """Query tiles hold every (token, head) of every sequence once; KV tiles every token once."""
    p = graph.problem
    q, kv = graph.q_tiles, graph.kv_tiles
    for name, tiles, lengths, heads in (("q", q, p.q_lengths, p.num_heads_q), ("kv", kv, p.kv_lengths_array, 1)):
        if len(tiles) and (tiles.sequence.min() < 0 or tiles.sequence.max() >= p.num_sequences or tiles.rows.min() < 1):
            yield -1, f"a {name} tile is empty or names a sequence outside 0 to {p.num_sequences - 1}"
            return
        yield from _shards_exist(name, tiles, p.num_heads_q if name == "q" else p.num_heads_kv)
        weight = tiles.rows * (tiles.num_heads if name == "q" else 1)
        held = np.bincount(tiles.sequence, weight, minlength=p.num_sequences).astype(np.int64)
        for s in np.flatnonzero(held != lengths * heads)[:1]:
            yield -1, f"{name} tiles of sequence {s} hold {held[s] // heads} tokens of {lengths[s]}"
        outside = (tiles.first_token < 0) | (tiles.last_token >= lengths[tiles.sequence])
        for i in np.flatnonzero(outside)[:1]:
            yield -1, f"{name} tile {i} holds tokens past the end of sequence {tiles.sequence[i]}"
        yield from _no_token_twice(name, tiles)
        yield from _no_shards_mixed(name, tiles)


def _shards_exist(name: str, tiles: TileTable, num_heads: int) -> Findings:
    """Heads are heads of the problem, shards are shards of their group; query tiles hold tokens in a row."""
    last_head = tiles.head + tiles.num_heads
    bad = (tiles.head < 0) | (tiles.num_heads < 1) | (last_head > num_heads)
    for i in np.flatnonzero(bad)[:1]:
        yield -1, f"{name} tile {i} has heads {tiles.head[i]}:{last_head[i]} of {num_heads}"
    bad = (tiles.group < 1) | (tiles.interleave < 1) | (np.maximum(tiles.group, tiles.interleave) > MAX_INT32)
    bad |= (tiles.phase < 0) | (tiles.phase >= tiles.group)
    for i in np.flatnonzero(bad)[:1]:
        shard = f"every {tiles.group[i]} by {tiles.interleave[i]} phase {tiles.phase[i]}"
        yield -1, f"{name} tile {i} is of shard {shard}; a phase is below its group, and neither exceeds {MAX_INT32}"
    if name == "q":
        for i in np.flatnonzero(tiles.group != 1)[:1]:
            yield -1, f"q tile {i} is interleaved; query tiles hold tokens that follow each other"


def _no_token_twice(name: str, tiles: TileTable) -> Findings:
    """No two tiles of one shard hold the same token of the same head."""
    cuts = np.unique(np.concatenate((tiles.head, tiles.head + tiles.num_heads)))
    first, past = np.searchsorted(cuts, tiles.head), np.searchsorted(cuts, tiles.head + tiles.num_heads)
    # One entry a tile and stretch of heads: tiles of different heads may share tokens, and may cut heads differently.
    tile = np.repeat(np.arange(len(tiles)), past - first)
    stretch = np.arange(len(tile)) - np.repeat(np.cumsum(past - first) - past, past - first)
    interleave = np.where(tiles.group == 1, 1, tiles.interleave)
    keys = (stretch, tiles.phase[tile], interleave[tile], tiles.group[tile], tiles.sequence[tile])
    order = np.lexsort((tiles.position[tile], *keys))
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    tile = tile[order]
    twice = same & (tiles.position[tile[1:]] < (tiles.position + tiles.rows)[tile[:-1]])
    for i in np.flatnonzero(twice)[:1]:
        yield -1, f"{name} tiles {tile[i]} and {tile[i + 1]} hold the same tokens"


def _no_shards_mixed(name: str, tiles: TileTable) -> Findings:
    """Where tiles lie among each other, they interleave in one way, so that different shards share no token."""
    if (tiles.group == 1).all():
        return
    order = np.lexsort((tiles.first_token, tiles.sequence))
    big = int(tiles.last_token.max()) + 1
    first = (tiles.sequence * big + tiles.first_token)[order]
    reach = np.maximum.accumulate((tiles.sequence * big + tiles.last_token)[order])
    interleave = np.where(tiles.group == 1, 1, tiles.interleave)[order]
    differ = (tiles.group[order][1:] != tiles.group[order][:-1]) | (interleave[1:] != interleave[:-1])
    for i in np.flatnonzero(differ & (first[1:] <= reach[:-1]))[:1]:
        yield -1, f"{name} tiles {order[i]} and {order[i + 1]} lie among each other and interleave in different ways"


def owners_exist(graph: TaskGraph) -> Findings:
    """Owners are ranks of the world; query tiles are not replicated, and those of a rank have the same heads."""
    for name, tiles, low in (("q", graph.q_tiles, 0), ("kv", graph.kv_tiles, -1)):
        bad = (tiles.rank < low) | (tiles.rank >= graph.world)
        for i in np.flatnonzero(bad)[:1]:
            yield -1, f"{name} tile {i} is owned by rank {tiles.rank[i]} of {graph.world}"
    q = graph.q_tiles
    heads = np.full((2, graph.world), -1, np.int64)
    inside = (q.rank >= 0) & (q.rank < graph.world)
    heads[:, q.rank[inside]] = q.head[inside], q.num_heads[inside]
    differ = (q.head[inside] != heads[0, q.rank[inside]]) | (q.num_heads[inside] != heads[1, q.rank[inside]])
    for i in np.flatnonzero(inside)[differ][:1]:
        yield -1, f"q tile {i} has other heads than other query tiles of rank {q.rank[i]}; a rank has the same of all"


def slots_are_packed(graph: TaskGraph) -> Findings:
    """The slots of a rank are 0, 1, 2, … without gaps or repeats."""
    for name, tiles in (("q", graph.q_tiles), ("kv", graph.kv_tiles)):
        own = np.flatnonzero(tiles.rank >= 0)
        order = own[np.lexsort((tiles.slot[own], tiles.rank[own]))]
        start = np.searchsorted(tiles.rank[order], tiles.rank[order])
        bad = tiles.slot[order] != np.arange(len(order)) - start
        for i in order[np.flatnonzero(bad)[:1]]:
            yield -1, f"{name} tile {i} has slot {tiles.slot[i]} on rank {tiles.rank[i]}; slots must be 0, 1, 2, …"
