"""An explicit-state model checker: every interleaving of a few small programs, breadth first.

A program is a generator function. It yields one operation on shared words at a time (``memory.py``), is sent the
operation's result, and ends by returning None, or by returning (function, *arguments) to go on as another program. Its
local state is that function, its arguments and the results since then, so nothing can hide in it, and programs in equal
local states are interchangeable: the explorer keeps one of all orders of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from tests.protocol.memory import Memory, Op, Sequential

Program = Callable[..., Generator[Op, Any, Any]]
Read = Callable[[str], Any]
State = tuple[Any, tuple[tuple[int, Any], ...]]  # memory; (local state, view) of each program, sorted


class Broken(Exception):
    """What must hold does not; raised by ``check`` in a program or an invariant."""


def check(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Shared words with their first values; programs by name, as (function, *arguments)."""

    words: dict[str, Any]
    programs: dict[str, tuple[Any, ...]]
    memory: type[Memory] = Sequential
    invariant: Callable[[Read], None] = lambda read: None  # in every state
    at_end: Callable[[Read], None] = lambda read: None  # when all programs have ended
    limit: int = 400_000


@dataclass(frozen=True)
class Outcome:
    """``fault`` is None, or what goes wrong at the end of ``trace``, a shortest way there."""

    states: int
    fault: str | None = None
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        steps = [f"{number:3}. {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([f"{self.states} states: {self.fault or 'all is well'}", *steps])


class _Locals:
    """Local states as numbers: what each does next, and where each result leads."""

    def __init__(self) -> None:
        self.next: list[Op | Broken | None] = []  # None: the program has ended
        self._keys: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._after: dict[tuple[int, Any], int] = {}

    def start(self, function: Program, arguments: tuple[Any, ...], results: tuple[Any, ...] = ()) -> int:
        key = (function, arguments, results)
        if key in self._numbers:
            return self._numbers[key]
        program = function(*arguments)
        op: Op | Broken | None = None
        try:
            op = next(program)
            for result in results:
                op = program.send(result)
        except StopIteration as end:
            if end.value is not None:
                return self.start(end.value[0], end.value[1:])
            key, op = (), None
        except Broken as broken:
            op = broken
        if key not in self._numbers:
            self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self.next.append(op)
        return self._numbers[key]

    def after(self, local: int, result: Any) -> int:
        step = (local, result)
        if step not in self._after:
            function, arguments, results = self._keys[local]
            self._after[step] = self.start(function, arguments, (*results, result))
        return self._after[step]


class _Search:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.memory = model.memory(model.words)
        self.locals = _Locals()
        self.names = {name: self.locals.start(p[0], p[1:]) for name, p in model.programs.items()}
        first = (self.memory.first, tuple(sorted((local, self.memory.first_view) for local in self.names.values())))
        self.numbers: dict[State, int] = {first: 0}
        self.parents: list[tuple[int, int, int, Any]] = [(-1, 0, 0, None)]  # state; local before, after; result
        self.predecessors: list[list[int]] = [[]]
        self.ends: list[int] = []

    def run(self) -> Outcome:
        queue = [next(iter(self.numbers))]
        for number, state in enumerate(queue):  # grows meanwhile
            fault = self.fault_of(state, number) or self.expand(state, number, queue)
            if fault:
                return self.outcome(fault, number)
            if len(queue) > self.model.limit:
                raise RuntimeError(f"more than {self.model.limit} states")
        lost = self.first_that_cannot_end()
        return Outcome(len(queue)) if lost is None else self.outcome("livelock: no way to the end", lost)

    def fault_of(self, state: State, number: int) -> str | None:
        memory, programs = state
        coming = [self.locals.next[local] for local, _ in programs]

        def read(word: str) -> Any:
            return self.memory.latest(memory, word)

        try:
            for op in coming:
                if isinstance(op, Broken):
                    raise op
            self.model.invariant(read)
            if not any(coming):
                self.ends.append(number)
                self.model.at_end(read)
        except Broken as broken:
            return str(broken)
        return None

    def expand(self, state: State, number: int, queue: list[State]) -> str | None:
        memory, programs = state
        stuck = number not in self.ends[-1:]
        for place, (local, view) in enumerate(programs):
            op = self.locals.next[local]
            if op is None or (place and programs[place - 1] == programs[place]):
                continue
            assert isinstance(op, Op)
            for new_memory, new_view, result in self.memory.step(memory, view, op):
                stuck = False
                after = self.locals.after(local, result)
                rest = (*programs[:place], *programs[place + 1 :], (after, new_view))
                new = (new_memory, tuple(sorted(rest)))
                known = self.numbers.setdefault(new, len(queue))
                if known == len(queue):
                    queue.append(new)
                    self.parents.append((number, local, after, result))
                    self.predecessors.append([])
                self.predecessors[known].append(number)
        if not stuck:
            return None
        waiting = {str(self.locals.next[local]) for local, _ in programs if self.locals.next[local]}
        return "deadlock: " + ", ".join(sorted(waiting))

    def first_that_cannot_end(self) -> int | None:
        reached = set(self.ends)
        queue = list(reached)
        for number in queue:
            new = set(self.predecessors[number]) - reached
            reached |= new
            queue += new
        return next((number for number in range(len(self.parents)) if number not in reached), None)

    def outcome(self, fault: str, number: int) -> Outcome:
        steps = []
        while number:
            steps.append(self.parents[number][1:])
            number = self.parents[number][0]
        at, trace = dict(self.names), []
        for before, after, result in reversed(steps):
            name = next(name for name, local in at.items() if local == before)
            at[name] = after
            trace.append(f"{name}: {self.locals.next[before]}" + ("" if result is None else f" -> {result}"))
        return Outcome(len(self.numbers), fault, trace)


def explore(model: Model) -> Outcome:
    """Visits every state. Stops at the first that breaks a check or an invariant or in which nothing can move; then
    makes sure that the end can be reached from everywhere."""
    return _Search(model).run()
