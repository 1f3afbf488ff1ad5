"""Tables of placed tiles: which tokens a tile holds, who owns it, and where."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.intervals import IntArray, rank_in_group

#: Owner of a tile that every rank holds.
REPLICATED = -1


@dataclass(frozen=True, eq=False, kw_only=True)
class TileTable:
    """Placed tiles of one space, one row a tile, all columns int64 [num_tiles].

    A placement is this table: tile → (``rank``, ``slot``). A rank's local tensor holds its tiles in slot order, without
    gaps, and then the replicated ones in tile order.

    Fields:
        sequence: attention domain.
        position: first token among those of its shard (contiguous tiles: in the sequence).
        rows: tokens, at most the tile size.
        group, interleave, phase: token interleave of the shard; row j is token
            ((position + j) // interleave * group + phase) * interleave + (position + j) % interleave.
            Contiguous tiles have (1, 1, 0).
        rank: owner, or REPLICATED.
        slot: place in the owner's local tensor, in tiles; -1 if replicated.
        head, num_heads: first head and number of heads held (query tiles; KV tiles hold all KV heads).
    """

    sequence: IntArray
    position: IntArray
    rows: IntArray
    group: IntArray
    interleave: IntArray
    phase: IntArray
    rank: IntArray
    slot: IntArray
    head: IntArray
    num_heads: IntArray

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def make(cls, *, num_heads: int | IntArray, slot: IntArray | None = None, **columns) -> TileTable:
        """A table from the columns that differ; the others are contiguous tiles of all heads, slots in tile order."""
        n = len(columns["sequence"])
        defaults = {"group": 1, "interleave": 1, "phase": 0, "head": 0}
        full = {k: _column(columns.get(k, d), n) for k, d in defaults.items()}
        full |= {k: _column(columns[k], n) for k in ("sequence", "position", "rows", "rank")}
        full["num_heads"] = _column(num_heads, n)
        full["slot"] = _column(slot, n) if slot is not None else slots_in_order(full["rank"])
        return cls(**full)

    def columns(self) -> dict[str, IntArray]:
        """name -> column."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def token(self, row: NDArray | int = 0) -> IntArray:
        """Token of the sequence at a row of each tile."""
        local = self.position + row
        inter = self.interleave
        return (local // inter * self.group + self.phase) * inter + local % inter

    @property
    def first_token(self) -> IntArray:
        """Smallest token of each tile."""
        return self.token(0)

    @property
    def last_token(self) -> IntArray:
        """Largest token of each tile."""
        return self.token(self.rows - 1)


def _column(value, n: int) -> IntArray:
    return np.full(n, value, np.int64) if np.ndim(value) == 0 else np.asarray(value, np.int64)


def slots_in_order(rank: IntArray) -> IntArray:
    """Slots that pack each owner's tiles in tile order; -1 for replicated tiles."""
    return np.where(rank == REPLICATED, -1, rank_in_group(rank))


def contiguous_tiles(lengths: IntArray, tile: int | IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(sequence, position, rows) of the tiles of sequences cut every ``tile`` tokens (one size, or one a sequence); the
    last one may be partial."""
    size = np.broadcast_to(np.asarray(tile, np.int64), lengths.shape)
    counts = -(-lengths // size)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    index = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    position = index * size[sequence]
    return sequence, position, np.minimum(size[sequence], lengths[sequence] - position)


def shard_lengths(lengths: IntArray, group: int, interleave: int) -> IntArray:
    """Tokens each rank holds of interleaved sequences: int64 [num_sequences, group]."""
    period = group * interleave
    rest = (lengths % period)[:, None] - np.arange(group) * interleave
    return (lengths // period * interleave)[:, None] + np.clip(rest, 0, interleave)


def tokens_before(token: IntArray, phase: IntArray, group: int, interleave: int) -> IntArray:
    """How many tokens of shard ``phase`` come before ``token`` in the sequence."""
    period = group * interleave
    return token // period * interleave + np.clip(token % period - phase * interleave, 0, interleave)
