"""Operations on shared words, and two memories: sequentially consistent, and release-acquire with views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ACQUIRES = ("acquire", "acq_rel")
RELEASES = ("release", "acq_rel")


@dataclass(frozen=True, eq=False)
class Op:
    """Its result is the value read (before the update, if it updates), or None.

    Kinds: load, store, update, fence, choose (one of the options), any_of (one of the options, which are operations).
    """

    kind: str
    word: str = ""
    order: str = "relaxed"
    text: str = ""
    accept: Callable[[Any], bool] = lambda value: True  # load: waits for such a value
    update: Callable[[Any], Any] = lambda value: None  # the new value, None: leaves the word alone (a failed CAS)
    options: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join(part for part in (self.text or self.kind, self.word, self.order) if part)


def load(word: str, order: str = "relaxed") -> Op:
    return Op("load", word, order)


def wait(word: str, accept: Callable[[Any], bool], order: str = "acquire") -> Op:
    """A load, repeated until it reads an acceptable value; it is not a step before."""
    return Op("load", word, order, "wait for", accept)


def store(word: str, value: Any, order: str = "relaxed") -> Op:
    return Op("store", word, order, f"store {value} to", update=lambda _: value)


def add(word: str, n: int, order: str = "relaxed") -> Op:
    return Op("update", word, order, f"add {n} to", update=lambda old: old + n)


def update(text: str, word: str, function: Callable[[Any], Any], order: str = "relaxed") -> Op:
    return Op("update", word, order, text, update=function)


def raise_to(word: str, value: Any, order: str = "relaxed") -> Op:
    return Op("update", word, order, f"max {value} into", update=lambda old: max(old, value))


def cas(word: str, old: Any, new: Any, order: str = "relaxed") -> Op:
    return Op("update", word, order, f"cas {old} to {new} in", update=lambda seen: new if seen == old else None)


def choose(*options: Any) -> Op:
    return Op("choose", order="", text="choose", options=options)


def any_of(*options: Op) -> Op:
    """The first that need not wait, or any if there are several; its result is (which one, its result)."""
    return Op("any_of", order="", text=" or ".join(map(str, options)), options=options)


def fence() -> Op:
    return Op("fence", order="acq_rel")


class Memory:
    """``step`` gives every (memory, view, result) that an operation may lead to; none: it has to wait."""

    first: Any
    first_view: Any = ()

    def __init__(self, words: dict[str, Any]) -> None:
        self.places = {word: place for place, word in enumerate(words)}

    def latest(self, memory: Any, word: str) -> Any:
        raise NotImplementedError

    def step(self, memory: Any, view: Any, op: Op) -> Iterator[tuple[Any, Any, Any]]:
        if op.kind == "choose":
            yield from ((memory, view, option) for option in op.options)
        elif op.kind == "any_of":
            for which, option in enumerate(op.options):
                yield from ((*after, (which, result)) for *after, result in self.step(memory, view, option))
        else:
            yield from self.access(memory, view, op)

    def access(self, memory: Any, view: Any, op: Op) -> Iterator[tuple[Any, Any, Any]]:
        raise NotImplementedError


class Sequential(Memory):
    """One value a word, and everybody sees it at once; orders say nothing."""

    def __init__(self, words: dict[str, Any]) -> None:
        super().__init__(words)
        self.first = tuple(words.values())

    def latest(self, memory: Any, word: str) -> Any:
        return memory[self.places[word]]

    def access(self, memory: Any, view: Any, op: Op) -> Iterator[tuple[Any, Any, Any]]:
        if op.kind == "fence":
            yield memory, view, None
            return
        place = self.places[op.word]
        old = memory[place]
        if op.kind == "load":
            if op.accept(old):
                yield memory, view, old
            return
        new = op.update(old)
        if new is not None:
            memory = (*memory[:place], new, *memory[place + 1 :])
        yield memory, view, (None if op.kind == "store" else old)


def join(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return a if a == b else tuple(map(max, a, b))


def put(view: tuple[int, ...], place: int, time: int) -> tuple[int, ...]:
    return (*view[:place], max(time, view[place]), *view[place + 1 :])


class ReleaseAcquire(Memory):
    """Every store of a word is kept. A program has a view: of each word, the oldest store that it may still read.

    A store carries a view along: the writer's own if it releases, else that of the writer's last fence; an update also
    passes on the view of the store that it read. A load that acquires joins the view it finds with its program's, a
    relaxed one leaves that to a later fence. So a load may read any store that nothing it knows of says is outdated,
    which is what a missing release or acquire leads to. Stores of one word are ordered as they happen, and a load is
    never later than a store behind it in its program.
    """

    def __init__(self, words: dict[str, Any]) -> None:
        super().__init__(words)
        none = (0,) * len(words)
        self.first = tuple(((value, none),) for value in words.values())
        self.first_view = (none, none, none)  # now; after an acquire fence; as of the last release fence

    def latest(self, memory: Any, word: str) -> Any:
        return memory[self.places[word]][-1][0]

    def access(self, memory: Any, view: Any, op: Op) -> Iterator[tuple[Any, Any, Any]]:
        now, acquired, _ = view
        if op.kind == "fence":
            now = join(now, acquired)
            yield memory, (now, now, now), None
        elif op.kind == "store":
            yield *self._write(memory, view, op, op.update(None), ()), None
        else:
            stores = memory[self.places[op.word]]
            for time in range(now[self.places[op.word]], len(stores)):
                value, carried = stores[time]
                new = op.update(value) if op.kind == "update" else None
                if not op.accept(value) or (new is not None and time != len(stores) - 1):
                    continue
                seen = self._read(view, op, time, carried)
                if new is None:
                    yield memory, seen, value
                else:
                    yield *self._write(memory, seen, op, new, carried), value

    def _read(self, view: Any, op: Op, time: int, carried: tuple[int, ...]) -> Any:
        now, acquired, released = view
        now = put(now, self.places[op.word], time)
        acquired = join(join(acquired, now), carried)
        return (join(now, carried) if op.order in ACQUIRES else now), acquired, released

    def _write(self, memory: Any, view: Any, op: Op, value: Any, passed_on: tuple[int, ...]) -> tuple[Any, Any]:
        now, acquired, released = view
        place = self.places[op.word]
        time = len(memory[place])
        now, acquired = put(now, place, time), put(acquired, place, time)
        carried = now if op.order in RELEASES else put(released, place, time)
        if passed_on:
            carried = join(carried, passed_on)
        memory = (*memory[:place], (*memory[place], (value, carried)), *memory[place + 1 :])
        return memory, (now, acquired, released)
