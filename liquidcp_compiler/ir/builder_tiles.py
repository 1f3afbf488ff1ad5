"""The tiles of one space while a graph is written by hand."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np

from liquidcp_compiler.errors import GraphError
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.tiles import TileTable


class BuilderTiles:
    """Grows by runs of tokens; refuses what is out of range or owned twice.

    Runs come by sequence, and KV runs by token within it, since tile ids follow the order of the calls and every tile
    table is sorted like that.
    """

    def __init__(self, word: str, lengths: IntArray, tile: int, num_heads: int) -> None:
        self._word, self._lengths = word, lengths.tolist()
        self._tile, self._num_heads = tile, num_heads
        self._rows: list[dict[str, int]] = []
        self._runs: list[tuple[int, int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def rank(self, tile: int) -> int:
        """Owner of a tile, or REPLICATED."""
        return self._rows[tile]["rank"]

    def sequence(self, tile: int) -> int:
        """Sequence of a tile."""
        return self._rows[tile]["sequence"]

    def add(self, tokens: Any, rank: int, sequence: Any, heads: Any = None) -> range:
        """Cuts tokens [lo, hi) into tiles of one rank (or REPLICATED); their ids. Raises GraphError."""
        sequence = _index("sequence", sequence, len(self._lengths) - 1)
        lo, hi = _pair("tokens", tokens, self._lengths[sequence])
        head, past = (0, self._num_heads) if heads is None else _pair("heads", heads, self._num_heads)
        self._check_order(sequence, lo)
        for s, a, b, c, d in self._runs:
            if s == sequence and a < hi and lo < b and c < past and head < d:
                raise GraphError(
                    f"{self._word} tokens {max(a, lo)}:{min(b, hi)} of sequence {s} have an owner already; allowed: one"
                )
        self._runs.append((sequence, lo, hi, head, past))
        first = len(self._rows)
        for position in range(lo, hi, self._tile):
            rows = min(self._tile, hi - position)
            row = {"sequence": sequence, "position": position, "rows": rows, "rank": rank}
            self._rows.append(row | {"head": head, "num_heads": past - head})
        return range(first, len(self._rows))

    def _check_order(self, sequence: int, lo: int) -> None:
        if not self._runs:
            return
        last, _, end, *_ = self._runs[-1]
        if sequence < last:
            raise GraphError(f"sequence is {sequence}; allowed: {last} or more, {self._word} tiles go by sequence")
        if self._word == "kv" and sequence == last and lo < end:
            raise GraphError(f"tokens start at {lo}; allowed: {end} or more, kv tiles of a sequence go by token")

    def table(self) -> TileTable:
        """The finished table; slots in tile order."""
        names = ("sequence", "position", "rows", "rank", "head", "num_heads")
        columns = {name: np.array([row[name] for row in self._rows], np.int64) for name in names}
        return TileTable.make(**columns)


def _index(name: str, value: Any, last: int) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or not 0 <= operator.index(value) <= last:
        raise GraphError(f"{name} is {value!r}; allowed: " + (f"0 to {last}" if last >= 0 else "none, there are none"))
    return operator.index(value)


def _pair(name: str, value: Any, limit: int) -> tuple[int, int]:
    """(lo, hi) of a pair or a range, with 0 <= lo < hi <= limit."""
    if isinstance(value, range) and value.step == 1:
        value = (value.start, value.stop)
    ok = isinstance(value, tuple) and len(value) == 2 and all(type(n) is not bool for n in value)
    if not ok or not all(isinstance(n, SupportsIndex) for n in value) or not 0 <= value[0] < value[1] <= limit:
        raise GraphError(f"{name} is {value!r}; allowed: (first, past last) within 0 to {limit}")
    return operator.index(value[0]), operator.index(value[1])
