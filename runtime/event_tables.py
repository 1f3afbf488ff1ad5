"""A plan's tables as the event core reads them: one array a field, indices global over all ranks.

The core is compiled and cached, so it must not bake in anything of the layout: field places and enum values stay on
this side, and reach it as plain arrays and flags.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from liquidcp_compiler.ir.layout import Formation, SignalKind, Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_core import CoreTables

_CACHE: WeakKeyDictionary[Plan, CoreTables] = WeakKeyDictionary()


def core_tables(plan: Plan) -> CoreTables:
    """The core's view of ``plan``, made once a plan."""
    if plan not in _CACHE:
        _CACHE[plan] = _build(plan)
    return _CACHE[plan]


def _build(plan: Plan) -> CoreTables:
    base = {name: _rank_base(plan, name) for name in plan.tables}
    starts = {name: plan.offsets[name].astype(np.int64) for name in plan.tables}

    def shifted(table: str, values: np.ndarray, into: str) -> np.ndarray:
        """Rank-local indices in ``into`` made global; negative ones stay -1."""
        shift = starts[into][base[table]]
        return np.where(values < 0, -1, values + shift).astype(np.int64)

    def column(table: str, field: str) -> np.ndarray:
        return plan.tables[table][field].astype(np.int64)

    def index(table: str, field: str, into: str) -> np.ndarray:
        return shifted(table, plan.tables[table][field], into)

    transfers, rows, reductions = (plan.tables[n] for n in ("transfers", "rows", "reductions"))
    ready = rows["formation"] == Formation.READY
    first_signal = starts["signals"][:-1]
    peer = column("transfers", "peer")
    peer_first = first_signal[peer] if len(peer) else peer
    reduction_lo = index("reductions", "state_list", "state_list")
    expected = np.concatenate([column("signals", "expected"), column("sequences", "num_arrivals")])
    return CoreTables(
        transfer_start=starts["transfers"],
        row_start=starts["rows"],
        reduction_start=starts["reductions"],
        transfer_peer=peer,
        transfer_wait=peer_first + np.maximum(transfers["wait_signal"], 0),
        transfer_signal=index("transfers", "signal", "signals"),
        transfer_sequence=index("transfers", "sequence", "sequences"),
        transfer_back=transfers["arrival_class"] == 1,
        sequence_arrivals=column("sequences", "num_arrivals"),
        sequence_front=column("sequences", "num_front_arrivals"),
        row_q_lo=index("rows", "q_lo", "q_list"),
        row_q_hi=index("rows", "q_hi", "q_list"),
        row_sequence=index("rows", "sequence", "sequences"),
        row_ready=ready,
        row_local_lo=index("rows", "local_lo", "kv_tiles"),
        row_own=np.where(ready, rows["local_hi"] - rows["local_lo"], 0).astype(np.int64),
        row_arrivals=column("rows", "num_arrivals"),
        row_tiles=column("rows", "num_kv_tiles"),
        row_tau_min=column("rows", "tau_min"),
        row_tau_max=column("rows", "tau_max"),
        row_kv_list=index("rows", "kv_list", "kv_list"),
        row_to_out=rows["target_space"] == Space.OUT,
        row_target_list=index("rows", "target_list", "target_list"),
        reduction_q_tile=index("reductions", "q_tile", "q_tiles"),
        reduction_to_out=reductions["target_space"] == Space.OUT,
        reduction_target=index("reductions", "target", "states"),
        reduction_lo=reduction_lo,
        reduction_hi=reduction_lo + reductions["num_states"],
        q_signal=index("q_tiles", "signal", "signals"),
        q_merge_count=column("q_tiles", "merge_count"),
        kv_signal=index("kv_tiles", "signal", "signals"),
        state_signal=index("states", "signal", "signals"),
        q_list=shifted("q_list", plan.tables["q_list"], "q_tiles"),
        kv_list=shifted("kv_list", plan.tables["kv_list"], "kv_tiles"),
        target_list=shifted("target_list", plan.tables["target_list"], "states"),
        state_list=shifted("state_list", plan.tables["state_list"], "states"),
        word_expected=expected,
        ready_word=first_signal.copy(),
        done_word=first_signal + 1,
    )


def _rank_base(plan: Plan, name: str) -> np.ndarray:
    """The rank of every row of a table."""
    return np.repeat(np.arange(plan.world), np.diff(plan.offsets[name]))


def row_q_tiles(tables: CoreTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, place, query tile) of every query tile of every compute row; ``place`` counts within the row."""
    count = tables.row_q_hi - tables.row_q_lo
    row = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, place, tables.q_list[tables.row_q_lo[row] + place]


def word_name(plan: Plan, word: int) -> str:
    """A word in words: rank, kind and what it belongs to."""
    num_signals = len(plan.tables["signals"])
    if word >= num_signals:
        word -= num_signals
        rank = rank_of(plan, "sequences", word)
        return f"prefix of sequence {plan.tables['sequences']['sequence'][word]} on rank {rank}"
    rank = rank_of(plan, "signals", word)
    signal = plan.tables["signals"][word]
    kind = SignalKind(int(signal["kind"])).name.lower()
    if signal["kind"] in (SignalKind.READY, SignalKind.DONE):
        return f"{kind} of rank {rank}"
    if signal["kind"] == SignalKind.PREFIX:
        sequence = plan.table("sequences", rank)[signal["item"]]["sequence"]
        return f"prefix of sequence {sequence} on rank {rank}"
    space = Space(int(signal["space"]))
    names = {Space.Q: ("q_tiles", "tile"), Space.KV: ("kv_tiles", "tile"), Space.STATE: ("states", "state")}
    table, field = names[space]
    item = plan.table(table, rank)[signal["item"]][field]
    return f"{kind} of {space.name.lower()} {item} on rank {rank}"


def rank_of(plan: Plan, name: str, index: int) -> int:
    """The rank that holds row ``index`` of the concatenated table."""
    return int(np.searchsorted(plan.offsets[name], index, side="right")) - 1
