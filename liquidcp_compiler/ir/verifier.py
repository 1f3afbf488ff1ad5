"""The verifier: named rules per stage, checked on intervals.

A stage is a tuple of rules. A rule is a function that yields (task, message) for what breaks it; a task of -1 means the
whole graph. After a pass only the rules are run whose inputs the pass changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from liquidcp_compiler.errors import VerificationError
from liquidcp_compiler.ir import rules_authored, rules_placed, rules_planned, rules_synced, rules_tiles
from liquidcp_compiler.ir.graph import AnyGraph, AuthoredGraph, PlannedGraph, Stage

Finding = tuple[int, str]


@dataclass(frozen=True)
class Rule:
    """A named check.

    Fields: ``check`` yields findings; ``inputs`` are the fields of the graph that it looks at.
    """

    name: str
    check: Callable[..., Iterator[Finding]]
    inputs: tuple[str, ...]


_TILES, _TASKS = ("q_tiles", "kv_tiles"), ("q_tiles", "kv_tiles", "states", "tasks")

AUTHORED = (
    Rule("regions-in-bounds", rules_authored.regions_in_bounds, ("regions",)),
    Rule("regions-cover-once", rules_authored.regions_cover_once, ("regions",)),
)
PLACED = (
    Rule("tiles-partition-tokens", rules_tiles.tiles_partition_tokens, _TILES),
    Rule("owners-exist", rules_tiles.owners_exist, _TILES),
    Rule("slots-are-packed", rules_tiles.slots_are_packed, _TILES),
    Rule("operands-exist", rules_placed.operands_exist, _TASKS),
    Rule("task-shape", rules_placed.task_shape, _TASKS),
    Rule("one-sequence-a-task", rules_placed.one_sequence_a_task, _TASKS),
    Rule("one-writer-a-state", rules_placed.one_writer_a_state, _TASKS),
    Rule("states-reach-their-output", rules_placed.states_reach_their_output, _TASKS),
    Rule("outputs-at-home", rules_placed.outputs_at_home, _TASKS),
    Rule("pairs-covered-once", rules_placed.pairs_covered_once, _TASKS),
)
PLANNED = (
    *PLACED,
    Rule("pulled-once", rules_planned.pulled_once, _TASKS),
    Rule("source-holds-item", rules_planned.source_holds_item, _TASKS),
    Rule("states-with-their-tiles", rules_planned.states_with_their_tiles, _TASKS),
    Rule("reads-available", rules_planned.reads_available, _TASKS),
    Rule("no-deadlock", rules_planned.no_deadlock, _TASKS),
    Rule("formation-legal", rules_planned.formation_legal, _TASKS),
)
SYNCED = (
    *PLANNED,
    Rule("signals-of-ranks", rules_synced.signals_of_ranks, (*_TASKS, "signals")),
    Rule("signals-are-set", rules_synced.signals_are_set, (*_TASKS, "signals")),
    Rule("reads-are-waited-for", rules_synced.reads_are_waited_for, (*_TASKS, "signals")),
)
RULES: dict[Stage, tuple[Rule, ...]] = {
    Stage.AUTHORED: AUTHORED,
    Stage.PLACED: PLACED,
    Stage.PLANNED: PLANNED,
    Stage.SYNCED: SYNCED,
}


def verify(graph: AnyGraph, before: AnyGraph | None = None, *, workspace_limit: int | None = None) -> None:
    """Checks every rule of the graph's stage.

    With ``before``, a verified graph that a pass made this one from, rules whose inputs are the very same objects are
    left out. ``workspace_limit``: bytes of pulled tiles and states that a rank may need.

    Raises VerificationError for the first finding: its rule, stage and task.
    """
    done = RULES[before.stage] if before is not None else ()
    for rule in RULES[graph.stage]:
        if rule in done and all(getattr(graph, f) is getattr(before, f) for f in rule.inputs):
            continue
        _report(graph, rule.name, rule.check(graph))
    if workspace_limit is not None and isinstance(graph, PlannedGraph):
        _report(graph, "buffers-within-limit", rules_planned.buffers_within_limit(graph, workspace_limit))


def _report(graph: AnyGraph, rule: str, findings: Iterator[Finding]) -> None:
    for task, message in findings:
        name = ""
        if task >= 0 and not isinstance(graph, AuthoredGraph):
            view = graph.task(task)
            name = view.name + (f" ({view.loc})" if view.loc else "")
        raise VerificationError(rule, str(graph.stage), name, message)
