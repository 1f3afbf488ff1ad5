"""Local numbers: the place of every tile, state and signal in the tables of the rank that holds it."""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.ir.graph import SyncedGraph
from liquidcp_compiler.ir.intervals import IntArray, expand, rank_in_group
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.ir.tiles import REPLICATED, TileTable


class LocalNumbers:
    """For each space the items that ranks hold, sorted by rank and local number.

    Own tiles come first, in slot order, then replicated ones, then pulled ones in transfer order. States come in
    global order.

    Fields (by space): ``rank`` and ``item`` int64 [entries]; ``pulled`` bool [entries].
    """

    def __init__(self, graph: SyncedGraph) -> None:
        self.graph = graph
        self.state_owner = _state_owner(graph)
        self.rank: dict[Space, IntArray] = {}
        self.item: dict[Space, IntArray] = {}
        self.pulled: dict[Space, IntArray] = {}
        self._place: dict[Space, IntArray] = {}
        for space, tiles in ((Space.Q, graph.q_tiles), (Space.KV, graph.kv_tiles)):
            self._hold(space, *self._tiles(space, tiles))
        self._hold(Space.STATE, *self._states())
        s = graph.signals
        start = np.searchsorted(s.rank, np.arange(graph.world))
        self.signal_number = np.arange(len(s)) - start[s.rank] if len(s) else s.rank
        self._signal = {sp: self._signals_by_item(sp) for sp in (Space.Q, Space.KV, Space.STATE)}

    def _hold(self, space: Space, rank: IntArray, item: IntArray, pulled: IntArray) -> None:
        self.rank[space], self.item[space], self.pulled[space] = rank, item, pulled
        n = self.graph.num_items(space)
        place = np.full((self.graph.world, n), -1, np.int64)
        place[rank, item] = rank_in_group(rank)
        self._place[space] = place

    def _tiles(self, space: Space, tiles: TileTable) -> tuple[IntArray, IntArray, IntArray]:
        world = self.graph.world
        own, everywhere = np.flatnonzero(tiles.rank >= 0), np.flatnonzero(tiles.rank == REPLICATED)
        pull_rank, pull_item = self._pulls(space)
        rank = np.concatenate((tiles.rank[own], np.repeat(np.arange(world), len(everywhere)), pull_rank))
        item = np.concatenate((own, np.tile(everywhere, world), pull_item))
        kind = np.repeat([0, 1, 2], [len(own), len(everywhere) * world, len(pull_item)])
        key = np.concatenate((tiles.slot[own], np.tile(everywhere, world), np.arange(len(pull_item))))
        order = np.lexsort((key, kind, rank))
        return rank[order], item[order], (kind == 2)[order]

    def _pulls(self, space: Space) -> tuple[IntArray, IntArray]:
        """(rank, item) of the transfers in one space, in queue order."""
        t = self.graph.tasks
        row, lo, hi = t.writes.of_space(space)
        keep = t.kind[row] == TaskKind.TRANSFER
        row, lo, hi = row[keep], lo[keep], hi[keep]
        return np.repeat(t.rank[row], hi - lo), expand(lo, hi)

    def _states(self) -> tuple[IntArray, IntArray, IntArray]:
        made = np.flatnonzero(self.state_owner >= 0)
        pull_rank, pull_item = self._pulls(Space.STATE)
        rank = np.concatenate((self.state_owner[made], pull_rank))
        item = np.concatenate((made, pull_item))
        pulled = np.repeat([False, True], [len(made), len(pull_item)])
        order = np.lexsort((item, rank))
        return rank[order], item[order], pulled[order]

    def _signals_by_item(self, space: Space) -> IntArray:
        s = self.graph.signals
        out = np.full((self.graph.world, self.graph.num_items(space)), -1, np.int64)
        here = s.space == space
        out[s.rank[here], s.item[here]] = self.signal_number[here]
        return out

    def of(self, space: Space, rank: IntArray, item: IntArray) -> IntArray:
        """Local numbers of items on ranks; -1 where the rank does not hold the item."""
        return self._place[space][rank, item]

    def signal_of(self, space: Space) -> IntArray:
        """Signal (local number) of every entry of a space; -1 for own tiles and tiles counted in a prefix."""
        return self.signal_at(space, self.rank[space], self.item[space])

    def signal_at(self, space: Space, rank: IntArray, item: IntArray) -> IntArray:
        """Signal (local number) of items on ranks, or -1."""
        return self._signal[space][rank, item]

    def tokens(self, space: Space, rows: IntArray, slot: int = 0) -> IntArray:
        """First token of every entry: packed in the local tensor; in the buffer of pulled tiles packed too, or one
        place of ``slot`` tokens a tile."""
        rank, pulled = self.rank[space], self.pulled[space]
        size = rows[self.item[space]]
        if slot:
            size = np.where(pulled, slot, size)
        group = rank * 2 + pulled
        start = np.cumsum(size) - size
        fresh = np.ones(len(group), bool)
        fresh[1:] = group[1:] != group[:-1]
        first = np.maximum.accumulate(np.where(fresh, np.arange(len(group)), 0))
        return start - start[first] if len(group) else start


def _state_owner(graph: SyncedGraph) -> IntArray:
    """Rank that computes each state; -1 if none does."""
    t = graph.tasks
    row, lo, hi = t.writes.of_space(Space.STATE)
    made = t.kind[row] != TaskKind.TRANSFER
    owner = np.full(len(graph.states), -1, np.int64)
    owner[expand(lo[made], hi[made])] = np.repeat(t.rank[row[made]], (hi - lo)[made])
    return owner
