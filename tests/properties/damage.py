"""Plans and graphs with one thing wrong, chosen by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from liquidcp_compiler.ir.graph import SyncedGraph
from liquidcp_compiler.ir.intervals import AccessTable
from liquidcp_compiler.ir.layout import Formation, SignalKind, Space
from liquidcp_compiler.ir.plan import Plan, plan_digest
from liquidcp_compiler.ir.tasks import TaskKind

Rng = np.random.Generator
PlanDamage = Callable[[Plan, Rng], Plan]
GraphDamage = Callable[[SyncedGraph, Rng], SyncedGraph]


class NothingToDamage(Exception):
    """The plan has nothing of the kind: another plan must show this damage."""


def rebuilt(plan: Plan, **tables: np.ndarray) -> Plan:
    """The plan with some tables of all ranks replaced by others of the same length; header and fingerprint follow."""
    return _rebuilt(plan, tables, {})


def without_row(plan: Plan, table: str, index: int) -> Plan:
    """The plan without one row (index over all ranks)."""
    return _resized(plan, table, np.delete(plan.tables[table], index), index, -1)


def with_row_twice(plan: Plan, table: str, index: int) -> Plan:
    """The plan with one row repeated."""
    rows = plan.tables[table]
    return _resized(plan, table, np.insert(rows, index, rows[index]), index, 1)


def edited(plan: Plan, table: str, index: int, **values: int) -> Plan:
    """The plan with some fields of one row (index over all ranks) changed."""
    rows = plan.tables[table].copy()
    for name, value in values.items():
        rows[name][index] = value
    return rebuilt(plan, **{table: rows})


def _resized(plan: Plan, table: str, rows: np.ndarray, index: int, change: int) -> Plan:
    offsets = plan.offsets[table].copy()
    offsets[rank_of(plan, table, index) + 1 :] += change
    return _rebuilt(plan, {table: rows}, {table: offsets})


def _rebuilt(plan: Plan, tables: dict[str, np.ndarray], offsets: dict[str, np.ndarray]) -> Plan:
    data, headers = {**plan.tables, **tables}, plan.headers.copy()
    headers["fingerprint"] = plan_digest(plan.problem, plan.spec, plan.tile, data)
    for table, rows in offsets.items():
        headers[f"num_{table}"] = np.diff(rows)
    return replace(plan, tables=data, offsets={**plan.offsets, **offsets}, headers=headers)


def rank_of(plan: Plan, table: str, index: int) -> int:
    """Rank of a row."""
    return int(np.searchsorted(plan.offsets[table], index, side="right")) - 1


def pick(rng: Rng, chosen: np.ndarray) -> int:
    """One index where ``chosen`` holds. Raises NothingToDamage."""
    places = np.flatnonzero(chosen)
    if not len(places):
        raise NothingToDamage
    return int(rng.choice(places))


def _other(rng: Rng, value: int, count: int) -> int:
    """A number below ``count`` that is not ``value``. Raises NothingToDamage."""
    if count < 2:
        raise NothingToDamage
    return int((value + rng.integers(1, count)) % count)


def _any_row(rng: Rng, plan: Plan, table: str) -> int:
    return pick(rng, np.ones(len(plan.tables[table]), bool))


# -- Damage to plans


def drop_transfer(plan: Plan, rng: Rng) -> Plan:
    return without_row(plan, "transfers", _any_row(rng, plan, "transfers"))


def double_transfer(plan: Plan, rng: Rng) -> Plan:
    return with_row_twice(plan, "transfers", _any_row(rng, plan, "transfers"))


def double_row(plan: Plan, rng: Rng) -> Plan:
    return with_row_twice(plan, "rows", _any_row(rng, plan, "rows"))


def drop_row(plan: Plan, rng: Rng) -> Plan:
    return without_row(plan, "rows", _any_row(rng, plan, "rows"))


def drop_reduction(plan: Plan, rng: Rng) -> Plan:
    return without_row(plan, "reductions", _any_row(rng, plan, "reductions"))


def missing_signal(plan: Plan, rng: Rng) -> Plan:
    """A transfer that sets its rank's READY instead of its own signal, or a prefix that is not published."""
    return edited(plan, "transfers", _any_row(rng, plan, "transfers"), signal=0)


