"""How much device memory a plan needs, section by section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from weakref import WeakKeyDictionary

import numpy as np

from liquidcp_compiler.ir.launch import MERGE_WORDS, NUM_TICKETS
from liquidcp_compiler.ir.plan import Plan

#: Every section and every rank's share of it begins on such a border.
ALIGNMENT = 256


@dataclass(frozen=True, kw_only=True)
class MemorySizes:
    """Sizes of one rank's sections, the largest over the ranks: every rank gets the same.

    Fields: ``blob`` bytes of the packed plan; protocol words: ``signals``, ``prefixes``, ``arrivals``, ``claims``,
    ``merged``, ``tickets``; ``kv`` bytes of pulled keys (as many for values); ``state_out``, ``state_lse`` fp32 values
    of running states; ``stage`` bytes of staged keys in one slot (as many for values, and for the other slot).
    """

    blob: int = 0
    signals: int = 0
    prefixes: int = 0
    arrivals: int = 0
    claims: int = 0
    merged: int = 0
    tickets: int = NUM_TICKETS
    kv: int = 0
    state_out: int = 0
    state_lse: int = 0
    stage: int = 0

    @staticmethod
    def of(plan: Plan) -> MemorySizes:
        """What ``plan`` needs."""
        known = _OF_PLANS.get(plan)
        if known is None:
            known = _OF_PLANS[plan] = MemorySizes._count(plan)
        return known

    @staticmethod
    def _count(plan: Plan) -> MemorySizes:
        p, headers = plan.problem, plan.headers
        row_bytes = p.num_heads_kv * p.head_dim * p.dtype.bytes
        slots = _most(headers["num_local_q_tiles"]) * p.num_heads_q
        staged = _most(np.where(headers["num_staged_list"] > 0, headers["num_local_kv_tokens"], 0))
        return MemorySizes(
            blob=max((plan.blob_bytes(r) for r in range(plan.world)), default=0),
            signals=_most(headers["num_signals"]),
            prefixes=_most(headers["num_sequences"]),
            arrivals=_most(headers["num_arrivals"]),
            claims=_most(headers["num_rows"]) * _most(headers["units_per_row"]),
            merged=slots * MERGE_WORDS,
            kv=_most(headers["num_pulled_kv_tokens"]) * row_bytes,
            state_out=slots * plan.spec.block_q * p.head_dim,
            state_lse=slots * plan.spec.block_q,
            stage=staged * row_bytes,
        )

    @staticmethod
    def largest(sizes: Iterable[MemorySizes]) -> MemorySizes:
        """Sizes that hold each of ``sizes``."""
        every = list(sizes)
        return MemorySizes(**{f.name: max((getattr(s, f.name) for s in every), default=0) for f in fields(MemorySizes)})

    def fits(self, room: MemorySizes) -> bool:
        """Is every section at most as large as in ``room``?"""
        return all(getattr(self, f.name) <= getattr(room, f.name) for f in fields(self))

    def beyond(self, room: MemorySizes) -> tuple[str, int, int]:
        """The first section that does not fit, what it needs, and what there is."""
        for f in fields(self):
            need, have = getattr(self, f.name), getattr(room, f.name)
            if need > have:
                return f.name, need, have
        raise ValueError("everything fits")

    @property
    def words(self) -> int:
        """Protocol words."""
        return self.signals + self.prefixes + self.arrivals + self.claims + self.merged + self.tickets


_OF_PLANS: WeakKeyDictionary[Plan, MemorySizes] = WeakKeyDictionary()


def _most(column: np.ndarray) -> int:
    return int(column.max(initial=0))


def aligned(size: int) -> int:
    """``size`` rounded up to the border of a section."""
    return -(-size // ALIGNMENT) * ALIGNMENT
