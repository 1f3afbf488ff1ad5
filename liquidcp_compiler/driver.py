"""From a problem to a plan, as a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from liquidcp_compiler.errors import InvalidField, OutOfResources, PassError
from liquidcp_compiler.ir.author import author, caller
from liquidcp_compiler.ir.graph import AnyGraph, AuthoredGraph, PlacedGraph, PlannedGraph, SyncedGraph, TaskGraph
from liquidcp_compiler.ir.intervals import expand
from liquidcp_compiler.ir.layout import Formation, Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import DecodeProblem, Problem
from liquidcp_compiler.ir.problem_fields import flag, whole_number
from liquidcp_compiler.passes.all_local import AllLocal
from liquidcp_compiler.passes.base import AnyPass, Pass, PassContext
from liquidcp_compiler.passes.buddy_ring import BuddyRing
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.explicit import Explicit
from liquidcp_compiler.passes.insert_sync import InsertSync
from liquidcp_compiler.passes.insert_transfers import InsertTransfers
from liquidcp_compiler.passes.lower import check_lengths, lower
from liquidcp_compiler.passes.magi_chunks import MagiChunks
from liquidcp_compiler.passes.megatron_hybrid import MegatronHybrid
from liquidcp_compiler.passes.order import Order
from liquidcp_compiler.passes.pipeline import Pipeline
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_compiler.passes.zeppelin import Zeppelin
from liquidcp_compiler.passes.zigzag_all import ZigzagAll

PLACEMENTS: dict[str, type] = {
    p.name: p for p in (ZigzagAll, Explicit, Dcp, BuddyRing, MegatronHybrid, Zeppelin, AllLocal, MagiChunks)
}

#: More ranks than any one host or pod has; a world beyond it is a slip of the pen.
MAX_WORLD = 4096


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Everything one compilation made.

    Fields: ``plan``; ``graph``, the synced graph it was packed from; ``seconds`` by pass.
    """

    plan: Plan
    graph: SyncedGraph
    seconds: dict[str, float]


def plan(problem: Problem | AnyGraph, cp_size: int, **options) -> Plan:
    """Plans a batch: all host work on lengths, once a batch; run it once a layer.

    ``problem`` may be a Problem, or a graph that is authored, placed, planned or synced already: the passes that it
    has behind it are left out. ``options``: see :func:`compile_plan`.
    """
    return compile_plan(problem, cp_size, **options).plan


def compile_plan(
    problem: Problem | AnyGraph,
    cp_size: int,
    *,
    placement: str | AnyPass | None = None,
    passes: tuple[AnyPass, ...] | None = None,
    order: str | None = None,
    deterministic: bool = False,
    verify: str | None = None,
    workspace_limit: int | None = None,
) -> Compiled:
    """Like :func:`plan`, and keeps the graph and the time each pass took.

    Args:
        cp_size: number of ranks.
        placement: a name (``zigzag-all``, ``dcp``) or a placement pass; None takes ``zigzag-all`` for prefill and
            ``dcp`` for decode problems.
        passes: the whole pipeline, instead of the default one; must end with a synced graph.
        order: policy of the pass ``order``, ``fifo`` (None too) or ``longest-first``.
        deterministic: static formation and merges in plan order: bit-identical runs. A graph or passes that make
            anything else are refused.
        verify: ``each``, ``final`` or ``off``; None takes LIQUIDCP_VERIFY.
        workspace_limit: most bytes of buffers a rank may need (``Plan.workspace_bytes``).

    Raises InvalidField, PassError, VerificationError, OutOfResources.
    """
    world = check_world(cp_size)
    _check_options(problem, passes, workspace_limit)
    deterministic = flag("deterministic", deterministic)
    graph = author(problem, loc=caller()) if isinstance(problem, Problem) else problem
    check_lengths(graph.problem)
    if passes is not None and placement is not None:
        raise InvalidField("placement", placement, "either placement or passes, not both")
    if passes is not None and order is not None:
        raise InvalidField("order", order, "either order or passes, not both", "In passes: order{policy=...}")
    chosen = passes if passes is not None else passes_for(graph, placement, deterministic, order)
    pipeline = Pipeline(passes=chosen, verify=verify)
    synced, seconds = pipeline.run(graph, PassContext(world=world, workspace_limit=workspace_limit))
    if not isinstance(synced, SyncedGraph):
        raise PassError(
            chosen[-1].name if chosen else "pipeline", f"ends {synced.stage}; the last pass must be insert-sync"
        )
    if synced.world != world:
        raise InvalidField("cp_size", world, f"{synced.world}, as the graph says")
    if deterministic:
        _check_deterministic(synced)
    plan = lower(synced, pipeline.spec)
    if workspace_limit is not None and plan.workspace_bytes() > workspace_limit:
        hint = "Use more ranks, smaller tiles, or a larger workspace_limit"
        raise OutOfResources("workspace_limit, bytes of a rank", plan.workspace_bytes(), workspace_limit, hint)
    return Compiled(plan=plan, graph=synced, seconds=seconds)


