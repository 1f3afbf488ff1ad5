"""Numbers that stand for worlds and plans in calls of torch ops, whose arguments are tensors and numbers alone."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from liquidcp_compiler.errors import HandleError, InvalidField, PlanError
from liquidcp_compiler.ir.plan import Plan

#: Numbers are never used twice, so that one of something gone cannot reach another thing. 0 and 1 are left out, since
#: torch.compile makes a program of their own for each of them.
_NUMBERS = itertools.count(2)


class HandleTable:
    """Things of one kind by number. Holds them weakly: a number keeps nothing alive."""

    def __init__(self, kind: str, check: Callable[[object], None]) -> None:
        self.kind, self._check = kind, check
        self._things: dict[int, weakref.ref[Any]] = {}
        self._handles: dict[int, int] = {}  # id of a living thing -> its number
        self._lock = threading.Lock()

    def handle(self, thing: object) -> int:
        """The number of a thing, given on first use, when ``check`` may raise."""
        handle = self._handles.get(id(thing))
        return self._add(thing) if handle is None else handle

    def get(self, handle: int) -> Any:
        """The thing. Raises HandleError where there is none, or none any more."""
        found = self._things.get(handle)
        thing = None if found is None else found()
        if thing is None:
            raise HandleError(self.kind, handle)
        return thing

    def _add(self, thing: object) -> int:
        self._check(thing)
        key = id(thing)
        with self._lock:
            if key in self._handles:  # another thread was first
                return self._handles[key]
            handle = next(_NUMBERS)

            def forget(_: object) -> None:
                del self._things[handle], self._handles[key]

            self._things[handle] = weakref.ref(thing, forget)
            self._handles[key] = handle
            return handle


def _check_world(thing: object) -> None:
    if not callable(getattr(thing, "run", None)):
        raise InvalidField("world", type(thing).__name__, "a world such as liquidcp_runtime.cpu(), or its handle")


def _check_plan(thing: object) -> None:
    if not isinstance(thing, Plan):
        allowed = "what liquidcp_compiler.plan or Plan.load returns, or its handle"
        raise PlanError(f"plan is a {type(thing).__name__}; allowed: {allowed}")


WORLDS, PLANS = HandleTable("world", _check_world), HandleTable("plan", _check_plan)


def handle_of(thing: object) -> int:
    """The number that stands for a world or plan in :func:`liquidcp_runtime.attention` and the ops below it.

    It is valid in this process as long as the thing lives. Raises InvalidField for anything that is no plan and has no
    ``run``.
    """
    return (PLANS if isinstance(thing, Plan) else WORLDS).handle(thing)
