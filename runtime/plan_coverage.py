"""Do a plan's compute rows cover every query-key pair that the mask shows, and none twice?

The same rule as the verifier's for graphs, over the packed tables: tile by tile, with runs of KV tiles in the graph's
numbers rather than pairs.
"""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.errors import PlanError, ScheduleError
from liquidcp_compiler.ir.intervals import IntArray, expand, merge_sorted
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.regions import needed_tiles
from liquidcp_compiler.ir.tiles import TileTable
from liquidcp_runtime.event_tables import CoreTables, rank_of, row_q_tiles

Runs = tuple[IntArray, IntArray, IntArray]


def check_coverage(plan: Plan, tables: CoreTables) -> None:
    """Raise ScheduleError, naming a compute row, for the first pair of tiles that is computed twice or not at all."""
    q_tiles, kv_tiles = _tiles(plan, "q_tiles"), _tiles(plan, "kv_tiles")
    row_of_q, _, q_index = row_q_tiles(tables)
    q_id = plan.tables["q_tiles"]["tile"][q_index].astype(np.int64)
    row, lo, hi = _row_runs(plan, tables)
    first = np.searchsorted(row_of_q, row)
    count = np.searchsorted(row_of_q, row, "right") - first
    entry, q = np.repeat(np.arange(len(row)), count), q_id[expand(first, first + count)]
    order = np.lexsort((lo[entry], q))
    q, row, lo, hi = q[order], row[entry][order], lo[entry][order], hi[entry][order]
    twice = np.flatnonzero((q[1:] == q[:-1]) & (lo[1:] < hi[:-1]))
    if len(twice):
        i = int(twice[0]) + 1
        message = f"double contribution: kv {lo[i]} for q {q[i]} is also in {_row_name(plan, int(row[i - 1]))[1]}"
        raise ScheduleError(*_row_name(plan, int(row[i])), message)
    need_q, need_lo, need_hi = needed_tiles(
        plan.problem, q_tiles.sequence, q_tiles.position, q_tiles.position + q_tiles.rows, kv_tiles
    )
    got_q, got_lo, got_hi = merge_sorted(q, lo, hi)
    big = len(kv_tiles) + 1
    at = np.searchsorted(got_q * big + got_lo, need_q * big + need_lo, "right") - 1
    covered = at >= 0
    if len(got_q):
        covered &= (got_q[at] == need_q) & (got_hi[at] >= need_hi)
    if not covered.all():
        i = int(np.flatnonzero(~covered)[0])
        where = _reader(plan, row_of_q[q_id == need_q[i]], int(kv_tiles.rank[need_lo[i]]), int(q_tiles.rank[need_q[i]]))
        message = f"missing contribution: not all of kv {need_lo[i]}:{need_hi[i]} is computed for q {need_q[i]}"
        raise ScheduleError(*(where or (int(q_tiles.rank[need_q[i]]), f"output of q {need_q[i]}")), message)


def _tiles(plan: Plan, table: str) -> TileTable:
    """The graph's tiles of one space, by number."""
    rows = plan.tables[table]
    number, place = np.unique(rows["tile"], return_index=True)
    if not np.array_equal(number, np.arange(len(number))):
        raise PlanError(f"{table}: the numbers of its tiles are not 0 to {len(number) - 1}; make the plan again")
    rank = np.repeat(np.arange(plan.world), np.diff(plan.offsets[table]))[place]
    rows = rows[place]
    sequence = plan.tables["sequences"]["sequence"][plan.offsets["sequences"][rank] + rows["sequence"]]
    shard = {n: rows[n].astype(np.int64) for n in ("interleave", "group", "phase") if table == "kv_tiles"}
    return TileTable.make(
        sequence=sequence.astype(np.int64),
        position=rows["position"].astype(np.int64),
        rows=rows["rows"].astype(np.int64),
        rank=rows["owner"].astype(np.int64),
        num_heads=plan.problem.num_heads_kv,
        **shard,
    )


