"""The verifier accepts what the passes make, and names rule and task of what is broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from liquidcp_compiler.errors import VerificationError
from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.dependencies import items_of
from liquidcp_compiler.ir.graph import SyncedGraph, TaskGraph
from liquidcp_compiler.ir.intervals import AccessTable
from liquidcp_compiler.ir.layout import Formation, Role, SignalKind, Space
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.ir.verifier import RULES, verify
from tests.graphs import decode_graph, decode_problem, prefill_graph, prefill_problem


def test_what_the_passes_make_is_valid():
    for graph in (prefill_graph(), prefill_graph(formation="static"), decode_graph()):
        verify(graph)
    verify(author(prefill_problem()))
    verify(author(decode_problem()))


def test_rules_have_names_of_their_own():
    for rules in RULES.values():
        names = [r.name for r in rules]
        assert len(set(names)) == len(names)


def broken(graph: TaskGraph, rule: str) -> VerificationError:
    """The error of verifying the graph, which must be of the rule."""
    with pytest.raises(VerificationError) as caught:
        verify(graph)
    assert caught.value.rule == rule, caught.value
    return caught.value


def first(graph: TaskGraph, kind: TaskKind) -> int:
    return int(graph.tasks.of_kind(kind)[0])


def with_tasks(graph: TaskGraph, **columns) -> TaskGraph:
    return graph.with_changes(tasks=graph.tasks.with_columns(**columns))


def edited(column: np.ndarray, index: int, value: int) -> np.ndarray:
    out = column.copy()
    out[index] = value
    return out


def edited_access(access: AccessTable, entry: int, lo: int, hi: int) -> AccessTable:
    return AccessTable(access.ptr, access.space, edited(access.lo, entry, lo), edited(access.hi, entry, hi))


def test_dropped_transfer_leaves_a_read_without_a_source():
    graph = prefill_graph()
    gone = first(graph, TaskKind.TRANSFER)
    keep = np.delete(np.arange(len(graph.tasks)), gone)
    error = broken(graph.with_changes(tasks=graph.tasks.take(keep)), "reads-available")
    assert "compute @0" in error.task
    assert "nothing writes there" in str(error)


def test_doubled_region_counts_keys_twice():
    graph = decode_graph()
    t = graph.tasks
    i = int(np.flatnonzero((t.role == Role.HISTORY) & (t.kind == TaskKind.COMPUTE))[1])
    entry = int(t.reads.ptr[i]) + 1
    assert t.reads.space[entry] == Space.KV
    reads = edited_access(t.reads, entry, int(t.reads.lo[entry]) - 1, int(t.reads.hi[entry]))
    error = broken(with_tasks(graph, reads=reads), "pairs-covered-once")
    assert "covered twice" in str(error)
    assert error.task.startswith("%")


def test_shrunk_region_leaves_keys_out():
    graph = prefill_graph()
    t = graph.tasks
    i = int(t.of_kind(TaskKind.COMPUTE)[-1])
    entry = int(t.reads.ptr[i]) + 1
    reads = edited_access(t.reads, entry, int(t.reads.lo[entry]) + 1, int(t.reads.hi[entry]))
    error = broken(with_tasks(graph, reads=reads), "pairs-covered-once")
    assert "must be covered" in str(error)
    assert "compute" in error.task


def test_pull_from_a_rank_that_holds_nothing_of_it():
    graph = prefill_graph()
    t, index = graph.tasks, items_of(graph)
    for i in t.of_kind(TaskKind.TRANSFER):
        item = int(t.reads.lo[t.reads.ptr[i]])
        strangers = [r for r in range(4) if not index.owned[index.flat(Space.KV, r, item)]]
        strangers = [r for r in strangers if r != t.rank[i] and index.producer[index.flat(Space.KV, r, item)] < 0]
        if strangers:
            error = broken(with_tasks(graph, peer=edited(t.peer, int(i), strangers[0])), "source-holds-item")
            assert error.task.startswith(f"%{i} transfer kv")
            return
    raise AssertionError("every rank holds or pulls every tile")


def test_pull_from_a_rank_that_has_pulled_it_must_wait_for_that():
    graph = prefill_graph()
    t, index = graph.tasks, items_of(graph)
    for i in t.of_kind(TaskKind.TRANSFER):
        item = int(t.reads.lo[t.reads.ptr[i]])
        others = [r for r in range(4) if r != t.rank[i] and index.producer[index.flat(Space.KV, r, item)] >= 0]
        if others:
            relayed = with_tasks(graph, peer=edited(t.peer, int(i), others[0]))
            assert "without a wait" in str(broken(relayed, "reads-are-waited-for"))
            return
    raise AssertionError("no tile is pulled by two ranks")


def test_pull_of_what_the_rank_owns():
    graph = prefill_graph()
    t = graph.tasks
    i = first(graph, TaskKind.TRANSFER)
    own = int(np.flatnonzero(graph.kv_tiles.rank == t.rank[i])[0])
    entry = int(t.reads.ptr[i])
    reads, writes = (edited_access(a, entry, own, own + 1) for a in (t.reads, t.writes))
    broken(with_tasks(graph, reads=reads, writes=writes), "pulled-once")


def test_missing_set_of_a_signal():
    graph = prefill_graph()
    s = graph.signals
    i = int(np.flatnonzero(s.kind[s.set_signal] == SignalKind.PREFIX)[0])
    signals = replace(s, set_task=np.delete(s.set_task, i), set_signal=np.delete(s.set_signal, i))
    error = broken(graph.with_changes(signals=signals), "signals-are-set")
    assert "prefix of sequence" in str(error)
    assert "compute" in error.task


def test_missing_wait():
    graph = decode_graph()
    s = graph.signals
    i = int(np.flatnonzero(s.kind[s.wait_signal] == SignalKind.STATE)[0])
    columns = {c: np.delete(getattr(s, c), i) for c in ("wait_task", "wait_signal", "wait_value")}
    error = broken(graph.with_changes(signals=replace(s, **columns)), "reads-are-waited-for")
    assert "without a wait" in str(error)
    assert "reduce" in error.task


def test_pull_without_ready():
    graph = prefill_graph()
    s = graph.signals
    i = int(np.flatnonzero(s.kind[s.wait_signal] == SignalKind.READY)[0])
    columns = {c: np.delete(getattr(s, c), i) for c in ("wait_task", "wait_signal", "wait_value")}
    error = broken(graph.with_changes(signals=replace(s, **columns)), "reads-are-waited-for")
    assert "READY" in str(error)


def test_wait_for_more_than_will_come():
    graph = prefill_graph()
    s = graph.signals
    i = int(np.flatnonzero(s.kind[s.wait_signal] == SignalKind.PREFIX)[0])
    signals = replace(s, wait_value=edited(s.wait_value, i, int(s.wait_value[i]) + 50))
    error = broken(graph.with_changes(signals=signals), "signals-are-set")
    assert "it ends at" in str(error)


def test_compute_on_another_rank():
    graph = prefill_graph()
    i = first(graph, TaskKind.COMPUTE)
    rank = (int(graph.tasks.rank[i]) + 1) % graph.world
    error = broken(with_tasks(graph, rank=edited(graph.tasks.rank, i, rank)), "outputs-at-home")
    assert "belongs to rank" in str(error)


def test_state_merged_twice():
    graph = decode_graph()
    t = graph.tasks
    rows = t.of_kind(TaskKind.REDUCTION)
    entry = int(t.reads.ptr[rows[1]])
    reads = edited_access(t.reads, entry, int(t.reads.lo[entry]) - 1, int(t.reads.hi[entry]))
    error = broken(with_tasks(graph, reads=reads), "states-reach-their-output")
    assert "count twice" in str(error)


def test_ready_threshold_of_zero():
    graph = prefill_graph()
    i = first(graph, TaskKind.COMPUTE)
    error = broken(with_tasks(graph, tau_min=edited(graph.tasks.tau_min, i, 0)), "formation-legal")
    assert "tau_min" in str(error)


def test_ready_rows_where_arrivals_are_no_prefix():
    graph = prefill_graph(formation="static", mask={"type": "sliding_window", "left": 40, "right": 0})
    t = graph.tasks
    compute = t.kind == TaskKind.COMPUTE
    formation = np.where(compute, Formation.READY, t.formation).astype(np.uint8)
    ones = np.where(compute, 1, 0)
    error = broken(with_tasks(graph, formation=formation, tau_min=ones, tau_max=ones), "formation-legal")
    assert "prefix" in str(error)


def test_two_tiles_in_one_slot():
    graph = prefill_graph()
    slot = edited(graph.kv_tiles.slot, 0, int(graph.kv_tiles.slot[0]) + 1)
    broken(graph.with_changes(kv_tiles=replace(graph.kv_tiles, slot=slot)), "slots-are-packed")


def test_owner_outside_the_world():
    graph = prefill_graph()
    rank = edited(graph.q_tiles.rank, 2, 9)
    broken(graph.with_changes(q_tiles=replace(graph.q_tiles, rank=rank)), "owners-exist")


def test_tokens_held_twice_or_not_at_all():
    graph = prefill_graph()
    position = edited(graph.kv_tiles.position, 1, 0)
    broken(graph.with_changes(kv_tiles=replace(graph.kv_tiles, position=position)), "tiles-partition-tokens")
    rows = edited(graph.kv_tiles.rows, 0, 5)
    broken(graph.with_changes(kv_tiles=replace(graph.kv_tiles, rows=rows)), "tiles-partition-tokens")


def test_queue_order_that_can_block_itself():
    """Two ranks: each pulls the other's result before the query tile that the other needs to make it."""
    graph = decode_graph(world=2, requests=((300, 3),))
    t = graph.tasks
    pulls = t.kind == TaskKind.TRANSFER
    row, _, _ = t.reads.of_space(Space.STATE)
    of_state = np.zeros(len(t), bool)
    of_state[row] = True
    order = np.lexsort((~of_state, ~pulls, t.rank))
    planned = synced_again(graph.with_changes(tasks=t.take(order)))
    error = broken(planned, "no-deadlock")
    assert error.task.startswith("%")


