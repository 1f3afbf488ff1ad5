"""Abort and recover: a wait that runs out of its budget sets the rank's abort word, everybody leaves, later launches
leave at once, and after ``recover`` launches are right again.

A rank has two CTAs: one stages its tile, the other pulls the peer's. In the faulty launches any wait may run out, and
any signal may be lost; in those after ``recover`` neither happens.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.protocol.documented import documented_states
from tests.protocol.explorer import Model, Read, check, explore
from tests.protocol.memory import Op, any_of, cas, choose, load, store, update, wait

BEING_WRITTEN = "being written"
BOTH = (True, True)
ONE = (False, True)  # rank 1 pulls from rank 0; other jobs have nothing to do


@dataclass(frozen=True, kw_only=True)
class World:
    """Of two ranks. ``pulls[r]``: does rank r pull the other's tile? ``faulty[r]``: its launches before ``recover``."""

    pulls: tuple[bool, bool]
    faulty: tuple[int, int]
    clean: int
    bug: str = ""


@dataclass(frozen=True)
class Launch:
    world: World
    rank: int
    number: int  # 1, 2, ... of this rank's process

    @property
    def is_faulty(self) -> bool:
        return self.number <= self.world.faulty[self.rank]

    @property
    def is_last(self) -> bool:
        return self.number == self.world.faulty[self.rank] + self.world.clean

    def wait(self, word: str, epoch: int) -> Generator[Op, Any, bool]:
        """Until ``word`` reaches ``epoch``; False: the launch is given up."""
        ways = [wait(word, lambda value: value >= epoch)]
        ways.append(wait(f"abort[{self.rank}]", lambda is_set: is_set))
        if self.is_faulty and self.world.bug != "waits have no budget":
            ways.append(cas(f"abort[{self.rank}]", False, True))
        which, _ = yield any_of(*ways)
        return which == 0

    def send(self, word: str, epoch: int) -> Generator[Op, Any, None]:
        sent = store(word, epoch, "release")
        yield any_of(sent, choose("lost")) if self.is_faulty else sent


def enter(launch: Launch, job: Any) -> Any:
    rank = launch.rank
    epoch, _, _ = yield wait(f"launches[{rank}]", lambda launches: launches[1] >= 2 * (launch.number - 1))
    if launch.number == launch.world.faulty[rank] + 1:
        yield wait("recovered", lambda is_set: is_set)
        epoch, _, _ = yield load(f"launches[{rank}]")
    if (yield load(f"abort[{rank}]")):
        return leave, launch, job, False
    return job, launch, epoch


def stage(launch: Launch, epoch: int) -> Any:
    rank, peer = launch.rank, 1 - launch.rank
    if not launch.world.pulls[peer]:
        return leave, launch, stage, True
    going = epoch <= 2 or (yield from launch.wait(f"done[{rank}][{peer}]", epoch - 2))
    if going:
        yield store(f"slot[{rank}][{epoch % 2}]", BEING_WRITTEN)
        yield store(f"slot[{rank}][{epoch % 2}]", epoch)
        yield from launch.send(f"ready[{rank}]", epoch)
    return leave, launch, stage, going


def pull(launch: Launch, epoch: int) -> Any:
    rank, peer = launch.rank, 1 - launch.rank
    if not launch.world.pulls[rank]:
        return leave, launch, pull, True
    going = yield from launch.wait(f"ready[{peer}]", epoch)
    if going:
        for _ in range(2):
            seen = yield load(f"slot[{peer}][{epoch % 2}]")
            check(seen == epoch, f"rank {rank} reads {seen} in epoch {epoch}")
        yield from launch.send(f"done[{peer}][{rank}]", epoch)
    return leave, launch, pull, going