def _row_runs(plan: Plan, tables: CoreTables) -> Runs:
    """(row, lo, hi): runs of KV tiles, by number, that each compute row reads."""
    listed = np.where(tables.row_ready, 0, tables.row_tiles)
    row = np.repeat(np.arange(len(listed)), listed)
    kv = tables.kv_list[expand(np.maximum(tables.row_kv_list, 0), np.maximum(tables.row_kv_list, 0) + listed)]
    own_row = np.repeat(np.arange(len(listed)), tables.row_own)
    own = expand(tables.row_local_lo, tables.row_local_lo + tables.row_own)
    row, kv = np.concatenate((row, own_row)), np.concatenate((kv, own))
    rows, kv_tiles = plan.tables["rows"], plan.tables["kv_tiles"]
    strange = np.flatnonzero(kv_tiles["sequence"][kv] != rows["sequence"][row])
    if len(strange):
        i = int(strange[0])
        raise ScheduleError(
            *_row_name(plan, int(row[i])), f"reads kv {kv_tiles['tile'][kv[i]]}, which is of another sequence"
        )
    parts = [_runs(row, kv_tiles["tile"][kv].astype(np.int64)), *_arrival_runs(plan, tables)]
    return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))  # pyright: ignore[reportReturnType]


def _arrival_runs(plan: Plan, tables: CoreTables) -> list[Runs]:
    """Runs of what ready rows take from the committed prefix: its front arrivals, or all of them."""
    pulls = np.flatnonzero(tables.transfer_signal < 0)
    rank = np.repeat(np.arange(plan.world), np.diff(plan.offsets["transfers"]))[pulls]
    tile = plan.tables["kv_tiles"]["tile"][
        plan.offsets["kv_tiles"][rank] + plan.tables["transfers"]["target"][pulls]
    ].astype(np.int64)
    sequence, back = tables.transfer_sequence[pulls], tables.transfer_back[pulls]
    ready = np.flatnonzero(tables.row_ready & (tables.row_arrivals > 0))
    of_row = tables.row_sequence[ready]
    takes_all = tables.row_arrivals[ready] == tables.sequence_arrivals[of_row]
    parts = []
    for chosen, users in ((np.ones(len(pulls), bool), ready[takes_all]), (~back, ready[~takes_all])):
        order = np.lexsort((tile[chosen], sequence[chosen]))
        key, lo, hi = _runs(sequence[chosen][order], tile[chosen][order])
        first = np.searchsorted(key, tables.row_sequence[users])
        count = np.searchsorted(key, tables.row_sequence[users], "right") - first
        run = expand(first, first + count)
        parts.append((np.repeat(users, count), lo[run], hi[run]))
    return parts


def _runs(row: IntArray, tile: IntArray) -> Runs:
    """Consecutive numbers of one row as intervals."""
    if not len(row):
        return row, tile, tile
    fresh = np.ones(len(row), bool)
    fresh[1:] = (row[1:] != row[:-1]) | (tile[1:] != tile[:-1] + 1)
    start = np.flatnonzero(fresh)
    end = np.append(start[1:], len(row)) - 1
    return row[start], tile[start], tile[end] + 1


def _row_name(plan: Plan, row: int) -> tuple[int, str]:
    """Rank and name of a compute row (index over all ranks)."""
    rank = rank_of(plan, "rows", row)
    return rank, plan.task_name(rank, "rows", row - int(plan.offsets["rows"][rank]))


def _reader(plan: Plan, rows: IntArray, kv_rank: int, q_rank: int) -> tuple[int, str] | None:
    """The row that should have read a tile: of the rank that holds it, else of the query tile's owner, else any."""
    names = [_row_name(plan, int(row)) for row in rows]
    return min(names, key=lambda n: (n[0] != kv_rank, n[0] != q_rank), default=None)
