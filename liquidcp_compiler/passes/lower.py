"""``lower``: from a synced graph to the packed plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import OutOfResources, PassError
from liquidcp_compiler.ir.arrivals import ArrivalClasses, arrival_classes
from liquidcp_compiler.ir.graph import SyncedGraph
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.layout import (
    HEADER,
    LAYOUT_HASH,
    TABLE_NAMES,
    MaskKind,
    SignalKind,
    Space,
)
from liquidcp_compiler.ir.local_numbers import LocalNumbers
from liquidcp_compiler.ir.mask_data import mask_data
from liquidcp_compiler.ir.plan import TABLE_DTYPES, Plan, plan_digest
from liquidcp_compiler.ir.problem import Problem
from liquidcp_compiler.ir.problem_fields import MAX_INT32
from liquidcp_compiler.ir.tasks import TaskKind
from liquidcp_compiler.passes.lower_tasks import lower_reductions, lower_rows, lower_transfers

Tables = dict[str, tuple[NDArray, NDArray]]


def lower(graph: SyncedGraph, pipeline: str = "") -> Plan:
    """Packs a synced graph into the tables that every executor reads.

    before:  tiles, states, tasks and signals of all ranks, by global number
    after:   per rank: the tiles and states it holds, its queues and its signals, by local number

    Raises PassError if the graph has no signals yet.
    """
    if not isinstance(graph, SyncedGraph):
        raise PassError("lower", f"needs a synced graph; this one is {graph.stage}")
    local = LocalNumbers(graph)
    classes = arrival_classes(graph)
    tables: Tables = {
        "sequences": _sequences(graph, classes),
        "mask_data": _mask_data(graph),
        "q_tiles": _q_tiles(graph, local),
        "kv_tiles": _kv_tiles(graph, local),
        "states": _states(graph, local),
        "transfers": lower_transfers(graph, local, classes),
        "signals": _signals(graph, local),
    }
    tables |= lower_rows(graph, local, classes)
    tables |= lower_reductions(graph, local)
    tables["staged_list"] = _staged_list(graph.world, tables)
    return _pack(graph, tables, pipeline)


def _pack(graph: SyncedGraph, tables: Tables, pipeline: str) -> Plan:
    """Tables and headers as a plan. Every entry of ``tables`` is (rows sorted by rank, rank of each row)."""
    ranks = np.arange(graph.world + 1)
    data = {name: np.ascontiguousarray(tables[name][0], TABLE_DTYPES[name]) for name in TABLE_NAMES}
    offsets = {name: np.searchsorted(tables[name][1], ranks).astype(np.int64) for name in TABLE_NAMES}
    spec = kernel_spec(graph)
    headers = np.zeros(graph.world, HEADER.dtype)
    headers["layout_hash"] = LAYOUT_HASH
    headers["fingerprint"] = plan_digest(graph.problem, spec, graph.tile, data)
    headers["rank"], headers["world"] = ranks[:-1], graph.world
    for space, tile_table in (("q", graph.q_tiles), ("kv", graph.kv_tiles)):
        own = tile_table.rank >= 0
        everywhere = ~own
        count = np.bincount(tile_table.rank[own], minlength=graph.world) + everywhere.sum()
        rows = np.bincount(tile_table.rank[own], tile_table.rows[own], minlength=graph.world)
        headers[f"num_local_{space}_tiles"] = count
        headers[f"num_local_{space}_tokens"] = rows + tile_table.rows[everywhere].sum()
    sequences, reductions = data["sequences"], data["reductions"]
    final = reductions["target_space"] == Space.OUT
    headers["num_history_reductions"] = np.bincount(tables["reductions"][1][~final], minlength=graph.world)
    headers["num_arrivals"] = np.bincount(tables["sequences"][1], sequences["num_arrivals"], minlength=graph.world)
    for name in TABLE_NAMES:
        headers[f"num_{name}"] = np.diff(offsets[name])
    pulled = np.diff(offsets["kv_tiles"]) - headers["num_local_kv_tiles"]
    headers["num_pulled_kv_tokens"] = pulled * graph.tile
    tiles = data["rows"]["q_hi"] - data["rows"]["q_lo"]
    headers["units_per_row"] = int(tiles.max(initial=1)) * graph.problem.num_heads_q
    return Plan(
        problem=graph.problem,
        world=graph.world,
        tile=graph.tile,
        spec=spec,
        pipeline=pipeline,
        tables=data,
        offsets=offsets,
        headers=headers,
    )


def kernel_spec(graph: SyncedGraph) -> KernelSpec:
    """The kernel that the graph needs."""
    p, t = graph.problem, graph.tasks
    return KernelSpec(
        head_dim=p.head_dim,
        dtype=p.dtype,
        block_q=graph.tile,
        block_kv=graph.tile,
        mask=MaskKind[p.mask.to_json()["type"].upper()],
        softcap=p.softcap is not None,
        reductions=bool((t.kind == TaskKind.REDUCTION).any()),
        head_pairs=p.group_size % 2 == 0,
    )


def _sequences(graph: SyncedGraph, classes: ArrivalClasses) -> tuple[NDArray, NDArray]:
    """Every rank lists every sequence, so that local and global sequence numbers are the same."""
    n = graph.problem.num_sequences
    rank = np.repeat(np.arange(graph.world), n)
    rows = np.zeros(len(rank), TABLE_DTYPES["sequences"])
    rows["sequence"] = np.tile(np.arange(n), graph.world)
    check_lengths(graph.problem)
    rows["q_length"] = np.tile(graph.problem.q_lengths, graph.world)
    rows["kv_length"] = np.tile(graph.problem.kv_lengths_array, graph.world)
    s = graph.signals
    prefix = s.kind == SignalKind.PREFIX
    key = s.rank[prefix] * n + s.item[prefix]
    rows["num_arrivals"][key] = s.expected[prefix]
    rows["num_front_arrivals"][key] = classes.num_front[key]
    ptr = mask_data(graph.problem.mask_bound)[1]
    rows["mask_base"], rows["mask_size"] = np.tile(ptr[:-1], graph.world), np.tile(np.diff(ptr), graph.world)
    base = np.cumsum(rows["num_arrivals"]) - rows["num_arrivals"]
    if n:
        rows["arrival_base"] = base - np.repeat(base[::n], n)
    return rows, rank


def _mask_data(graph: SyncedGraph) -> tuple[NDArray, NDArray]:
    """Every rank holds the masks of all sequences."""
    entries, _ = mask_data(graph.problem.mask_bound)
    _check_32_bits("entries of the batch's masks", np.array([len(entries)]))
    return np.tile(entries, graph.world), np.repeat(np.arange(graph.world), len(entries))


def _staged_list(world: int, tables: Tables) -> tuple[NDArray, NDArray]:
    """Own KV tiles that some peer pulls, by rank, in slot order.

    Also says in each transfer where in the peer's shard its tile begins, so that nobody has to read a peer's plan.
    """
    transfers, (kv_tiles, holder) = tables["transfers"][0], tables["kv_tiles"]
    first = np.searchsorted(holder, np.arange(world))
    kv = transfers["space"] == Space.KV
    source = first[transfers["peer"][kv]] + transfers["source"][kv]
    transfers["source_token"][kv] = kv_tiles["token"][source]
    pulled = np.zeros(len(kv_tiles), bool)
    pulled[source] = True
    staged = np.flatnonzero(pulled)
    return (staged - first[holder[staged]]).astype("<i4"), holder[staged]


def check_lengths(problem: Problem) -> None:
    """Raises OutOfResources for a sequence that no plan can hold."""
    for lengths in (problem.q_lengths, problem.kv_lengths_array):
        _check_32_bits("tokens of a sequence", lengths)


def _check_32_bits(what: str, values: NDArray) -> None:
    """Raises OutOfResources for values that the tables' 32-bit fields would wrap around."""
    limit, most = MAX_INT32, int(values.max(initial=0))
    if most > limit:
        raise OutOfResources(what, most, limit, "Cut the batch into shorter sequences, or use more ranks")