def expect_too_much(plan: Plan, rng: Rng) -> Plan:
    signals = plan.tables["signals"]
    data = np.isin(signals["kind"], (SignalKind.TILE, SignalKind.STATE, SignalKind.RESULT))
    i = pick(rng, data)
    return edited(plan, "signals", i, expected=int(signals["expected"][i]) + 1)


def wrong_arrivals(plan: Plan, rng: Rng) -> Plan:
    sequences = plan.tables["sequences"]
    i = pick(rng, sequences["num_arrivals"] > 0)
    return edited(plan, "sequences", i, num_arrivals=int(sequences["num_arrivals"][i]) + int(rng.choice((-1, 1))))


def other_peer(plan: Plan, rng: Rng) -> Plan:
    i = _any_row(rng, plan, "transfers")
    return edited(plan, "transfers", i, peer=_other(rng, int(plan.tables["transfers"]["peer"][i]), plan.world))


def other_source(plan: Plan, rng: Rng) -> Plan:
    i = _any_row(rng, plan, "transfers")
    row = plan.tables["transfers"][i]
    table = {Space.Q: "q_tiles", Space.KV: "kv_tiles", Space.STATE: "states"}[Space(int(row["space"]))]
    return edited(plan, "transfers", i, source=_other(rng, int(row["source"]), len(plan.table(table, row["peer"]))))


def swap_targets(plan: Plan, rng: Rng) -> Plan:
    """Two transfers of a rank bring each other's tile."""
    rows = plan.tables["transfers"].copy()
    i = _any_row(rng, plan, "transfers")
    rank = rank_of(plan, "transfers", i)
    here = np.arange(len(rows))
    mine = (here >= plan.offsets["transfers"][rank]) & (here < plan.offsets["transfers"][rank + 1])
    j = pick(rng, mine & (rows["space"] == rows["space"][i]) & (here != i))
    rows["target"][[i, j]] = rows["target"][[j, i]]
    return rebuilt(plan, transfers=rows)


def shrink_region(plan: Plan, rng: Rng) -> Plan:
    """A row without its last own tile, its last arrival, or the last tile of its list."""
    rows = plan.tables["rows"]
    i = pick(rng, rows["num_kv_tiles"] > 1)
    row, fields = rows[i], {"num_kv_tiles": int(rows["num_kv_tiles"][i]) - 1}
    if row["formation"] == Formation.READY:
        own = row["local_hi"] > row["local_lo"]
        fields |= {"local_hi": int(row["local_hi"]) - 1} if own else {"num_arrivals": int(row["num_arrivals"]) - 1}
    return edited(plan, "rows", i, **fields)


def other_kv_tile(plan: Plan, rng: Rng) -> Plan:
    """A static row reads another tile in place of one of its own."""
    rows = plan.tables["rows"]
    i = pick(rng, (rows["formation"] == Formation.STATIC) & (rows["num_kv_tiles"] > 0))
    rank = rank_of(plan, "rows", i)
    at = int(plan.offsets["kv_list"][rank] + rows["kv_list"][i] + rng.integers(rows["num_kv_tiles"][i]))
    kv_list = plan.tables["kv_list"].copy()
    kv_list[at] = _other(rng, int(kv_list[at]), len(plan.table("kv_tiles", rank)))
    return rebuilt(plan, kv_list=kv_list)


def wrong_merge_count(plan: Plan, rng: Rng) -> Plan:
    counts = plan.tables["q_tiles"]["merge_count"]
    i = pick(rng, counts > 0)
    return edited(plan, "q_tiles", i, merge_count=int(counts[i]) + int(rng.choice((-1, 1))))


