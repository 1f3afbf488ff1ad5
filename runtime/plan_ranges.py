"""Are all indices in a plan's tables inside the tables that they index?"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from liquidcp_compiler.errors import PlanError
from liquidcp_compiler.ir.layout import Formation, Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_tables import rank_of

SPACE_TABLES = {Space.Q: "q_tiles", Space.KV: "kv_tiles", Space.STATE: "states"}

#: (table, field, table that it indexes, whether -1 is allowed)
_INDICES = (
    ("q_tiles", "sequence", "sequences", False),
    ("q_tiles", "signal", "signals", True),
    ("kv_tiles", "sequence", "sequences", False),
    ("kv_tiles", "signal", "signals", True),
    ("states", "q_tile", "q_tiles", False),
    ("states", "signal", "signals", True),
    ("transfers", "signal", "signals", True),
    ("transfers", "sequence", "sequences", True),
    ("rows", "sequence", "sequences", False),
    ("reductions", "q_tile", "q_tiles", False),
)


def ranks_of(plan: Plan, table: str) -> np.ndarray:
    """int64 [rows]: the rank of every row of a concatenated table."""
    return np.repeat(np.arange(plan.world), np.diff(plan.offsets[table]))


def _range_error(plan: Plan, table: str, field: str, bad: np.ndarray) -> NoReturn:
    index = int(np.flatnonzero(bad)[0])
    rank, row = rank_of(plan, table, index), plan.tables[table][index]
    task = f" of task %{row['task']}" if "task" in (row.dtype.names or ()) else ""
    local = index - int(plan.offsets[table][rank])
    raise PlanError(f"rank {rank}: {table}[{local}].{field} = {row[field]}{task} is out of range; make the plan again")


def check_ranges(plan: Plan) -> None:
    """Raise PlanError, naming rank, table, row and field, for the first index that lies outside its table."""
    for table, field, into, optional in _INDICES:
        values, size = plan.tables[table][field], np.diff(plan.offsets[into])[ranks_of(plan, table)]
        bad = (values >= size) | (values < (-1 if optional else 0))
        if bad.any():
            _range_error(plan, table, field, bad)
    for table, lo, hi, into in _intervals(plan):
        size = np.diff(plan.offsets[into])[ranks_of(plan, table)]
        bad = (lo[1] < 0) | (hi < lo[1]) | (hi > size)
        if bad.any():
            _range_error(plan, table, lo[0], bad)
    for name, into in (
        ("q_list", "q_tiles"),
        ("kv_list", "kv_tiles"),
        ("target_list", "states"),
        ("state_list", "states"),
    ):
        values, size = plan.tables[name], np.diff(plan.offsets[into])[ranks_of(plan, name)]
        if ((values < 0) | (values >= size)).any():
            raise PlanError(f"{name} holds an index outside {into}; make the plan again")
    transfers = plan.tables["transfers"]
    rank, peer = ranks_of(plan, "transfers"), transfers["peer"]
    bad = (peer < 0) | (peer >= plan.world)
    if bad.any():
        _range_error(plan, "transfers", "peer", bad)
    bad = transfers["wait_signal"] >= np.diff(plan.offsets["signals"])[peer]
    if bad.any():
        _range_error(plan, "transfers", "wait_signal", bad)
    known = np.isin(transfers["space"], list(SPACE_TABLES))
    if not known.all():
        _range_error(plan, "transfers", "space", ~known)
    for space, table in SPACE_TABLES.items():
        chosen = transfers["space"] == space
        for field, owner in (("source", peer), ("target", rank)):
            bad = chosen & ((transfers[field] < 0) | (transfers[field] >= np.diff(plan.offsets[table])[owner]))
            if bad.any():
                _range_error(plan, "transfers", field, bad)


def _intervals(plan: Plan) -> list[tuple[str, tuple[str, np.ndarray], np.ndarray, str]]:
    """(table, (field, first), end, table that it indexes) of every interval of indices; empty where a row has none."""
    rows, reductions = plan.tables["rows"], plan.tables["reductions"]
    static, ready = rows["formation"] == Formation.STATIC, rows["formation"] == Formation.READY
    to_state = rows["target_space"] == Space.STATE

    def interval(table: str, field: str, count: np.ndarray, used: np.ndarray, into: str):
        first = np.where(used, plan.tables[table][field], 0)
        return table, (field, first), first + np.where(used, count, 0), into

    num_q = rows["q_hi"] - rows["q_lo"]
    always = np.ones(len(reductions), bool)
    return [
        interval("rows", "q_lo", num_q, np.ones(len(rows), bool), "q_list"),
        interval("rows", "local_lo", rows["local_hi"] - rows["local_lo"], ready, "kv_tiles"),
        interval("rows", "kv_list", rows["num_kv_tiles"], static & (rows["num_kv_tiles"] > 0), "kv_list"),
        interval("rows", "target_list", num_q, to_state, "target_list"),
        interval("reductions", "state_list", reductions["num_states"], always, "state_list"),
    ]
