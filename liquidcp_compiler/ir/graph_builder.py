"""Graphs written by hand, task by task."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex

import numpy as np

from liquidcp_compiler.errors import GraphError
from liquidcp_compiler.ir.author import caller
from liquidcp_compiler.ir.builder_tiles import BuilderTiles
from liquidcp_compiler.ir.graph import PlacedGraph, PlannedGraph
from liquidcp_compiler.ir.intervals import AccessTable
from liquidcp_compiler.ir.layout import Formation, Role, Space
from liquidcp_compiler.ir.problem import DecodeProblem, Problem
from liquidcp_compiler.ir.tasks import TaskKind, TaskTable
from liquidcp_compiler.ir.text_format import ROLE_WORDS, USUAL_FORMATION
from liquidcp_compiler.ir.tiles import REPLICATED

#: One id, [lo, hi) as a pair or a range, or several of these.
Items = int | tuple[int, int] | range | Iterable["int | tuple[int, int] | range"]
Target = Literal["out", "state"]
Entry = tuple[Space, int, int]

_WIDE = ("rank", "peer", "tau_min", "tau_max", "loc")
_SMALL = ("kind", "role", "formation", "direction")
_WORDS = {Space.Q: "q", Space.KV: "kv", Space.STATE: "state"}


class GraphBuilder:
    """Builds a graph by hand: first who owns which tokens, then the tasks in queue order.

    >>> b = GraphBuilder(PrefillProblem(lengths=(256,), num_heads_q=2, num_heads_kv=1), world=2)
    >>> b.own((0, 128), rank=0), b.own((128, 256), rank=1)
    >>> b.transfer(kv=0, src=0, dst=1)
    >>> b.compute(0, q=0, kv=0), b.compute(1, q=1, kv=[0, 1])
    >>> graph = b.finish()

    Every call notes the line of code it stands on, and raises GraphError for what does not exist or does not fit.
    Whether all query-key pairs are covered is for ``verify`` to say.
    """

    def __init__(self, problem: Problem, world: int, tile: int = 128) -> None:
        for name, value in (("world", world), ("tile", tile)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise GraphError(f"{name} is {value!r}; allowed: a whole number, 1 or more")
        self.problem, self.world, self.tile = problem, world, tile
        self._q = BuilderTiles("q", problem.q_lengths, tile, problem.num_heads_q)
        self._kv = BuilderTiles("kv", problem.kv_lengths_array, tile, problem.num_heads_kv)
        self._states: list[int] = []
        self._state_rank: list[int] = []
        self._tasks: list[dict[str, Any]] = []
        self._locs: dict[str, int] = {"": 0}
        self._pulled: set[tuple[Space, int, int]] = set()

    def own_q(
        self, tokens: tuple[int, int] | range, *, rank: int, sequence: int = 0, heads: tuple[int, int] | None = None
    ) -> range:
        """Gives queries [lo, hi) of a sequence to a rank, cut into tiles; ``heads`` (lo, hi) if only some. Tile ids."""
        return self._q.add(tokens, self._rank("rank", rank), sequence, heads)

    def own_kv(self, tokens: tuple[int, int] | range, *, rank: int, sequence: int = 0) -> range:
        """Gives keys [lo, hi) of a sequence to a rank, cut into tiles. Tile ids."""
        return self._kv.add(tokens, self._rank("rank", rank), sequence)

    def own(self, tokens: tuple[int, int] | range, *, rank: int, sequence: int = 0) -> tuple[range, range]:
        """Gives queries and keys [lo, hi) of a sequence to a rank. Ids of the query tiles and of the KV tiles."""
        return self.own_q(tokens, rank=rank, sequence=sequence), self.own_kv(tokens, rank=rank, sequence=sequence)

    def replicate_kv(self, tokens: tuple[int, int] | range, *, sequence: int = 0) -> range:
        """Keys [lo, hi) of a sequence that every rank holds, cut into tiles. Tile ids."""
        return self._kv.add(tokens, REPLICATED, sequence)

    def transfer(
        self, *, src: int, dst: int, q: Items | None = None, kv: Items | None = None, state: Items | None = None
    ) -> None:
        """Pulls query tiles, KV tiles or partial states from a rank that holds or pulled them: one task each."""
        given = {s: v for s, v in ((Space.Q, q), (Space.KV, kv), (Space.STATE, state)) if v is not None}
        if len(given) != 1:
            names = ", ".join(_WORDS[s] for s in given) or "nothing"
            raise GraphError(f"transfer got {names}; allowed: one of q, kv, state")
        space, items = next(iter(given.items()))
        src, dst = self._rank("src", src), self._rank("dst", dst)
        ids = self._ids(space, items)
        for item in ids:
            self._check_transfer(space, item, src, dst)
        for item in ids:
            self._pulled.add((space, dst, item))
            entry = [(space, item, item + 1)]
            self._add(TaskKind.TRANSFER, dst, entry, entry, peer=src)

    def compute(
        self,
        rank: int,
        *,
        q: int,
        kv: Items,
        into: Target = "out",
        role: str | None = None,
        ready: tuple[int, int] | None = None,
    ) -> int | None:
        """Attention of one query tile over KV tiles, merged into the finished output or kept as a partial state.

        Args:
            role: ``self`` (the default in prefill), ``chunk`` or ``history`` (one of them in decode).
            ready: (tau_min, tau_max): let the engine form tasks from what has arrived; None: one task.

        Returns the id of the new state with ``into="state"``, else None.
        """
        rank = self._rank("rank", rank)
        tile = self._q_id(q)
        kv_ids = self._ids(Space.KV, kv)
        if not kv_ids:
            raise GraphError("kv is empty; allowed: one KV tile or more")
        other = [i for i in kv_ids if self._kv.sequence(i) != self._q.sequence(tile)]
        if other:
            raise GraphError(
                f"kv {other[0]} is of sequence {self._kv.sequence(other[0])}; allowed: tiles of sequence "
                f"{self._q.sequence(tile)}, which q {tile} belongs to"
            )
        if ready is not None and into != "out":
            raise GraphError(
                f"into is {into!r}; allowed with ready: out, since ready-formed tasks merge into the output"
            )
        formation = USUAL_FORMATION[TaskKind.COMPUTE] if ready is None else (Formation.READY, *_thresholds(ready))
        reads = [(Space.Q, tile, tile + 1), *_entries(Space.KV, sorted(kv_ids))]
        chosen = self._role(role)
        target = self._target(rank, tile, into)
        self._add(TaskKind.COMPUTE, rank, reads, [target], role=chosen, formation=formation)
        return target[1] if target[0] == Space.STATE else None

    def reduce(self, rank: int, *, states: Items, q: int | None = None, into: Target = "out") -> int | None:
        """Merges partial states of one query tile, in the order given. ``q`` may name the tile, as a check.

        Returns the id of the new state with ``into="state"``, else None.
        """
        rank = self._rank("rank", rank)
        ids = self._ids(Space.STATE, states)
        if not ids:
            raise GraphError("states is empty; allowed: one state or more")
        tile = self._states[ids[0]] if q is None else self._q_id(q)
        for i in ids:
            if self._states[i] != tile:
                raise GraphError(f"state {i} is of q {self._states[i]}; allowed: states of q {tile}")
        target = self._target(rank, tile, into)
        self._add(TaskKind.REDUCTION, rank, _entries(Space.STATE, ids), [target])
        return target[1] if target[0] == Space.STATE else None

    def placed(self) -> PlacedGraph:
        """The graph with reads that may be remote, for ``insert-transfers``. It must have no transfers yet."""
        if self._pulled:
            raise GraphError("placed() is for graphs without transfers, since insert-transfers adds them; use finish()")
        return PlacedGraph(**self._fields())

    def finish(self) -> PlannedGraph:
        """The graph, after a check that every rank holds or pulls what its tasks read."""
        for i, task in enumerate(self._tasks):
            if task["kind"] == TaskKind.TRANSFER:
                continue
            for space, lo, hi in task["reads"]:
                for item in range(lo, hi):
                    self._check_held(i, space, item)
        return PlannedGraph(**self._fields())

    def _add(self, kind: TaskKind, rank: int, reads: list[Entry], writes: list[Entry], **columns: Any) -> None:
        loc = self._locs.setdefault(caller(), len(self._locs))
        formation, tau_min, tau_max = columns.pop("formation", USUAL_FORMATION[kind])
        row = {"kind": kind, "rank": rank, "peer": -1, "role": Role.NONE, "direction": 0, "loc": loc, **columns}
        row |= {"formation": formation, "tau_min": tau_min, "tau_max": tau_max, "reads": reads, "writes": writes}
        self._tasks.append(row)

    def _fields(self) -> dict[str, Any]:
        columns: dict[str, Any] = {
            name: np.array([t[name] for t in self._tasks], dtype)
            for names, dtype in ((_WIDE, np.int64), (_SMALL, np.uint8))
            for name in names
        }
        columns |= {name: _access([t[name] for t in self._tasks]) for name in ("reads", "writes")}
        return {
            "problem": self.problem,
            "world": self.world,
            "tile": self.tile,
            "q_tiles": self._q.table(),
            "kv_tiles": self._kv.table(),
            "states": np.array(self._states, np.int64),
            "tasks": TaskTable(**columns),
            "locs": tuple(self._locs),
        }

    def _rank(self, name: str, value: object) -> int:
        return _whole(name, value, self.world, "ranks")

    def _q_id(self, value: object) -> int:
        return _whole("q", value, len(self._q), "q ids so far")

    def _ids(self, space: Space, items: Items) -> list[int]:
        """The ids of one space that a call names; each must exist, and come once."""
        count = {Space.Q: len(self._q), Space.KV: len(self._kv), Space.STATE: len(self._states)}[space]
        ids = list(_flatten(_WORDS[space], items))
        for i in ids:
            _whole(_WORDS[space], i, count, f"{_WORDS[space]} ids so far")
        if len(set(ids)) != len(ids):
            raise GraphError(f"{_WORDS[space]} is {ids}; allowed: every id once")
        return ids

    def _role(self, role: str | None) -> Role:
        decode = isinstance(self.problem, DecodeProblem)
        role = "self" if role is None and not decode else role
        allowed = ("chunk", "history") if decode else ("self",)
        if role is None or role not in allowed:
            raise GraphError(f"role is {role!r}; allowed in a {self.problem.kind} problem: {', '.join(allowed)}")
        return ROLE_WORDS[role]

    def _target(self, rank: int, tile: int, into: str) -> Entry:
        """What a compute or reduction writes; makes the state if it is one."""
        if into == "state":
            self._states.append(tile)
            self._state_rank.append(rank)
            return Space.STATE, len(self._states) - 1, len(self._states)
        if into != "out":
            raise GraphError(f"into is {into!r}; allowed: out, state")
        owner = self._q.rank(tile)
        if owner != rank:
            raise GraphError(
                f"rank is {rank}; allowed: {owner}, since rank {owner} owns q {tile} and with it the output. "
                f"Use into='state' on rank {rank}, and a transfer and a reduce on rank {owner}"
            )
        return Space.OUT, tile, tile + 1

    def _holder(self, space: Space, item: int) -> int:
        return self._state_rank[item] if space == Space.STATE else self._tiles(space).rank(item)

    def _tiles(self, space: Space) -> BuilderTiles:
        return self._q if space == Space.Q else self._kv

    def _check_transfer(self, space: Space, item: int, src: int, dst: int) -> None:
        holder, name = self._holder(space, item), f"{_WORDS[space]} {item}"
        if holder == REPLICATED:
            raise GraphError(f"{name} needs no transfer: every rank holds it")
        if src != holder and (space, src, item) not in self._pulled:
            raise GraphError(f"src is {src}; allowed: {holder}, which holds {name}, or a rank that pulled it before")
        if dst == holder:
            raise GraphError(f"dst is {dst}; allowed: any rank but {holder}, which holds {name} already")
        if (space, dst, item) in self._pulled:
            raise GraphError(f"{name} is transferred to rank {dst} already; allowed: once a rank")

    def _check_held(self, task: int, space: Space, item: int) -> None:
        rank, loc = self._tasks[task]["rank"], list(self._locs)[self._tasks[task]["loc"]]
        holder = self._holder(space, item)
        if holder in (rank, REPLICATED) or (space, rank, item) in self._pulled:
            return
        word = _WORDS[space]
        hint = f"add transfer({word}={item}, src={holder}, dst={rank})"
        hint += "" if self._pulled else ", or take placed() and the pass insert-transfers"
        raise GraphError(f"task %{task} ({loc}) reads {word} {item} on rank {rank}, but rank {holder} holds it; {hint}")


def _whole(name: str, value: object, count: int, of: str) -> int:
    allowed = f"0 to {count - 1} ({count} {of})" if count else f"none, there are no {of}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or not 0 <= operator.index(value) < count:
        raise GraphError(f"{name} is {value!r}; allowed: {allowed}")
    return operator.index(value)


def _flatten(name: str, items: Any) -> Iterable[int]:
    """The ids of an id, a (lo, hi) pair, a range, or several of them."""
    if isinstance(items, SupportsIndex):
        yield operator.index(items)
    elif isinstance(items, tuple) and len(items) == 2 and all(isinstance(i, SupportsIndex) for i in items):
        lo, hi = (operator.index(i) for i in items)
        if lo >= hi:
            raise GraphError(f"{name} is ({lo}, {hi}), an empty interval; allowed: (first, past last)")
        yield from range(lo, hi)
    elif isinstance(items, Iterable) and not isinstance(items, str):
        for item in items:
            yield from _flatten(name, item)
    else:
        raise GraphError(f"{name} is {items!r}; allowed: an id, a pair (first, past last), a range, or a list of them")


def _entries(space: Space, ids: list[int]) -> list[Entry]:
    """Ids in their order as intervals, as few as that allows."""
    entries: list[Entry] = []
    for i in ids:
        if entries and entries[-1][2] == i:
            entries[-1] = (space, entries[-1][1], i + 1)
        else:
            entries.append((space, i, i + 1))
    return entries


def _thresholds(ready: Any) -> tuple[int, int]:
    whole = isinstance(ready, tuple) and len(ready) == 2 and all(type(n) is int for n in ready)
    if not whole or not 1 <= ready[0] <= ready[1]:
        raise GraphError(f"ready is {ready!r}; allowed: (tau_min, tau_max) with 1 <= tau_min <= tau_max")
    return ready


def _access(rows: list[list[Entry]]) -> AccessTable:
    flat = np.array([entry for row in rows for entry in row], np.int64).reshape(-1, 3)
    ptr = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    return AccessTable(ptr, flat[:, 0].astype(np.uint8), flat[:, 1].copy(), flat[:, 2].copy())