def _q_tiles(graph: SyncedGraph, local: LocalNumbers) -> tuple[NDArray, NDArray]:
    rank, tile, q = local.rank[Space.Q], local.item[Space.Q], graph.q_tiles
    rows = np.zeros(len(rank), TABLE_DTYPES["q_tiles"])
    for name in ("rows", "position", "sequence", "head", "num_heads"):
        rows[name] = getattr(q, name)[tile]
    token = local.tokens(Space.Q, q.rows)
    _check_32_bits("query tokens that one rank holds", token + rows["rows"])
    rows["token"], rows["signal"] = token, local.signal_of(Space.Q)
    rows["tile"], rows["owner"] = tile, q.rank[tile]
    finished_here = q.rank[tile] == rank
    rows["merge_count"] = np.where(finished_here, _merge_counts(graph)[tile], 0)
    return rows, rank


def _merge_counts(graph: SyncedGraph) -> NDArray:
    """Contributions every output waits for: KV tiles merged by computes (1 for an empty one) plus 1 a reduction."""
    t = graph.tasks
    row, lo, hi = t.reads.of_space(Space.KV)
    tiles = np.bincount(row, hi - lo, minlength=len(t)).astype(np.int64)
    weight = np.where(t.kind == TaskKind.COMPUTE, np.maximum(tiles, 1), 1)
    row, lo, hi = t.writes.of_space(Space.OUT)
    count = np.zeros(len(graph.q_tiles) + 1, np.int64)
    np.add.at(count, lo, weight[row])
    np.add.at(count, hi, -weight[row])
    return np.cumsum(count)[:-1]


def _kv_tiles(graph: SyncedGraph, local: LocalNumbers) -> tuple[NDArray, NDArray]:
    rank, tile, kv = local.rank[Space.KV], local.item[Space.KV], graph.kv_tiles
    rows = np.zeros(len(rank), TABLE_DTYPES["kv_tiles"])
    for name in ("rows", "position", "interleave", "group", "phase", "sequence"):
        rows[name] = getattr(kv, name)[tile]
    token = local.tokens(Space.KV, kv.rows, slot=graph.tile)
    _check_32_bits("KV tokens that one rank holds", token + rows["rows"])
    rows["token"], rows["signal"] = token, local.signal_of(Space.KV)
    rows["tile"], rows["owner"] = tile, kv.rank[tile]
    return rows, rank


def _states(graph: SyncedGraph, local: LocalNumbers) -> tuple[NDArray, NDArray]:
    rank, state = local.rank[Space.STATE], local.item[Space.STATE]
    rows = np.zeros(len(rank), TABLE_DTYPES["states"])
    rows["q_tile"] = local.of(Space.Q, rank, graph.states[state])
    rows["signal"], rows["state"] = local.signal_of(Space.STATE), state
    rows["owner"] = local.state_owner[state]
    return rows, rank


def _signals(graph: SyncedGraph, local: LocalNumbers) -> tuple[NDArray, NDArray]:
    s = graph.signals
    rows = np.zeros(len(s), TABLE_DTYPES["signals"])
    rows["kind"], rows["space"], rows["expected"] = s.kind, s.space, s.expected
    rows["item"] = np.where(s.kind == SignalKind.PREFIX, s.item, 0)
    for space in (Space.Q, Space.KV, Space.STATE):
        here = s.space == space
        rows["item"][here] = local.of(space, s.rank[here], s.item[here])
    return rows, s.rank
