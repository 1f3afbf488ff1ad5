"""Distributions of document lengths, as endless streams of tokens per document."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem_fields import whole_number

#: Documents drawn at once.
BLOCK = 256


class LengthSampler(ABC):
    """Draws document lengths. Subclasses are frozen dataclasses."""

    @abstractmethod
    def documents(self, rng: np.random.Generator) -> Iterator[int]:
        """Lengths >= 1 in tokens, without end; the same ones for a generator in the same state."""


@dataclass(frozen=True, kw_only=True)
class LogNormal(LengthSampler):
    """Log-normal lengths of a given mean.

    Fields: ``mean`` in tokens (mu = ln mean - sigma^2 / 2); ``sigma``, the spread of the logarithm; ``least`` and
    ``most``: shorter and longer draws are clipped.
    """

    mean: float
    sigma: float
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if not (self.mean >= 1 and math.isfinite(self.mean)):
            raise InvalidField("mean", self.mean, "tokens >= 1")
        if not 0 <= self.sigma < math.inf:
            raise InvalidField("sigma", self.sigma, "a number >= 0")
        if self.least < 1:
            raise InvalidField("least", self.least, "tokens >= 1")
        if self.most is not None and self.most < self.least:
            raise InvalidField("most", self.most, f"None, or tokens >= least = {self.least}")

    def documents(self, rng: np.random.Generator) -> Iterator[int]:
        mu = math.log(self.mean) - self.sigma**2 / 2
        while True:
            drawn = np.rint(rng.lognormal(mu, self.sigma, BLOCK))
            yield from np.clip(drawn, self.least, self.most).astype(np.int64).tolist()


@dataclass(frozen=True, kw_only=True)
class Packed(LengthSampler):
    """Units of fixed size, as long-context training mixes have them: one long document, or a pack of shorter ones.

    Fields: ``long``: (length, probability) of a unit that is one document; otherwise a pack of ``pack`` tokens is
    filled from ``fill``, its last document cut to fit.
    """

    long: tuple[tuple[int, float], ...]
    fill: LengthSampler
    pack: int = 65536

    def __post_init__(self) -> None:
        if any(length < 1 or not p >= 0 for length, p in self.long) or sum(p for _, p in self.long) > 1 + 1e-9:
            raise InvalidField("long", self.long, "(tokens >= 1, probability) pairs of at most 1 in all")
        if self.pack < 1:
            raise InvalidField("pack", self.pack, "tokens >= 1")

    def documents(self, rng: np.random.Generator) -> Iterator[int]:
        edges = np.cumsum([p for _, p in self.long])
        fill = self.fill.documents(rng)
        while True:
            unit = int(np.searchsorted(edges, rng.random(), side="right"))
            if unit < len(self.long):
                yield self.long[unit][0]
                continue
            left = self.pack
            while left:
                length = min(next(fill), left)
                left -= length
                yield length


@dataclass(frozen=True, kw_only=True, eq=False)
class Histogram(LengthSampler):
    """Bins of lengths; log-uniform within a bin, which is our choice.

    Fields: ``low``, ``high``: int64 [bins], the lengths of a bin run from low to high - 1; ``weight``: float64 [bins],
    any scale; ``most``: longer draws are clipped.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    weight: NDArray[np.float64]
    most: int | None = None

    def __post_init__(self) -> None:
        for i, (lo, hi, w) in enumerate(zip(self.low, self.high, self.weight, strict=True)):
            if not (0 <= lo < hi and hi > 1 and 0 <= w < math.inf):
                raise InvalidField(f"bins[{i}]", (int(lo), int(hi), float(w)), "0 <= low < high, 1 < high, weight >= 0")
        if not self.weight.sum() > 0:
            raise InvalidField("weight", self.weight.tolist(), "at least one bin of weight > 0")
        if self.most is not None:
            whole_number("most", self.most, 1)

    def documents(self, rng: np.random.Generator) -> Iterator[int]:
        share = self.weight / self.weight.sum()
        low, high = np.log(np.maximum(self.low, 1)), np.log(self.high)
        while True:
            chosen = rng.choice(len(share), BLOCK, p=share)
            drawn = np.exp(rng.uniform(low[chosen], high[chosen])).astype(np.int64)
            # exp(log(x)) may land just outside its bin.
            inside = np.clip(drawn, np.maximum(self.low[chosen], 1), self.high[chosen] - 1)
            yield from np.minimum(inside, inside if self.most is None else self.most).tolist()


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured(LengthSampler):
    """Draws from a list of lengths, with replacement. Field ``lengths``: int64 [documents], each >= 1; ``most``."""

    lengths: NDArray[np.int64]
    most: int | None = field(default=None)

    def __post_init__(self) -> None:
        if not len(self.lengths) or self.lengths.min() < 1:
            raise InvalidField("lengths", self.lengths, "at least one length, each >= 1")
        if self.most is not None:
            whole_number("most", self.most, 1)

    def documents(self, rng: np.random.Generator) -> Iterator[int]:
        while True:
            drawn = self.lengths[rng.integers(len(self.lengths), size=BLOCK)]
            yield from np.minimum(drawn, drawn if self.most is None else self.most).tolist()
