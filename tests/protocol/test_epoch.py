"""Epoch: all CTAs of a launch see the same one, the next launch sees the next one, and old tickets count as 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.protocol.documented import documented_states
from tests.protocol.explorer import Model, Read, check, explore
from tests.protocol.memory import Memory, ReleaseAcquire, Sequential, add, fence, load, store, update, wait
from tests.protocol.words import plus, take_ticket

BUGS = {
    "the first out advances": "epoch 2 in launch 1",
    "the epoch is read late": "epoch 2 in launch 1",
    "exits are not reset": "an epoch is missing",
    "tickets go on counting": "ticket 2 of 2",
}


def cta(launch: int, grid: int, launches: int, bug: str) -> Any:
    # The stream: a launch starts when all CTAs of the one before have left, and sees what they stored.
    yield wait("left", lambda n: n >= (launch - 1) * grid)
    epoch = (yield load("epoch")) if bug != "the epoch is read late" else launch
    if bug == "tickets go on counting":
        ticket = (yield update("add 1 to", "tickets", plus(1)))[1]
    else:
        ticket = yield from take_ticket("tickets", epoch)
    check(ticket < grid, f"ticket {ticket} of {grid}")
    yield fence()
    exits = yield add("exits", 1)
    if bug == "the epoch is read late":
        epoch = yield load("epoch")
    check(epoch == launch, f"epoch {epoch} in launch {launch}")
    if exits == (0 if bug == "the first out advances" else grid - 1):
        if bug != "exits are not reset":
            yield store("exits", 0)
        yield store("epoch", epoch + 1)
    yield add("left", 1, "acq_rel")
    if launch < launches:
        return cta, launch + 1, grid, launches, bug
    return None


def epochs(grid: int, launches: int, bug: str = "", memory: type[Memory] = Sequential) -> Model:
    def at_end(read: Read) -> None:
        check(read("epoch") == launches + 1, "an epoch is missing")

    return Model(
        words={"epoch": 1, "exits": 0, "tickets": (0, 0), "left": 0},
        programs={f"CTA {i}": (cta, 1, grid, launches, bug) for i in range(grid)},
        memory=memory,
        at_end=at_end,
    )


@pytest.mark.parametrize(("sizes", "model"), [
    ("2 CTAs, 3 launches", lambda: epochs(2, 3)),
    ("3 CTAs, 3 launches", lambda: epochs(3, 3)),
    ("2 CTAs, 2 launches, release-acquire", lambda: epochs(2, 2, memory=ReleaseAcquire)),
])  # fmt: skip
def test_every_launch_has_its_epoch(sizes: str, model: Callable[[], Model]) -> None:
    outcome = explore(model())
    assert outcome.fault is None, outcome
    assert outcome.states == documented_states("epoch", sizes)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    outcome = explore(epochs(2, 2, bug))
    assert outcome.fault == BUGS[bug], outcome