def synced_again(graph: TaskGraph) -> SyncedGraph:
    """The graph with signals derived anew."""
    from liquidcp_compiler.ir.graph import PlannedGraph
    from liquidcp_compiler.passes.base import PassContext
    from liquidcp_compiler.passes.insert_sync import InsertSync

    return InsertSync().apply(graph.advance(PlannedGraph), PassContext(world=graph.world))


def test_cycle_of_reductions():
    graph = decode_graph()
    t = graph.tasks
    rows = t.of_kind(TaskKind.REDUCTION)
    a = int(rows[0])
    r, w = int(t.reads.ptr[a]), int(t.writes.ptr[a])
    state = int(t.writes.lo[w])
    reads = edited_access(t.reads, r, state, state + 1)
    with pytest.raises(VerificationError) as caught:
        verify(with_tasks(graph, reads=reads))
    assert caught.value.rule in ("states-reach-their-output", "reads-available")


def test_backward_tasks_are_refused():
    graph = prefill_graph()
    i = first(graph, TaskKind.COMPUTE)
    error = broken(with_tasks(graph, direction=edited(graph.tasks.direction, i, 1)), "task-shape")
    assert "forward" in str(error)


def test_operand_that_does_not_exist():
    graph = prefill_graph()
    t = graph.tasks
    reads = edited_access(t.reads, 0, 500, 501)
    writes = edited_access(t.writes, 0, 500, 501)
    error = broken(with_tasks(graph, reads=reads, writes=writes), "operands-exist")
    assert "kv 500 does not exist" in str(error)


def test_regions_that_overlap_or_leave_pairs_out():
    graph = author(prefill_problem())
    regions = graph.regions
    short = replace(regions, kv_hi=edited(regions.kv_hi, 0, 10))
    with pytest.raises(VerificationError, match="regions-cover-once"):
        verify(replace(graph, regions=short))
    outside = replace(regions, q_hi=edited(regions.q_hi, 0, 301))
    with pytest.raises(VerificationError, match="regions-in-bounds"):
        verify(replace(graph, regions=outside))


def test_buffers_over_the_limit():
    graph = prefill_graph()
    with pytest.raises(VerificationError, match="buffers-within-limit"):
        verify(graph, workspace_limit=1000)
    verify(graph, workspace_limit=10**9)


def test_only_what_a_pass_changed_is_checked_again():
    graph = prefill_graph()
    bad = graph.with_changes(tasks=graph.tasks.with_columns(tau_min=graph.tasks.tau_min - 5))
    verify(bad, before=bad)
    with pytest.raises(VerificationError, match="formation-legal"):
        verify(bad, before=graph)