def reduction_input_twice(plan: Plan, rng: Rng) -> Plan:
    """A reduction combines one state twice, in place of another or of one of another reduction."""
    reductions = plan.tables["reductions"]
    i = pick(rng, reductions["num_states"] > 0)
    rank = rank_of(plan, "reductions", i)
    first = int(plan.offsets["state_list"][rank])
    state_list = plan.tables["state_list"].copy()
    at = first + int(reductions["state_list"][i] + rng.integers(reductions["num_states"][i]))
    mine = state_list[first : int(plan.offsets["state_list"][rank + 1])]
    state_list[at] = mine[pick(rng, mine != state_list[at])]
    return rebuilt(plan, state_list=state_list)


def other_class(plan: Plan, rng: Rng) -> Plan:
    """A front arrival is published as a back one, or the other way round."""
    transfers = plan.tables["transfers"]
    i = pick(rng, transfers["sequence"] >= 0)
    return edited(plan, "transfers", i, arrival_class=1 - int(transfers["arrival_class"][i]))


def tau_of_zero(plan: Plan, rng: Rng) -> Plan:
    i = pick(rng, plan.tables["rows"]["formation"] == Formation.READY)
    return edited(plan, "rows", i, **{str(rng.choice(("tau_min", "tau_max"))): 0})


def other_query_tile(plan: Plan, rng: Rng) -> Plan:
    i = _any_row(rng, plan, "rows")
    rank, row = rank_of(plan, "rows", i), plan.tables["rows"][i]
    q_list = plan.tables["q_list"].copy()
    at = int(plan.offsets["q_list"][rank] + row["q_lo"])
    q_list[at] = _other(rng, int(q_list[at]), len(plan.table("q_tiles", rank)))
    return rebuilt(plan, q_list=q_list)


def other_target(plan: Plan, rng: Rng) -> Plan:
    """A row writes another state."""
    rows = plan.tables["rows"]
    i = pick(rng, rows["target_space"] == Space.STATE)
    rank = rank_of(plan, "rows", i)
    target_list = plan.tables["target_list"].copy()
    at = int(plan.offsets["target_list"][rank] + rows["target_list"][i])
    target_list[at] = _other(rng, int(target_list[at]), len(plan.table("states", rank)))
    return rebuilt(plan, target_list=target_list)


def no_wait_for_a_state(plan: Plan, rng: Rng) -> Plan:
    """A pull of a state that does not wait until the peer has computed it."""
    transfers = plan.tables["transfers"]
    return edited(plan, "transfers", pick(rng, transfers["space"] == Space.STATE), wait_signal=-1)


PLAN_DAMAGE: dict[str, PlanDamage] = {
    f.__name__: f
    for f in (
        drop_transfer,
        double_transfer,
        drop_row,
        double_row,
        drop_reduction,
        missing_signal,
        expect_too_much,
        wrong_arrivals,
        other_peer,
        other_source,
        swap_targets,
        shrink_region,
        other_kv_tile,
        wrong_merge_count,
        reduction_input_twice,
        other_class,
        tau_of_zero,
        other_query_tile,
        other_target,
        no_wait_for_a_state,
    )
}


# -- Damage to graphs


def _with_tasks(graph: SyncedGraph, **columns: Any) -> SyncedGraph:
    changed = graph.with_changes(tasks=graph.tasks.with_columns(**columns))
    assert isinstance(changed, SyncedGraph)
    return changed


def _with_column(graph: SyncedGraph, name: str, index: int, value: int) -> SyncedGraph:
    column = getattr(graph.tasks, name).copy()
    column[index] = value
    return _with_tasks(graph, **{name: column})


def _kind(graph: SyncedGraph, kind: TaskKind) -> np.ndarray:
    return graph.tasks.kind == kind


def _moved_reads(graph: SyncedGraph, entry: int, lo: int, hi: int) -> SyncedGraph:
    reads = graph.tasks.reads
    los, his = reads.lo.copy(), reads.hi.copy()
    los[entry], his[entry] = los[entry] + lo, his[entry] + hi
    return _with_tasks(graph, reads=AccessTable(reads.ptr, reads.space, los, his))


