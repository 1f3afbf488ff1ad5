"""Staging and DONE: ranks in processes of their own, each with two slots for its tiles, by parity of the epoch.

A copy is two stores, and a pull two loads, so that one in the middle of the other is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.protocol.documented import documented_states
from tests.protocol.explorer import Model, check, explore
from tests.protocol.memory import Memory, ReleaseAcquire, Sequential, add, load, store, wait
from tests.protocol.words import Word, count

BEING_WRITTEN = "being written"
ONE_READY = "one READY for both slots"


@dataclass(frozen=True, kw_only=True)
class World:
    """``pulls[r]``: the owners that rank r pulls every tile of; a rank that nobody pulls from has no tiles.
    ``plans[r]``: fingerprint of its plan in each epoch."""

    pulls: tuple[tuple[int, ...], ...]
    epochs: int
    tiles: int = 1
    ctas: int = 1
    plans: tuple[str, ...] = ()
    bug: str = ""

    def plan(self, rank: int, epoch: int) -> str:
        return self.plans[rank][epoch - 1] if self.plans else "="

    def num_tiles(self, rank: int) -> int:
        return self.tiles if any(rank in owners for owners in self.pulls) else 0

    def peers(self, rank: int) -> list[int]:
        return [peer for peer in range(len(self.pulls)) if peer != rank]

    def transfers(self, rank: int) -> list[tuple[int, int]]:
        return [(owner, tile) for owner in self.pulls[rank] for tile in range(self.tiles)]

    def ready(self, rank: int, epoch: int) -> str:
        return f"ready[{rank}]" if self.bug == ONE_READY else f"ready[{rank}][{epoch % 2}]"

    def done(self, owner: int, reader: int) -> str:
        return f"done[{owner}]" if self.bug == "one DONE counter for all readers" else f"done[{owner}][{reader}]"


def slot(rank: int, epoch: int, tile: int) -> str:
    return f"slot[{rank}][{epoch % 2}][{tile}]"


def enter(world: World, rank: int, epoch: int) -> Any:
    yield wait(f"left[{rank}]", lambda n: n >= (epoch - 1) * world.ctas)
    needed = epoch - (3 if world.bug == "waits for DONE of e - 3" else 2)
    if world.bug == "one DONE counter for all readers":
        needed *= len(world.peers(rank))
    for peer in world.peers(rank):
        if needed > 0 and world.bug != "does not wait for DONE":
            yield wait(world.done(rank, peer), lambda n: n >= needed)
    return stage, world, rank, epoch


def stage(world: World, rank: int, epoch: int) -> Any:
    tile = yield from count(f"stage tickets[{rank}]", epoch)
    if tile >= world.num_tiles(rank):
        return pull, world, rank, epoch
    yield store(slot(rank, epoch, tile), BEING_WRITTEN)
    yield store(slot(rank, epoch, tile), (epoch, tile, world.plan(rank, epoch)))
    order = "relaxed" if world.bug == "staged tiles are counted without a release" else "acq_rel"
    before = yield from count(f"staged[{rank}]", epoch, order)
    if before == (0 if world.bug == "the first stager sets READY" else world.tiles - 1):
        yield store(world.ready(rank, epoch), (epoch, world.plan(rank, epoch)), "release")
    return stage, world, rank, epoch


def send_done(world: World, rank: int, epoch: int) -> Any:
    for owner in world.peers(rank):
        if world.bug == "one DONE counter for all readers":
            yield add(world.done(owner, rank), 1, "release")
        else:
            yield store(world.done(owner, rank), epoch, "release")


def pull(world: World, rank: int, epoch: int) -> Any:
    ticket = yield from count(f"pull tickets[{rank}]", epoch)
    transfers = world.transfers(rank)
    if not transfers and ticket == 0 and world.bug != "no DONE of a rank without transfers":
        yield from send_done(world, rank, epoch)
    if ticket >= len(transfers):
        return leave, world, rank, epoch
    early = world.bug == "DONE when the last transfer starts"
    if early and ticket == len(transfers) - 1:
        yield from send_done(world, rank, epoch)
    owner, tile = transfers[ticket]
    ready: Word = yield wait(world.ready(owner, epoch), lambda word: word[0] >= epoch)
    if ready[1] != world.plan(rank, epoch) and (ready[0] == epoch or world.bug != ONE_READY):
        return None  # an error; this rank starts no other launch
    for _ in range(2):
        seen = yield load(slot(owner, epoch, tile))
        wanted = (epoch, tile, world.plan(rank, epoch))
        check(seen == wanted, f"rank {rank} reads {seen} of rank {owner} instead of {wanted}")
    before = yield from count(f"pulled[{rank}]", epoch, "acq_rel")
    if before == len(transfers) - 1 and not early:
        yield from send_done(world, rank, epoch)
    return pull, world, rank, epoch


def leave(world: World, rank: int, epoch: int) -> Any:
    yield add(f"left[{rank}]", 1, "acq_rel")
    if epoch < world.epochs:
        return enter, world, rank, epoch + 1
    return None


def staging(world: World, memory: type[Memory] = Sequential) -> Model:
    words: dict[str, Any] = {}
    for rank in range(len(world.pulls)):
        words[f"left[{rank}]"] = 0
        for counter in ("stage tickets", "staged", "pull tickets", "pulled"):
            words[f"{counter}[{rank}]"] = (0, 0)
        words |= {world.done(rank, peer): 0 for peer in world.peers(rank)}
        for epoch in range(2):
            words[world.ready(rank, epoch)] = (0, "")
            words |= {slot(rank, epoch, tile): "" for tile in range(world.tiles)}
    ranks = [(rank, i) for rank in range(len(world.pulls)) for i in range(world.ctas)]
    return Model(words=words, programs={f"rank {r} CTA {i}": (enter, world, r, 1) for r, i in ranks}, memory=memory)


BOTH = ((1,), (0,))  # two ranks, each pulls from the other
READERS = ((), (0,), (0,))  # ranks 1 and 2 pull from rank 0

SIZES = {
    "2 ranks, both pull, 5 epochs": World(pulls=BOTH, epochs=5),
    "2 ranks of 2 CTAs, 2 tiles, both pull, 2 epochs": World(pulls=BOTH, epochs=2, ctas=2, tiles=2),
    "2 ranks of 2 CTAs, 2 tiles, 1 pulls, 3 epochs": World(pulls=((), (0,)), epochs=3, ctas=2, tiles=2),
    "3 ranks, 2 tiles, 2 pull from the other, 4 epochs": World(pulls=READERS, epochs=4, tiles=2),
    "3 ranks in a ring, 3 epochs": World(pulls=((1,), (2,), (0,)), epochs=3),
}
BUGS = {
    "does not wait for DONE": (World(pulls=READERS, epochs=4), "reads being written of rank 0"),
    "waits for DONE of e - 3": (World(pulls=READERS, epochs=4), "reads being written of rank 0"),
    "one DONE counter for all readers": (World(pulls=READERS, epochs=4), "reads being written of rank 0"),
    "DONE when the last transfer starts": (World(pulls=READERS, epochs=4), "reads being written of rank 0"),
    "no DONE of a rank without transfers": (World(pulls=READERS, epochs=4), "deadlock: wait for done"),
    "the first stager sets READY": (World(pulls=BOTH, epochs=1, ctas=2, tiles=2), "instead of (1, 0, '=')"),
}
WEAK = World(pulls=((), (0,)), epochs=1, ctas=2, tiles=2)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_a_pull_reads_its_own_epoch_and_every_launch_ends(sizes: str) -> None:
    outcome = explore(staging(SIZES[sizes]))
    assert outcome.fault is None, outcome
    assert outcome.states == documented_states("staging", sizes)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    world, fault = BUGS[bug]
    outcome = explore(staging(replace(world, bug=bug)))
    assert fault in str(outcome.fault), outcome


def test_ranks_that_pull_from_each_other_need_no_done() -> None:
    outcome = explore(staging(replace(SIZES["2 ranks, both pull, 5 epochs"], bug="does not wait for DONE")))
    assert outcome.fault is None, outcome


@pytest.mark.slow
def test_ready_covers_the_tiles_of_every_cta() -> None:
    outcome = explore(staging(WEAK, ReleaseAcquire))
    assert outcome.fault is None, outcome
    assert outcome.states == documented_states("staging", "2 ranks of 2 CTAs, 2 tiles, 1 pulls, release-acquire")
    outcome = explore(staging(replace(WEAK, bug="staged tiles are counted without a release"), ReleaseAcquire))
    assert "rank 1 reads" in str(outcome.fault), outcome


@pytest.mark.parametrize("pulls", [BOTH, ((), (0,))])
@pytest.mark.parametrize("bug", ["", ONE_READY])
def test_data_of_another_plan_is_never_read(pulls: tuple[tuple[int, ...], ...], bug: str) -> None:
    """Plans differ in epoch 1 and agree in epoch 2.

    With one READY for both slots a rank that pulls nothing may be in epoch 2 when its peer looks, and its READY of that
    epoch says nothing about its plan in epoch 1.
    """
    outcome = explore(staging(World(pulls=pulls, epochs=2, plans=("AC", "BC"), bug=bug)))
    if pulls != BOTH and bug == ONE_READY:
        assert outcome.fault == "rank 1 reads (1, 0, 'A') of rank 0 instead of (1, 0, 'B')", outcome
    else:
        assert outcome.fault is None, outcome