def leave(launch: Launch, job: Any, ended: bool) -> Any:
    """In one step; the model of the epoch has them all."""
    counts = ended and not launch.is_faulty
    yield update(
        "leave", f"launches[{launch.rank}]", lambda old: (old[0] + old[1] % 2, old[1] + 1, old[2] + counts), "acq_rel"
    )
    if launch.is_last:
        return None
    return enter, replace(launch, number=launch.number + 1), job


def recover(world: World) -> Any:
    """The hosts, when nothing runs. All ranks go on with the latest epoch word, which no rank has used."""
    epochs = []
    for rank in range(2):
        launches = yield wait(f"launches[{rank}]", lambda launches, rank=rank: launches[1] == 2 * world.faulty[rank])
        epochs.append(launches[0])
    for rank in range(2):
        epoch = epochs[rank] if world.bug == "recover leaves each rank its epoch" else max(epochs)
        yield store(f"launches[{rank}]", (epoch, 2 * world.faulty[rank], 0))
        if world.bug != "recover leaves DONE":
            done = epoch if world.bug == "recover sets DONE to the next epoch" else epoch - 1
            yield store(f"done[{rank}][{1 - rank}]", done)
        if world.bug != "recover leaves the abort word":
            yield store(f"abort[{rank}]", False)
    yield store("recovered", True, "release")


def abort(world: World) -> Model:
    """Of ``launches[rank]``: the epoch, CTAs that left so far, and those of clean launches that got to the end."""
    words: dict[str, Any] = {"recovered": False}
    for rank in range(2):
        words |= {
            f"launches[{rank}]": (1, 0, 0),
            f"abort[{rank}]": False,
            f"ready[{rank}]": 0,
            f"done[{rank}][{1 - rank}]": 0,
        }
        words |= {f"slot[{rank}][{parity}]": "" for parity in range(2)}

    def at_end(read: Read) -> None:
        for rank in range(2):
            ended = read(f"launches[{rank}]")[2]
            check(ended == 2 * world.clean, f"rank {rank}: {ended} of {2 * world.clean} CTAs got to the end")

    programs = {
        f"rank {rank} {job.__name__}": (enter, Launch(world, rank, 1), job)
        for rank in range(2)
        for job in (stage, pull)
    }
    return Model(words=words, programs=programs | {"hosts": (recover, world)}, at_end=at_end)


SIZES = {
    "both pull, 1 and 1 faulty launches, 3 clean": World(pulls=BOTH, faulty=(1, 1), clean=3),
    "both pull, 3 and 1 faulty launches, 1 clean": World(pulls=BOTH, faulty=(3, 1), clean=1),
    "1 pulls, 1 and 1 faulty launches, 3 clean": World(pulls=ONE, faulty=(1, 1), clean=3),
    "1 pulls, 2 and 2 faulty launches, 3 clean": World(pulls=ONE, faulty=(2, 2), clean=3),
    "1 pulls, 3 and 1 faulty launches, 2 clean": World(pulls=ONE, faulty=(3, 1), clean=2),
    "1 pulls, 1 and 3 faulty launches, 2 clean": World(pulls=ONE, faulty=(1, 3), clean=2),
}
BUGS = {
    "waits have no budget": ((1, 1), 1, "deadlock: "),
    "recover leaves DONE": ((2, 2), 1, "deadlock: wait for done[0][1]"),
    "recover sets DONE to the next epoch": ((1, 1), 3, "rank 1 reads being written in epoch 2"),
    "recover leaves each rank its epoch": ((3, 1), 1, "rank 1 reads being written in epoch 2"),
    "recover leaves the abort word": ((2, 2), 1, "0 of 2 CTAs got to the end"),
}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_nobody_is_stuck_and_launches_after_recover_are_right(sizes: str) -> None:
    outcome = explore(abort(SIZES[sizes]))
    assert outcome.fault is None, outcome
    assert outcome.states == documented_states("abort", sizes)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    faulty, clean, fault = BUGS[bug]
    outcome = explore(abort(World(pulls=ONE, faulty=faulty, clean=clean, bug=bug)))
    assert fault in str(outcome.fault), outcome