def _read_entry(graph: SyncedGraph, rng: Rng, kind: TaskKind, space: Space, least: int) -> int:
    reads = graph.tasks.reads
    chosen = (graph.tasks.kind[reads.row] == kind) & (reads.space == space) & (reads.hi - reads.lo >= least)
    return pick(rng, chosen)


def shrink_reads(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    """A compute leaves out the first or the last tile of a run."""
    entry = _read_entry(graph, rng, TaskKind.COMPUTE, Space.KV, 2)
    return _moved_reads(graph, entry, 1, 0) if rng.integers(2) else _moved_reads(graph, entry, 0, -1)


def wrong_rank_of_compute(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    i = pick(rng, _kind(graph, TaskKind.COMPUTE))
    return _with_column(graph, "rank", i, _other(rng, int(graph.tasks.rank[i]), graph.world))


def wrong_rank_of_transfer(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    i = pick(rng, _kind(graph, TaskKind.TRANSFER))
    return _with_column(graph, "rank", i, _other(rng, int(graph.tasks.rank[i]), graph.world))


def wrong_peer_of_transfer(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    i = pick(rng, _kind(graph, TaskKind.TRANSFER))
    return _with_column(graph, "peer", i, _other(rng, int(graph.tasks.peer[i]), graph.world))


def move_reduction_inputs(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    """A reduction reads one state more than its own, or one less."""
    entry = _read_entry(graph, rng, TaskKind.REDUCTION, Space.STATE, 1)
    reads = graph.tasks.reads
    shorter = reads.hi[entry] == len(graph.states) or (reads.hi[entry] - reads.lo[entry] > 1 and rng.integers(2))
    return _moved_reads(graph, entry, 0, -1 if shorter else 1)


def zero_tau_min(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    return _with_column(graph, "tau_min", pick(rng, graph.tasks.formation == Formation.READY), 0)


def tau_max_below_tau_min(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    i = pick(rng, graph.tasks.formation == Formation.READY)
    return _with_column(graph, "tau_max", i, int(graph.tasks.tau_min[i]) - 1)


def static_row_among_ready_ones(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    t, q = graph.tasks, graph.q_tiles
    ready = np.flatnonzero(t.formation == Formation.READY)
    key = t.rank[ready] * (q.sequence.max(initial=0) + 1) + q.sequence[t.reads.lo[t.reads.ptr[ready]]]
    i = int(ready[pick(rng, np.bincount(key, minlength=1)[key] > 1)]) if len(ready) else pick(rng, ready > 0)
    return _with_column(graph, "formation", i, Formation.STATIC)


def set_removed(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    s = graph.signals
    i = pick(rng, np.ones(len(s.set_task), bool))
    signals = replace(s, set_task=np.delete(s.set_task, i), set_signal=np.delete(s.set_signal, i))
    return replace(graph, signals=signals)


def wait_removed(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    s = graph.signals
    i = pick(rng, np.ones(len(s.wait_task), bool))
    columns = {n: np.delete(getattr(s, n), i) for n in ("wait_task", "wait_signal", "wait_value")}
    return replace(graph, signals=replace(s, **columns))


def wait_for_more(graph: SyncedGraph, rng: Rng) -> SyncedGraph:
    s = graph.signals
    value = s.wait_value.copy()
    value[pick(rng, np.ones(len(value), bool))] += 1000
    return replace(graph, signals=replace(s, wait_value=value))


GRAPH_DAMAGE: dict[str, GraphDamage] = {
    f.__name__: f
    for f in (
        shrink_reads,
        wrong_rank_of_compute,
        wrong_rank_of_transfer,
        wrong_peer_of_transfer,
        move_reduction_inputs,
        zero_tau_min,
        tau_max_below_tau_min,
        static_row_among_ready_ones,
        set_removed,
        wait_removed,
        wait_for_more,
    )
}
