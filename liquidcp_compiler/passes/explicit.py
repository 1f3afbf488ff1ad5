"""Placement ``explicit``: the user says who owns what."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from liquidcp_compiler.errors import InvalidField, LiquidCPError
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.problem_fields import MAX_INT32, whole_number, whole_numbers
from liquidcp_compiler.ir.tiles import contiguous_tiles
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.place_prefill import build_prefill, prefill_problem, zigzag_owner


@dataclass(frozen=True)
class SequencePlace:
    """Where one sequence lies: zigzag over ``ranks``, or tile by tile over ``tiles`` (owners in tile order)."""

    ranks: tuple[int, ...] = ()
    tiles: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explicit(Pass[AuthoredGraph, PlacedGraph]):
    """Places every sequence where the user says.

    before:  regions of sequences 0 and 1
    after:   ranks (0, 1) and (2,): sequence 0 zigzag over ranks 0 and 1, sequence 1 whole on rank 2

    Fields:
        sequences: one :class:`SequencePlace` a sequence, or a tuple of ranks (zigzag over them).
        file: instead, a JSON file ``{"format": 1, "sequences": [{"ranks": [...]} | {"tiles": [...]}, ...]}``.
        tile: tokens of a tile.

    Raises InvalidField naming the sequence when a rank does not exist, repeats, or the tiles do not add up.
    """

    name: ClassVar[str] = "explicit"
    sequences: tuple[SequencePlace | tuple[int, ...], ...] = field(default=())
    file: str = ""
    tile: int = 128

    def __post_init__(self) -> None:
        whole_number("tile", self.tile, 1, MAX_INT32)

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        problem = prefill_problem(graph, self.name)
        places = [p if isinstance(p, SequencePlace) else SequencePlace(ranks=tuple(p)) for p in self._given()]
        if len(places) != len(problem.q_lengths):
            raise InvalidField("sequences", len(places), f"one place for each of {len(problem.q_lengths)} sequences")
        for i, place in enumerate(places):
            _check_place(i, place, context.world)
        q_rank = self._owners(problem.q_lengths, places)
        kv_rank = self._owners(problem.kv_lengths_array, places)
        return build_prefill(graph, context.world, self.tile, q_rank, kv_rank, self.name)

    def _given(self) -> tuple[SequencePlace | tuple[int, ...], ...]:
        if not self.file:
            return self.sequences
        if self.sequences:
            raise InvalidField("file", self.file, "either file or sequences, not both")
        return load_places(self.file)

    def _owners(self, lengths: IntArray, places: list[SequencePlace]) -> IntArray:
        parts = [np.zeros(0, np.int64)]
        for i, place in enumerate(places):
            one = lengths[i : i + 1]
            count = int(-(-one[0] // self.tile))
            if place.tiles:
                if len(place.tiles) != count:
                    raise InvalidField(
                        f"sequences[{i}].tiles", place.tiles, f"{count} owners, one a tile of {self.tile}"
                    )
                parts.append(np.asarray(place.tiles, np.int64))
                continue
            ranks = np.asarray(place.ranks, np.int64)
            sequence, position, _ = contiguous_tiles(one, self.tile)
            group = np.full(1, len(ranks))
            owner = zigzag_owner(sequence, position // self.tile, np.full(1, count), group, np.zeros(1, np.int64))
            parts.append(ranks[owner])
        return np.concatenate(parts)


def _check_place(i: int, place: SequencePlace, world: int) -> None:
    if bool(place.ranks) == bool(place.tiles):
        raise InvalidField(f"sequences[{i}]", place, "either ranks or tiles, not empty")
    for name, owners in (("ranks", place.ranks), ("tiles", place.tiles)):
        if any(isinstance(r, bool) or not isinstance(r, int) or not 0 <= r < world for r in owners):
            raise InvalidField(f"sequences[{i}].{name}", owners, f"ranks 0 to {world - 1}")
    if len(set(place.ranks)) != len(place.ranks):
        raise InvalidField(f"sequences[{i}].ranks", place.ranks, "each rank once")


def load_places(path: str) -> tuple[SequencePlace, ...]:
    """Reads a placement file. Raises LiquidCPError if it cannot be read, InvalidField if it is not such a file."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as e:
        raise LiquidCPError(f"placement file {path} cannot be read as JSON: {e}") from e
    if not isinstance(data, dict) or data.get("format") != 1 or not isinstance(data.get("sequences"), list):
        raise InvalidField("placement", data, '{"format": 1, "sequences": [{"ranks": [...]} or {"tiles": [...]}, ...]}')
    places = []
    for i, item in enumerate(data["sequences"]):
        if not isinstance(item, dict) or set(item) not in ({"ranks"}, {"tiles"}):
            raise InvalidField(f"sequences[{i}]", item, '{"ranks": [...]} or {"tiles": [...]}')
        places.append(SequencePlace(**{k: whole_numbers(f"sequences[{i}].{k}", v) for k, v in item.items()}))
    return tuple(places)
