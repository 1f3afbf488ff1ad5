"""Whether fewer ranks would finish a batch sooner, by a model of attention and communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.passes.placement import Placer, check_lengths, check_ranks, is_finite
from liquidcp_compiler.placement_report import AttentionShape, PlacementReport
from liquidcp_compiler.report import align, counted


@dataclass(frozen=True, kw_only=True)
class PlacementCost:
    """What attention and communication of a rank take; forward only, nothing overlaps.

    A rank takes pairs x 4 x query heads x head dim / ``flops`` for attention, and bytes of keys and values received /
    ``link_bytes_per_s`` + ``link_latency_s`` for every (sequence, peer) that it receives from. That is a bound from
    above, since a fused kernel hides most of the communication of long sequences, and a rough one: use your own
    numbers.

    Fields:
        flops: operations a second that a rank reaches in attention; the default is about an H100 or H200 in bf16.
        link_bytes_per_s: what a rank receives a second, from all peers; the default is NVLink 4 as measured.
        link_latency_s: from asking a peer to the first byte.
    """

    flops: float = 600e12
    link_bytes_per_s: float = 375e9
    link_latency_s: float = 1.25e-6

    def __post_init__(self) -> None:
        for name in ("flops", "link_bytes_per_s"):
            if not (is_finite(value := getattr(self, name)) and value > 0):
                raise InvalidField(name, value, "numbers > 0")
        if not (is_finite(self.link_latency_s) and self.link_latency_s >= 0):
            raise InvalidField("link_latency_s", self.link_latency_s, "seconds >= 0")

    def seconds(self, report: PlacementReport) -> tuple[np.ndarray, np.ndarray]:
        """(attention, communication): float64 [world] seconds each."""
        attention = report.work * report.shape.pair_flops / self.flops
        received = report.received * report.shape.kv_bytes / self.link_bytes_per_s
        return attention, received + report.pulls * self.link_latency_s


@dataclass(frozen=True, kw_only=True)
class AdviceRow:
    """One number of ranks: seconds of its slowest rank, divided into ``attention_s`` and ``communication_s``."""

    world: int
    attention_s: float
    communication_s: float
    max_degree: int

    @property
    def seconds(self) -> float:
        """Attention and communication of the slowest rank."""
        return self.attention_s + self.communication_s


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What the model says of a batch: a row a number of ranks, in ascending order, the given one last."""

    placement: str
    rows: tuple[AdviceRow, ...]

    @property
    def best(self) -> AdviceRow:
        """The fastest row; of equals, the one with the fewest ranks."""
        return min(self.rows, key=lambda row: (row.seconds, row.world))

    @property
    def fewer_is_better(self) -> bool:
        """Whether fewer ranks than given take less time, or the same."""
        return self.best.world < self.rows[-1].world

    @property
    def sentence(self) -> str:
        """The advice in words."""
        best, given = self.best, self.rows[-1]
        if not self.fewer_is_better:
            return f"All {counted(given.world, 'rank')} pay: {_us(given.seconds)} is the least, by this model."
        than = f"{_us(best.seconds)} instead of {_us(given.seconds)} on {given.world}"
        if best.seconds == given.seconds:
            than = f"{_us(best.seconds)}, the same as on {given.world}"
        verb = "takes" if best.world == 1 else "take"
        return f"Fewer ranks do better: {counted(best.world, 'rank')} {verb} {than}, by this model."

    def to_text(self) -> str:
        """The table and the sentence."""
        cells = [["ranks", "attention", "communication", "in all", "largest group"]]
        for r in self.rows:
            cells.append([str(r.world), *map(_us, (r.attention_s, r.communication_s, r.seconds)), str(r.max_degree)])
        return "\n".join([*align(cells), self.sentence]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        rows = [
            {"world": r.world, "attention_s": r.attention_s, "communication_s": r.communication_s} for r in self.rows
        ]
        return {"placement": self.placement, "best": self.best.world, "sentence": self.sentence, "rows": rows}


def advise(
    lengths,
    world: int,
    placer: Placer | None = None,
    shape: AttentionShape = AttentionShape(),  # noqa: B008 (frozen)
    cost: PlacementCost = PlacementCost(),  # noqa: B008 (frozen)
) -> Advice:
    """Compares ``world`` ranks with 1, 2, 4, ... of them, each placed by ``placer`` (None: buddy-ring).

    Numbers of ranks that the placer refuses (sequences too long for them) are left out. Raises InvalidField when it
    refuses ``world``.
    """
    chosen = _default_placer() if placer is None else placer
    world, checked = check_ranks(world), check_lengths(lengths)
    rows = []
    for ranks in (1 << k for k in range(max(world - 1, 0).bit_length())):
        try:
            rows.append(_row(checked, ranks, chosen, shape, cost))
        except InvalidField:
            continue
    rows.append(_row(checked, world, chosen, shape, cost))
    return Advice(placement=chosen.name, rows=tuple(rows))


def _row(lengths, world: int, placer: Placer, shape: AttentionShape, cost: PlacementCost) -> AdviceRow:
    report = PlacementReport(placement=placer.place(lengths, world), shape=shape)
    attention, communication = cost.seconds(report)
    slowest = int(np.argmax(attention + communication))
    return AdviceRow(
        world=world,
        attention_s=float(attention[slowest]),
        communication_s=float(communication[slowest]),
        max_degree=int(report.placement.degrees.max(initial=0)),
    )


def _default_placer() -> Placer:
    from liquidcp_compiler.passes.buddy_ring import BuddyRing

    return BuddyRing()


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
