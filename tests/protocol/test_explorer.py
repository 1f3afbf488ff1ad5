"""The explorer and its two memories, on programs whose outcomes are known (litmus tests)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.explorer import Model, Read, check, explore
from tests.protocol.memory import (
    Memory,
    Op,
    ReleaseAcquire,
    Sequential,
    add,
    any_of,
    cas,
    choose,
    fence,
    load,
    store,
    wait,
)

BOTH = (Sequential, ReleaseAcquire)


def run(result: str, *ops: Op) -> Any:
    """Stores what the loads and updates among ``ops`` gave in the word ``result``."""
    seen = []
    for op in ops:
        seen.append((yield op))
    yield store(result, tuple(value for value in seen if value is not None))


def results(memory: type[Memory], *programs: tuple[Op, ...]) -> set[tuple[Any, ...]]:
    """All that programs on x, y and z, first 0, can see."""
    found = set()

    def at_end(read: Read) -> None:
        found.add(tuple(read(f"result {i}") for i in range(len(programs))))

    model = Model(
        words={"x": 0, "y": 0, "z": 0} | {f"result {i}": None for i in range(len(programs))},
        programs={f"program {i}": (run, f"result {i}", *ops) for i, ops in enumerate(programs)},
        memory=memory,
        at_end=at_end,
    )
    outcome = explore(model)
    assert outcome.fault is None, outcome
    return found


MESSAGE_PASSING = {
    "relaxed": (("relaxed", "relaxed"), True),
    "release only": (("release", "relaxed"), True),
    "acquire only": (("relaxed", "acquire"), True),
    "release and acquire": (("release", "acquire"), False),
}


@pytest.mark.parametrize("orders", MESSAGE_PASSING)
def test_message_passing(orders: str) -> None:
    (writes, reads), is_stale = MESSAGE_PASSING[orders]
    programs = (store("x", 1), store("y", 1, writes)), (load("y", reads), load("x"))
    assert results(Sequential, *programs) == {((), pair) for pair in [(0, 0), (0, 1), (1, 1)]}
    assert (((), (1, 0)) in results(ReleaseAcquire, *programs)) == is_stale


def test_message_passing_by_fences() -> None:
    writer = store("x", 1), fence(), store("y", 1)
    assert ((), (1, 0)) not in results(ReleaseAcquire, writer, (load("y"), fence(), load("x")))
    assert ((), (1, 0)) in results(ReleaseAcquire, writer, (load("y"), load("x")))
    assert ((), (1, 0)) in results(ReleaseAcquire, (fence(), *writer[::2]), (load("y"), fence(), load("x")))


@pytest.mark.parametrize(("second", "is_stale"), [(add("y", 1), False), (store("y", 2), True)])
def test_an_update_passes_a_release_on_and_a_store_does_not(second: Op, is_stale: bool) -> None:
    writer = store("x", 1), store("y", 1, "release")
    middle = wait("y", lambda y: y == 1, "relaxed"), second
    reader = wait("y", lambda y: y == 2), load("x")
    assert ((2, 0) in {found for *_, found in results(ReleaseAcquire, writer, middle, reader)}) == is_stale


def test_store_buffering() -> None:
    programs = (store("x", 1), load("y")), (store("y", 1), load("x"))
    assert ((0,), (0,)) not in results(Sequential, *programs)
    assert ((0,), (0,)) in results(ReleaseAcquire, *programs)


def test_one_word_never_goes_back() -> None:
    programs = (store("x", 1), store("x", 2)), (load("x"), load("x"))
    seen = {second for _, second in results(ReleaseAcquire, *programs)}
    assert seen == {(a, b) for a in range(3) for b in range(a, 3)}


def test_two_readers_may_disagree_about_two_words() -> None:
    programs = (store("x", 1),), (store("y", 1),), (load("x"), load("y")), (load("y"), load("x"))
    assert ((), (), (1, 0), (1, 0)) in results(ReleaseAcquire, *programs)
    assert ((), (), (1, 0), (1, 0)) not in results(Sequential, *programs)


@pytest.mark.parametrize("memory", BOTH)
def test_updates_are_atomic(memory: type[Memory]) -> None:
    assert results(memory, (add("x", 1),), (add("x", 1),)) == {((0,), (1,)), ((1,), (0,))}
    assert {a[0] == b[0] == 0 for a, b in results(memory, (cas("x", 0, 1),), (cas("x", 0, 2),))} == {False}


@pytest.mark.parametrize("memory", BOTH)
def test_choices_are_all_taken(memory: type[Memory]) -> None:
    assert results(memory, (choose("a", "b"),)) == {(("a",),), (("b",),)}
    assert results(memory, (any_of(choose("a"), wait("x", bool), load("y")),)) == {(((0, "a"),),), (((2, 0),),)}


def lock(first: str, second: str) -> Any:
    for word in (first, second):
        yield wait(word, lambda value: value == 0)
        yield store(word, 1)
    for word in (first, second):
        yield store(word, 0)


def test_a_deadlock_comes_with_a_shortest_trace() -> None:
    model = Model(words={"a": 0, "b": 0}, programs={"P": (lock, "a", "b"), "Q": (lock, "b", "a")})
    assert str(explore(model)).splitlines()[1:] == [
        "  1. P: wait for a acquire -> 0",
        "  2. Q: wait for b acquire -> 0",
        "  3. P: store 1 to a relaxed",
        "  4. Q: store 1 to b relaxed",
    ]
    assert explore(model).fault == "deadlock: wait for a acquire, wait for b acquire"


def spin() -> Any:
    return (spin,) if (yield load("x")) == 0 else None


def test_a_spin_for_ever_is_a_livelock() -> None:
    assert explore(Model(words={"x": 0}, programs={"P": (spin,)})).fault == "livelock: no way to the end"
    assert explore(Model(words={"x": 1}, programs={"P": (spin,)})).fault is None


def test_invariants_hold_in_every_state_and_checks_where_they_stand() -> None:
    def invariant(read: Read) -> None:
        check(read("x") < 2, "x is 2")

    model = Model(words={"x": 0}, programs={"P": (run, "x", add("x", 1), add("x", 1))}, invariant=invariant)
    assert explore(model).fault == "x is 2"


def test_programs_in_equal_states_are_one_state() -> None:
    """8 programs of one step: 9 states, for how many have ended, and not 2 ** 8."""
    model = Model(words={"x": 0}, programs={f"P{i}": (step,) for i in range(8)})
    assert explore(model).states == 9


def step() -> Any:
    yield add("x", 1)


def test_too_many_states_are_refused() -> None:
    with pytest.raises(RuntimeError, match="more than 5 states"):
        explore(Model(words={"x": 0}, programs={f"P{i}": (step,) for i in range(8)}, limit=5))
