"""Batches of a token budget from a distribution of document lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.workloads.datasets import dataset as find_dataset
from liquidcp_compiler.workloads.lengths import LengthSampler


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """How documents become sequences of a batch. The paper's splits need multiples of 256 x degree; how its batches
    were rounded it does not say, so this is ours.

    Fields:
        multiple: every document is rounded to the nearest multiple, and up to one at least. 1 keeps lengths.
        long_from, long_multiple: documents of at least ``long_from`` tokens are rounded to ``long_multiple`` instead,
            so that they can be divided over eight ranks.
        last: ``cut`` shortens the last document so that the batch has exactly the budget (where ``multiple`` divides
            it; else a little less); the piece is a multiple of ``multiple`` only. ``drop`` leaves that document out.
    """

    multiple: int = 256
    long_from: int = 8192
    long_multiple: int = 2048
    last: Literal["cut", "drop"] = "cut"

    def __post_init__(self) -> None:
        for name in ("multiple", "long_from", "long_multiple"):
            if getattr(self, name) < 1:
                raise InvalidField(name, getattr(self, name), "tokens >= 1")
        if self.last not in ("cut", "drop"):
            raise InvalidField("last", self.last, "cut, drop")

    def round(self, length: int) -> int:
        """A document's length as a sequence's."""
        unit = self.long_multiple if length >= self.long_from else self.multiple
        return max(unit, (length + unit // 2) // unit * unit)


def sample_batch(
    dataset: str | LengthSampler,
    token_budget: int,
    seed: int | np.random.Generator,
    rounding: Rounding = Rounding(),  # noqa: B008 (frozen)
) -> list[int]:
    """Lengths of one batch: documents drawn independently until the budget is full.

    Args:
        dataset: ``arxiv``, ``freelaw``, ``github``, ``pile-cc`` or ``prolong`` (their spreads are ours, see
            :mod:`liquidcp_compiler.workloads.datasets`), or a sampler.
        token_budget: tokens of the batch.
        seed: a seed gives the same batch again; a generator goes on from its state.

    Raises InvalidField for an unknown name, a budget below ``rounding.multiple``, or a seed below 0.
    """
    if isinstance(token_budget, bool) or not isinstance(token_budget, int) or token_budget < rounding.multiple:
        raise InvalidField("token_budget", token_budget, f"whole numbers of tokens >= {rounding.multiple}")
    if not isinstance(seed, np.random.Generator) and (not isinstance(seed, int) or seed < 0):
        raise InvalidField("seed", seed, "a whole number >= 0, or a numpy Generator")
    sampler = find_dataset(dataset, token_budget) if isinstance(dataset, str) else dataset
    batch, left = [], token_budget
    for document in sampler.documents(np.random.default_rng(seed)):
        length = rounding.round(document)
        if length >= left:
            # The first document is kept even when it must be cut: a batch is never empty.
            keep = rounding.last == "cut" or length == left or not batch
            last = left // rounding.multiple * rounding.multiple if keep else 0
            return [*batch, last] if last else batch
        batch.append(length)
        left -= length
    raise AssertionError("samplers do not end")
