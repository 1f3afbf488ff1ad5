"""Protocol words of the device, u64 = epoch << 32 | value, as pairs; and tickets."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from tests.protocol.memory import Op, raise_to, update

Word = tuple[int, int]


def value_of(word: Word, epoch: int) -> int:
    """A word of an older launch counts as 0."""
    return word[1] if word[0] == epoch else 0


def plus(n: int) -> Callable[[Word], Word]:
    return lambda word: (word[0], word[1] + n)


def take_ticket(word: str, epoch: int) -> Generator[Op, Any, int]:
    """0, 1, 2, ... in each launch. The max lifts the word into the epoch."""
    yield raise_to(word, (epoch, 0))
    return (yield update("add 1 to", word, plus(1)))[1]


def count(word: str, epoch: int, order: str = "relaxed") -> Generator[Op, Any, int]:
    """``take_ticket`` in one step, for models of something else."""
    old = yield update("count in", word, lambda old: (epoch, value_of(old, epoch) + 1), order)
    return value_of(old, epoch)
