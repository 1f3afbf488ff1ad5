"""Placements of prefill batches: which ranks share each sequence.

A placement is made from lengths alone, in a data loader, long before any graph. It becomes a table tile → (rank, slot)
when a graph is placed with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.problem_fields import MAX_INT32, check_total, whole_number, whole_numbers
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.place_prefill import build_prefill, prefill_problem, zigzag_owner

MAX_FLOAT = float(np.finfo(np.float64).max)


@dataclass(frozen=True, kw_only=True)
class SequencePlace:
    """Where one sequence lies: zigzag over ``ranks``.

    Fields: ``length`` in tokens; ``ranks`` in zigzag order (empty for an empty sequence); ``round``: the scheme's
    round, 0 where it has none.
    """

    length: int
    ranks: tuple[int, ...]
    round: int = 0

    @property
    def degree(self) -> int:
        """Ranks that share the sequence."""
        return len(self.ranks)

    @property
    def start(self) -> int | None:
        """First rank of an aligned run of consecutive ranks, else None."""
        first, g = (self.ranks[0], self.degree) if self.ranks else (0, 0)
        aligned = g > 0 and first % g == 0 and self.ranks == tuple(range(first, first + g))
        return first if aligned else None

    def to_json(self) -> dict[str, object]:
        """``ranks``, ``degree``, ``round``, and ``start`` where aligned."""
        out: dict[str, object] = {"length": self.length, "degree": self.degree, "ranks": list(self.ranks)}
        if self.start is not None:
            out["start"] = self.start
        return out | {"round": self.round}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Places of all sequences of a batch, in the batch's order.

    Fields: ``scheme`` (name of what made it), ``world``, ``tile`` (tokens of a tile), ``sequences``; ``tile_ranks``,
    for schemes that place tiles one by one: the rank of every tile, sequence by sequence. Then ``ranks`` of a sequence
    are those that hold a part of it, ascending.
    """

    scheme: str
    world: int
    tile: int
    sequences: tuple[SequencePlace, ...]
    tile_ranks: tuple[int, ...] | None = None

    @property
    def lengths(self) -> IntArray:
        """int64 [num_sequences]."""
        return np.array([s.length for s in self.sequences], np.int64)

    @property
    def degrees(self) -> IntArray:
        """int64 [num_sequences]."""
        return np.array([s.degree for s in self.sequences], np.int64)

    def tile_owners(self, lengths: IntArray) -> IntArray:
        """Rank of every tile of sequences of these lengths (queries, or keys), sequence by sequence.

        With ``tile_ranks`` and lengths other than the placement's, tile j of n goes where tile j * m // n of the m
        placed ones lies; a sequence that was placed empty goes to rank 0.
        """
        counts = -(-lengths // self.tile)
        sequence = np.repeat(np.arange(len(lengths)), counts)
        index = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
        if self.tile_ranks is not None:
            return self._table_owners(sequence, index, counts)
        degrees = np.maximum(self.degrees, 1)
        place = zigzag_owner(sequence, index, counts, degrees, np.zeros(len(lengths), np.int64))
        table = np.zeros((len(lengths), int(degrees.max(initial=1))), np.int64)
        for i, s in enumerate(self.sequences):
            table[i, : s.degree] = s.ranks
        return table[sequence, place]

    def _table_owners(self, sequence: IntArray, index: IntArray, counts: IntArray) -> IntArray:
        placed = -(-self.lengths // self.tile)
        first = np.cumsum(placed) - placed
        ranks = np.array([*(self.tile_ranks or ()), 0], np.int64)
        at = first[sequence] + index * placed[sequence] // counts[sequence]
        return ranks[np.where(placed[sequence] > 0, at, -1)]


class Placer(ABC):
    """Makes placements from lengths. Subclasses are frozen dataclasses whose fields are their options."""

    name: ClassVar[str]

    @abstractmethod
    def place(self, lengths: IntArray | list[int], world: int) -> Placement:
        """The placement of a batch. Raises InvalidField naming the sequence."""


def build_placed(graph: AuthoredGraph, context: PassContext, placer: Placer) -> PlacedGraph:
    """The graph placed as ``placer`` places the batch's query lengths; keys follow their queries."""
    problem = prefill_problem(graph, placer.name)
    placement = placer.place(problem.q_lengths, context.world)
    q_rank = placement.tile_owners(problem.q_lengths)
    kv_rank = placement.tile_owners(problem.kv_lengths_array)
    return build_prefill(graph, context.world, placement.tile, q_rank, kv_rank, placer.name)


def check_ranks(world: object) -> int:
    """A number of ranks as an int. Raises InvalidField naming ``cp_size``."""
    return whole_number("cp_size", world, 1, MAX_INT32)


def check_power_of_two(world: object, scheme: str) -> int:
    """A number of ranks as an int. Raises InvalidField for one that groups of halves cannot divide."""
    try:
        ranks = check_ranks(world)
    except InvalidField:
        ranks = 0
    if ranks < 1 or ranks & (ranks - 1):
        raise InvalidField("cp_size", world, f"a power of two for {scheme}", "zigzag-all and all-local take any world")
    return ranks


def set_whole_numbers(placer: object, minimum: int, *names: str) -> None:
    """Makes these options of a frozen dataclass plain ints. Raises InvalidField for what is no int32 >= minimum."""
    for name in names:
        object.__setattr__(placer, name, whole_number(name, getattr(placer, name), minimum, MAX_INT32))


def is_finite(value: Any) -> bool:
    """Whether an option is a finite number that a float can hold; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, float | int | np.integer | np.floating):
        return False
    return bool(abs(value) <= MAX_FLOAT)


def check_lengths(lengths, *, allow_zero: bool = True) -> NDArray[np.int64]:
    """Lengths as int64. Raises InvalidField naming the first that is not a whole number >= 0 (or > 0), or their sum."""
    checked = whole_numbers("lengths", lengths, 0 if allow_zero else 1)
    check_total("lengths", checked)
    return np.array(checked, np.int64)