def _check_options(problem: object, passes: object, workspace_limit: object) -> None:
    """What a type checker would say, where nobody asked one. Raises InvalidField."""
    if not isinstance(problem, Problem | AuthoredGraph | TaskGraph):
        raise InvalidField("problem", problem, "a PrefillProblem, a DecodeProblem, or a graph")
    if passes is not None and (not isinstance(passes, tuple | list) or not all(isinstance(p, Pass) for p in passes)):
        raise InvalidField("passes", passes, "a tuple of passes", "parse_pipeline makes one of text")
    if workspace_limit is not None:
        whole_number("workspace_limit", workspace_limit)


def _check_deterministic(graph: SyncedGraph) -> None:
    """Raises InvalidField for a graph whose results depend on the order in which things happen."""
    t = graph.tasks
    _, lo, hi = t.writes.of_space(Space.OUT)
    writers = np.bincount(expand(lo, hi), minlength=len(graph.q_tiles))
    ready = np.flatnonzero(t.formation == Formation.READY)
    why = ""
    if len(ready):
        why = f"{graph.task_name(int(ready[0]))} merges keys in the order in which they arrive"
    elif (writers > 1).any():
        why = f"several tasks merge into out {int(np.argmax(writers > 1))}, in the order in which they end"
    if why:
        hint = "Form statically, and merge with one reduction an output"
        raise InvalidField("deterministic", True, f"False with this graph or these passes, since {why}", hint)


def passes_for(
    graph: AnyGraph, placement: str | AnyPass | None, deterministic: bool = False, order: str | None = None
) -> tuple[AnyPass, ...]:
    """The passes that a graph still has before it, in order."""
    if not isinstance(graph, AuthoredGraph):
        if placement is not None:
            raise InvalidField("placement", placement, "nothing: the graph is placed already")
        chain: list = []
    else:
        chain = [placement_pass(graph.problem, placement)]
    if isinstance(graph, AuthoredGraph | PlacedGraph):
        # Transfers come from the placement alone, before anything is split or ordered.
        chain.append(InsertTransfers())
    if not isinstance(graph, SyncedGraph):
        if not isinstance(graph, PlannedGraph):
            # A graph that comes planned keeps its own formation and splits, and with fifo its order.
            chain.append(Coalesce(formation="static" if deterministic else "ready"))
            chain.append(SplitKv())
        # Queue order last: it must see every task. Signals after it: their waits follow the final tasks.
        chain += [Order() if order is None else _order_pass(order), InsertSync()]
    elif order is not None:
        raise InvalidField("order", order, "nothing: the graph is ordered already")
    return tuple(chain)


def placement_pass(problem: Problem, placement: str | AnyPass | None) -> AnyPass:
    """The placement pass for a name, or for the kind of problem if there is none."""
    if placement is None:
        placement = Dcp.name if isinstance(problem, DecodeProblem) else ZigzagAll.name
    if isinstance(placement, Pass):
        return placement
    if not isinstance(placement, str) or placement not in PLACEMENTS:
        raise InvalidField("placement", placement, f"{', '.join(PLACEMENTS)}, or a placement pass")
    return PLACEMENTS[placement]()


def _order_pass(policy: str) -> Order:
    """The pass ``order`` with a policy. Raises InvalidField."""
    try:
        return Order(policy=policy)
    except InvalidField as error:
        raise InvalidField("order", policy, error.allowed) from None


def check_world(cp_size: object) -> int:
    """A number of ranks as an int. Raises InvalidField."""
    try:
        return whole_number("cp_size", cp_size, 1, MAX_WORLD)
    except InvalidField:
        raise InvalidField("cp_size", cp_size, f"a whole number of ranks, 1 to {MAX_WORLD}") from None
