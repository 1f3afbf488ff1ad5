"""Remembers what is derived from a graph's tasks, so that passes, verifier and lowering derive it once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from liquidcp_compiler.ir.graph import TaskGraph

Result = TypeVar("Result")


def once_a_graph(function: Callable[[TaskGraph], Result]) -> Callable[[TaskGraph], Result]:
    """Caches a function of (tasks, tiles, states, world). Graphs are immutable, so identity of the tables is enough."""
    cache: WeakKeyDictionary = WeakKeyDictionary()

    @wraps(function)
    def remembered(graph: TaskGraph) -> Result:
        key = (graph.q_tiles, graph.kv_tiles, graph.states, graph.world, graph.problem)
        found = cache.get(graph.tasks)
        if found is not None and all(a is b for a, b in zip(found[0], key, strict=True)):
            return found[1]
        result = function(graph)
        cache[graph.tasks] = (key, result)
        return result

    return remembered
