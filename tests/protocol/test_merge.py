"""Merge: one word of a (query tile, head) counts merged KV tiles and is the lock of its state as well."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.documented import documented_states
from tests.protocol.explorer import Model, Read, check, explore
from tests.protocol.memory import Memory, Op, ReleaseAcquire, Sequential, cas, load, store, update
from tests.protocol.words import plus, value_of

EPOCH = 2
LOCKED = (EPOCH, 99)


def add_partial(first: int, n: int, total: int, bug: str) -> Any:
    """Tiles first .. first + n - 1 of ``total``. The state is two words, out and lse, each a list of tiles."""
    old = yield load("merged")
    if old == LOCKED:
        return add_partial, first, n, total, bug
    if bug != "no lock":
        order = "relaxed" if bug == "the lock does not acquire" else "acquire"
        if (yield cas("merged", old, LOCKED, order)) != old:
            return add_partial, first, n, total, bug
    before = value_of(old, EPOCH)
    if bug == "no lock":
        release: Op = update(f"add {n} to", "merged", lambda word: plus(n)(max(word, (EPOCH, 0))), "release")
    else:
        release = store("merged", (EPOCH, before + n), "relaxed" if bug == "the unlock does not release" else "release")
    tiles: dict[str, tuple[int, ...]] = {}
    for part in ("lse", "out"):
        state = (yield load(part)) if before or bug == "the first one reads the state as well" else ()
        tiles[part] = (*state, *range(first, first + n))
    if bug == "the count is stored before the state":
        yield release
    if before + n == total:
        yield update("write", "output", lambda written: (*written, (tiles["lse"], tiles["out"])))
    else:
        for part in ("lse", "out"):
            yield store(part, tiles[part])
    if bug != "the count is stored before the state":
        yield release
    return None


def merge(sizes: tuple[int, ...], memory: type[Memory] = Sequential, bug: str = "") -> Model:
    """One CTA a task of ``sizes`` tiles."""
    total = sum(sizes)

    def at_end(read: Read) -> None:
        check(len(read("output")) == 1, f"output is written {len(read('output'))} times")
        for tiles in read("output")[0]:
            check(sorted(tiles) == list(range(total)), f"output of tiles {tiles}")

    return Model(
        words={"merged": (1, LOCKED[1]), "lse": (-1,), "out": (-1,), "output": ()},
        programs={f"CTA {i}": (add_partial, sum(sizes[:i]), n, total, bug) for i, n in enumerate(sizes)},
        memory=memory,
        at_end=at_end,
    )


SIZES = {
    "4 CTAs, 7 tiles": lambda: merge((1, 2, 1, 3)),
    "5 CTAs, 8 tiles": lambda: merge((1, 2, 1, 3, 1)),
    "3 CTAs, 4 tiles, release-acquire": lambda: merge((1, 2, 1), ReleaseAcquire),
    "4 CTAs, 5 tiles, release-acquire": lambda: merge((1, 2, 1, 1), ReleaseAcquire),
}
BUGS = {
    "no lock": "output is written 0 times",
    "the count is stored before the state": "output of tiles (0, 3)",
    "the first one reads the state as well": "output of tiles (-1, 0, 1, 2, 3)",
}
ORDER_BUGS = {
    "the lock does not acquire": "output of tiles (-1, 3)",
    "the unlock does not release": "output of tiles (-1, 3)",
}


@pytest.mark.parametrize("sizes", SIZES)
def test_the_output_is_written_once_with_all_tiles(sizes: str) -> None:
    outcome = explore(SIZES[sizes]())
    assert outcome.fault is None, outcome
    assert outcome.states == documented_states("merge", sizes)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    outcome = explore(merge((1, 2, 1), bug=bug))
    assert outcome.fault == BUGS[bug], outcome


@pytest.mark.parametrize("bug", ORDER_BUGS)
def test_a_missing_release_or_acquire_is_found(bug: str) -> None:
    outcome = explore(merge((1, 2, 1), ReleaseAcquire, bug))
    assert outcome.fault == ORDER_BUGS[bug], outcome
    assert explore(merge((1, 2, 1), Sequential, bug)).fault is None
