"""Claim: compute CTAs take [C, E) of a row as its tiles arrive, E = C + min(R - C, tau_max), by a CAS on the word C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.protocol.documented import documented_states
from tests.protocol.explorer import Model, Read, check, explore
from tests.protocol.memory import Memory, ReleaseAcquire, Sequential, cas, fence, load, raise_to, store, update
from tests.protocol.words import value_of

EPOCH = 2


@dataclass(frozen=True, kw_only=True)
class Row:
    """Tiles of a row: its own, then arrivals, one after another."""

    total: int
    local: int
    tau_min: int = 2
    tau_max: int = 3
    bug: str = ""

    def claimable(self, claimed: int, ready: int) -> bool:
        if ready <= claimed:
            return False
        if self.bug == "the rest has to reach tau_min too":
            return ready - claimed >= self.tau_min
        return ready - claimed >= self.tau_min or ready == self.total or self.bug == "tau_min is ignored"


def arrive(row: Row) -> Any:
    for arrival in range(row.total - row.local):
        yield store(f"data[{arrival}]", "landed")
        yield raise_to("prefix", (EPOCH, arrival + 1), "release")


def compute(row: Row, claims: tuple[tuple[int, int], ...]) -> Any:
    """A relaxed look at both words; if nothing is claimable, another one."""
    word = yield load("claimed")
    claimed = value_of(word, EPOCH)
    if claimed >= row.total:
        yield update("report to", "claims", lambda reported: (*reported, *claims))
        return None
    ready = row.local + value_of((yield load("prefix")), EPOCH)
    if not row.claimable(claimed, ready):
        return compute, row, claims
    hi = claimed + min(ready - claimed, row.tau_max)
    if row.bug == "C is stored":
        yield store("claimed", (EPOCH, hi))
    elif (old := (yield cas("claimed", word, (EPOCH, hi)))) != word:
        if row.bug != "E stays when C is read again" or (yield cas("claimed", old, (EPOCH, hi))) != old:
            return compute, row, claims
        claimed = value_of(old, EPOCH)
    if row.bug != "no fence after the claim":
        yield fence()
    check(hi > claimed, f"a claim of [{claimed}, {hi})")
    check(hi - claimed >= row.tau_min or ready == row.total, f"[{claimed}, {hi}) is too small with {ready} tiles ready")
    for arrival in range(max(claimed - row.local, 0), max(hi - row.local, 0)):
        check((yield load(f"data[{arrival}]")) == "landed", f"data of arrival {arrival} is not there")
    return compute, row, (*claims, (claimed, hi))


def claim(row: Row, ctas: int, memory: type[Memory] = Sequential) -> Model:
    def invariant(read: Read) -> None:
        claimed, ready = value_of(read("claimed"), EPOCH), row.local + value_of(read("prefix"), EPOCH)
        check(claimed <= ready, f"{claimed} tiles are claimed and {ready} ready")

    def at_end(read: Read) -> None:
        tiles = [tile for lo, hi in sorted(read("claims")) for tile in range(lo, hi)]
        check(tiles == list(range(row.total)), f"claims {sorted(read('claims'))} of {row.total} tiles")

    arrivals = range(row.total - row.local)
    return Model(
        words={"claimed": (1, row.total), "prefix": (1, len(arrivals)), "claims": ()}
        | {f"data[{arrival}]": "of epoch 1" for arrival in arrivals},
        programs={"comm CTA": (arrive, row)} | {f"compute CTA {i}": (compute, row, ()) for i in range(ctas)},
        memory=memory,
        invariant=invariant,
        at_end=at_end,
    )


SIZES = {
    "3 CTAs, 5 tiles, 4 arrive": lambda: claim(Row(total=5, local=1), 3),
    "3 CTAs, 7 tiles, 5 arrive": lambda: claim(Row(total=7, local=2), 3),
    "2 CTAs, 4 tiles, 4 arrive, release-acquire": lambda: claim(Row(total=4, local=0), 2, ReleaseAcquire),
}
BUGS = {
    "C is stored": "claims [(0, 2), (0, 2), (2, 5)] of 5 tiles",
    "E stays when C is read again": "a claim of [2, 2)",
    "tau_min is ignored": "[0, 1) is too small with 1 tiles ready",
    "the rest has to reach tau_min too": "livelock: no way to the end",
}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_claims_are_disjoint_and_cover_the_row(sizes: str) -> None:
    outcome = explore(SIZES[sizes]())
    assert outcome.fault is None, outcome
    assert outcome.states == documented_states("claim", sizes)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    outcome = explore(claim(Row(total=5, local=1, bug=bug), 2))
    assert outcome.fault == BUGS[bug], outcome


def test_a_missing_fence_is_found() -> None:
    row = Row(total=3, local=1, bug="no fence after the claim")
    outcome = explore(claim(row, 2, ReleaseAcquire))
    assert outcome.fault == "data of arrival 0 is not there", outcome
    assert explore(claim(row, 2, Sequential)).fault is None
