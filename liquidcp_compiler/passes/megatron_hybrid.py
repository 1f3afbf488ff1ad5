"""Placement ``megatron-hybrid``: what Megatron-LM's hybrid context parallelism does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.graph import AuthoredGraph, PlacedGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.passes.base import Pass, PassContext
from liquidcp_compiler.passes.placement import (
    Placement,
    Placer,
    SequencePlace,
    build_placed,
    check_lengths,
    check_power_of_two,
    set_whole_numbers,
)

#: Loads within this part of the largest count as balanced.
SLACK = 0.05
#: A bucket may hold this much more than its share of the work.
BUCKET_LIMIT = 1.1


@dataclass(frozen=True)
class MegatronHybrid(Placer, Pass[AuthoredGraph, PlacedGraph]):
    """Degrees from a target of tokens per rank, groups balanced by squared length, in rounds (paper appendix B.1).

    before:  24K, 24K, 14K and 2K tokens on four ranks
    after:   round 0: both 24K over ranks 0 to 3; round 1: 14K over ranks 0 and 1, 2K over ranks 2 and 3

    Follows ``BalancedCPScheduler`` of Megatron-LM at commit 368fa88, which the paper cites. In Megatron all ranks meet
    after each round; here a plan holds all rounds, since its kernel needs no such barrier. A rank's loads are sums over
    rounds.

    Fields:
        target_tokens: Megatron's ``max_seqlen_per_dp_cp_rank``, which has no default there. 8,192 is what the paper's
            figure 7 uses. It is a target: a rank may get more in all.
        tile: tokens of a tile.

    Raises InvalidField for a number of ranks that is no power of two, and for a sequence longer than ``target_tokens``
    times the ranks (its degree is not capped; Megatron fails on it too).
    """

    name: ClassVar[str] = "megatron-hybrid"
    target_tokens: int = 8192
    tile: int = 128

    def __post_init__(self) -> None:
        set_whole_numbers(self, 1, "target_tokens", "tile")

    def place(self, lengths: IntArray | list[int], world: int) -> Placement:
        """The placement of a batch; empty sequences get no rank and round 0."""
        checked = check_lengths(lengths).tolist()
        world = check_power_of_two(world, self.name)
        items = [self._item(i, length, world) for i, length in enumerate(checked) if length]
        left = sorted(items, key=lambda item: -item.length)
        places = [SequencePlace(length=length, ranks=()) for length in checked]
        number = 0
        while left:
            groups, left = _make_round(left, world)
            first = 0
            for group in groups:
                ranks = tuple(range(first, first + group.size))
                for item in group.items:
                    places[item.index] = SequencePlace(length=item.length, ranks=ranks, round=number)
                first += group.size
            number += 1
        return Placement(scheme=self.name, world=world, tile=self.tile, sequences=tuple(places))

    def apply(self, graph: AuthoredGraph, context: PassContext) -> PlacedGraph:
        return build_placed(graph, context, self)

    def _item(self, index: int, length: int, world: int) -> _Item:
        """A sequence with the least power of two of ranks that keeps each within the target."""
        degree = 1 << (-(-length // self.target_tokens) - 1).bit_length()
        if degree > world:
            most = self.target_tokens * world
            hint = f"Raise target_tokens to at least {-(-length // world)}"
            raise InvalidField(f"lengths[{index}]", length, f"at most {most} = target_tokens x ranks", hint)
        return _Item(index=index, length=length, degree=degree)


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A sequence with the degree it asks for."""

    index: int
    length: int
    degree: int

    @property
    def work(self) -> float:
        """Work of one rank: no causal half, no term for tokens."""
        return self.length * self.length / self.degree


@dataclass
class _Group:
    """Ranks that share their sequences. Groups lie side by side in the order they were made, idle ranks after them."""

    size: int
    items: list[_Item] = field(default_factory=list)
    load: float = 0.0


def _make_round(items: list[_Item], world: int) -> tuple[list[_Group], list[_Item]]:
    """One round: its groups, and the sequences left over in the order they will be tried next."""
    groups, left = _fill_round(_make_buckets(items), world)
    _trim(groups, left, world)
    _grow(groups, world)
    return groups, left


def _make_buckets(items: list[_Item]) -> list[list[_Item]]:
    """Runs of about equal work, at most about one a degree.

    The rule that keeps sequences for later buckets counts closed buckets twice; so does Megatron's.
    """
    open_buckets = len({item.degree for item in items})
    limit = BUCKET_LIMIT * (sum(item.work for item in items) / open_buckets)
    buckets: list[list[_Item]] = []
    current: list[_Item] = []
    work = 0.0
    for i, item in enumerate(items):
        if current and (work + item.work > limit or len(items) - i <= open_buckets - len(buckets)):
            buckets.append(current)
            current, work = [], 0.0
            open_buckets -= 1
        current.append(item)
        work += item.work
    return [*buckets, current]


def _fill_round(buckets: list[list[_Item]], world: int) -> tuple[list[_Group], list[_Item]]:
    """Places heads of buckets until none fits, or the loads are balanced once a smaller degree has been placed."""
    groups: list[_Group] = []
    first_degree, watch = 0, False
    while buckets:
        bucket = next((b for b in buckets if b and _fits(b[0].degree, groups, world)), None)
        if bucket is None:
            break
        item = bucket.pop(0)
        group = _choose(item.degree, groups, world)
        group.items.append(item)
        group.load += item.work
        while buckets and not buckets[0]:
            buckets.pop(0)
        first_degree = first_degree or item.degree
        watch = watch or item.degree < first_degree
        least, most = _extremes(groups, world)
        if watch and buckets and most - least <= SLACK * most:
            break
    return groups, [item for bucket in buckets for item in bucket]


def _fits(degree: int, groups: list[_Group], world: int) -> bool:
    return _idle(groups, world) >= degree or any(g.size == degree for g in groups)


def _choose(degree: int, groups: list[_Group], world: int) -> _Group:
    """The least loaded group of that size, or a new one on idle ranks where all of that size have work."""
    best = min((g for g in groups if g.size == degree), key=lambda g: g.load, default=None)
    if best is not None and (best.load <= 0 or _idle(groups, world) < degree):
        return best
    groups.append(_Group(size=degree))
    return groups[-1]


def _idle(groups: list[_Group], world: int) -> int:
    return world - sum(g.size for g in groups)


def _extremes(groups: list[_Group], world: int) -> tuple[float, float]:
    """Least and largest load of a rank; idle ranks have none."""
    loads = [g.load for g in groups] + [0.0] * (_idle(groups, world) > 0)
    return min(loads), max(loads)


def _trim(groups: list[_Group], left: list[_Item], world: int) -> None:
    """Hands sequences of the most loaded group back while that narrows the range of loads."""
    while True:
        least, most = _extremes(groups, world)
        group = max(groups, key=lambda g: g.load)
        if most - least <= SLACK * most or least == 0 or len(group.items) <= 1:
            return
        lighter = group.load - group.items[-1].work
        others = [g.load for g in groups if g is not group]
        if max([lighter, *others]) - min([lighter, *others]) >= most - least:
            return
        left.append(group.items.pop())
        group.load = lighter


def _grow(groups: list[_Group], world: int) -> None:
    """Doubles the first of the smallest groups until no rank is idle; the groups behind it move up.

    Megatron also sets the load of a grown group anew, from its first sequence alone; nothing reads it after this.
    """
    while _idle(groups, world):
        group = min(groups, key=lambda g: g.size)
        group.size = min(2 * group.size, world)
