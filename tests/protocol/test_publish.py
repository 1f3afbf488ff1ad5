"""Publish: comm CTAs insert tiles in the arrival map in any order and raise the committed prefix.

Whoever reads the prefix finds below it every tile once, front ones first, and its data.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.documented import documented_states
from tests.protocol.explorer import Model, Read, check, explore
from tests.protocol.memory import Memory, ReleaseAcquire, Sequential, cas, load, raise_to, store, update, wait
from tests.protocol.words import count, plus, value_of

EPOCH = 2  # words of epoch 1 lie about


def comm(tiles: tuple[int, ...], num_front: int, bug: str) -> Any:
    ticket = yield from count("tickets", EPOCH)
    if ticket >= len(tiles):
        return None
    tile = tiles[ticket]
    yield store(f"data[{tile}]", "landed")
    if tile >= num_front and bug != "back tiles do not wait":
        yield wait("prefix", lambda word: value_of(word, EPOCH) >= num_front)
    slot = value_of((yield load("prefix", "acquire")), EPOCH)
    return insert, tile, slot, (tiles, num_front, bug)


def insert(tile: int, slot: int, rest: tuple[tuple[int, ...], int, str]) -> Any:
    tiles, _, bug = rest
    if bug == "the prefix is raised before the CAS":
        yield raise_to("prefix", (EPOCH, slot + 1), "release")
    acquires = bug != "a slot found taken is not acquired"
    check(slot < len(tiles), f"no slot for tile {tile}")
    old = yield load(f"arrivals[{slot}]", "acquire" if acquires else "relaxed")
    if value_of(old, EPOCH):
        return insert, tile, slot + 1, rest
    if (yield cas(f"arrivals[{slot}]", old, (EPOCH, tile + 1), "acq_rel" if acquires else "release")) != old:
        return insert, tile, slot + 1, rest
    if bug == "the prefix is stored":
        yield store("prefix", (EPOCH, slot + 1), "release")
    elif bug == "the prefix is loaded, then stored plus 1":
        prefix = value_of((yield load("prefix", "acquire")), EPOCH)
        yield store("prefix", (EPOCH, prefix + 1), "release")
    elif bug == "the prefix is added to":
        yield update("add 1 to", "prefix", plus(1), "release")
    elif bug == "the prefix is raised without a release":
        yield raise_to("prefix", (EPOCH, slot + 1))
    elif bug != "the prefix is raised before the CAS":
        yield raise_to("prefix", (EPOCH, slot + 1), "release")
    return comm, *rest


def compute(order: tuple[int, ...], num_tiles: int, num_front: int, bug: str) -> Any:
    """``order``: the tiles that it has found so far."""
    acquire = "relaxed" if bug == "the prefix is read without an acquire" else "acquire"
    prefix = value_of((yield wait("prefix", lambda word: value_of(word, EPOCH) > len(order), acquire)), EPOCH)
    for slot in range(len(order), prefix):
        tile = value_of((yield load(f"arrivals[{slot}]")), EPOCH) - 1
        check(tile >= 0, f"slot {slot} is empty under a prefix of {prefix}")
        check((yield load(f"data[{tile}]")) == "landed", f"data of tile {tile} is not there")
        check(tile not in order, f"tile {tile} came twice")
        check(tile < num_front or slot >= num_front, f"back tile {tile} in slot {slot}")
        order = (*order, tile)
    if prefix < num_tiles:
        return compute, order, num_tiles, num_front, bug
    return None


def publish(
    comms: int,
    tiles: tuple[int, ...],
    num_front: int,
    memory: type[Memory] = Sequential,
    bug: str = "",
    fresh: bool = False,
) -> Model:
    """``tiles``: in queue order. ``fresh``: the prefix is of this epoch from the start."""
    num_tiles = len(tiles)
    words: dict[str, Any] = {"tickets": (1, num_tiles), "prefix": (EPOCH, 0) if fresh else (1, num_tiles)}
    words |= {f"arrivals[{slot}]": (1, slot + 1) for slot in range(num_tiles)}
    words |= {f"data[{tile}]": "of epoch 1" for tile in tiles}

    def invariant(read: Read) -> None:
        prefix = value_of(read("prefix"), EPOCH)
        for slot in range(prefix):
            check(value_of(read(f"arrivals[{slot}]"), EPOCH) > 0, f"slot {slot} is empty under a prefix of {prefix}")

    def at_end(read: Read) -> None:
        check(read("prefix") == (EPOCH, num_tiles), f"the prefix is {read('prefix')} at the end")

    programs: dict[str, tuple[Any, ...]] = {f"comm CTA {i}": (comm, tiles, num_front, bug) for i in range(comms)}
    programs["compute CTA"] = compute, (), num_tiles, num_front, bug
    return Model(words=words, programs=programs, memory=memory, invariant=invariant, at_end=at_end)


SIZES = {
    "2 comm CTAs, 4 tiles, 2 front": lambda: publish(2, (0, 1, 2, 3), 2),
    "3 comm CTAs, 3 tiles, 2 front": lambda: publish(3, (0, 1, 2), 2),
    "3 comm CTAs, 4 tiles, all front": lambda: publish(3, (0, 1, 2, 3), 4),
    "2 comm CTAs, 3 tiles, 2 front, release-acquire": lambda: publish(2, (0, 1, 2), 2, ReleaseAcquire),
    "3 comm CTAs, 3 tiles, all front, release-acquire": lambda: publish(3, (0, 1, 2), 3, ReleaseAcquire),
}
SLOW = ("3 comm CTAs, 4 tiles, all front", "3 comm CTAs, 3 tiles, all front, release-acquire")
BUGS = {
    "back tiles do not wait": "back tile 2 in slot 1",
    "the prefix is raised before the CAS": "slot 0 is empty under a prefix of 1",
    "the prefix is stored": "deadlock: wait for prefix acquire",
    "the prefix is loaded, then stored plus 1": "deadlock: wait for prefix acquire",
    "the prefix is added to": "deadlock: wait for prefix acquire",
}
ORDER_BUGS = {
    "a slot found taken is not acquired": "data of tile 0 is not there",
    "the prefix is raised without a release": "slot 0 is empty under a prefix of 1",
    "the prefix is read without an acquire": "slot 0 is empty under a prefix of 1",
}


@pytest.mark.parametrize("sizes", [pytest.param(s, marks=pytest.mark.slow) if s in SLOW else s for s in SIZES])
def test_every_slot_below_the_prefix_is_good(sizes: str) -> None:
    outcome = explore(SIZES[sizes]())
    assert outcome.fault is None, outcome
    assert outcome.states == documented_states("publish", sizes)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    outcome = explore(publish(2, (0, 1, 2), 2, bug=bug))
    assert outcome.fault == BUGS[bug], outcome


@pytest.mark.parametrize("bug", ORDER_BUGS)
def test_a_missing_release_or_acquire_is_found(bug: str) -> None:
    """And only where memory is not sequentially consistent."""
    outcome = explore(publish(2, (0, 1), 2, ReleaseAcquire, bug))
    assert outcome.fault == ORDER_BUGS[bug], outcome
    assert explore(publish(2, (0, 1), 2, Sequential, bug)).fault is None


def test_the_max_is_there_to_lift_the_prefix_into_the_epoch() -> None:
    """Slots are taken in order, so that as many adds as insertions so far never count a slot that is empty: in a word
    of this epoch an atomic add would do as well."""
    outcome = explore(publish(2, (0, 1, 2), 2, ReleaseAcquire, "the prefix is added to", fresh=True))
    assert outcome.fault is None, outcome


def test_a_queue_must_not_hold_back_tiles_before_front_ones() -> None:
    outcome = explore(publish(2, (2, 3, 0, 1), 2))
    assert outcome.fault == "deadlock: wait for prefix acquire", outcome
