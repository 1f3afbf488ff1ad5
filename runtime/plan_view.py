"""One rank's tables as plain Python rows, for code that walks them task by task."""

from __future__ import annotations

from collections import namedtuple
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from liquidcp_compiler.ir.layout import DESCRIPTORS, Space
from liquidcp_compiler.ir.plan import Plan

_ROW_TYPES = {d.table: namedtuple(d.name, [f.name for f in d.fields]) for d in DESCRIPTORS}


class RankView:
    """Rows of one rank: every table is a list of named tuples with the fields of its descriptor."""

    sequences: list[Any]
    q_tiles: list[Any]
    kv_tiles: list[Any]
    states: list[Any]
    transfers: list[Any]
    rows: list[Any]
    reductions: list[Any]

    def __init__(self, plan: Plan, rank: int) -> None:
        self.rank = rank
        for name, row_type in _ROW_TYPES.items():
            setattr(self, name, [row_type._make(row) for row in plan.table(name, rank).tolist()])
        self.q_list: list[int] = plan.table("q_list", rank).tolist()
        self.kv_list: list[int] = plan.table("kv_list", rank).tolist()
        self.target_list: list[int] = plan.table("target_list", rank).tolist()
        self.state_list: list[int] = plan.table("state_list", rank).tolist()
        header = plan.header(rank)
        self.num_local_q_tiles = int(header["num_local_q_tiles"])
        self.num_local_kv_tiles = int(header["num_local_kv_tiles"])
        self.num_local_q_tokens = int(header["num_local_q_tokens"])
        self.num_local_kv_tokens = int(header["num_local_kv_tokens"])

    @cached_property
    def key_positions(self) -> list[np.ndarray]:
        """Per KV tile: int64 [rows], position of each row among the keys of its sequence."""
        return [_key_positions(tile) for tile in self.kv_tiles]

    def item(self, space: int, index: int) -> tuple[object, ...]:
        """What a transfer's source or target is, such that equal items hold equal data."""
        if space == Space.KV:
            t = self.kv_tiles[index]
            sequence = self.sequences[t.sequence].sequence
            return ("kv", t.tile, sequence, t.position, t.rows, t.interleave, t.group, t.phase)
        if space == Space.Q:
            t = self.q_tiles[index]
            return ("q", t.tile, self.sequences[t.sequence].sequence, t.position, t.rows, t.head, t.num_heads)
        state = self.states[index]
        return ("state", state.state, *self.item(Space.Q, state.q_tile))


def _key_positions(tile: Any) -> np.ndarray:
    local = np.arange(tile.position, tile.position + tile.rows, dtype=np.int64)
    if tile.group == 1:
        return local
    return (local // tile.interleave * tile.group + tile.phase) * tile.interleave + local % tile.interleave


_CACHE: WeakKeyDictionary[Plan, list[RankView | None]] = WeakKeyDictionary()


def rank_view(plan: Plan, rank: int) -> RankView:
    """The view of one rank, made once a plan."""
    views = _CACHE.setdefault(plan, [None] * plan.world)
    view = views[rank]
    if view is None:
        view = views[rank] = RankView(plan, rank)
    return view
