"""Cheap, vectorised checks of a plan's tables, made once before it first runs on a world.

The graph verifier proves a plan right while it is made; these checks find tables that were damaged since, or written by
hand, and name the task at fault before anything starts.
"""

from __future__ import annotations

from typing import NoReturn
from weakref import WeakSet

import numpy as np

from liquidcp_compiler.errors import PlanError, ScheduleError
from liquidcp_compiler.ir.layout import Formation, SignalKind, Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_tables import CoreTables, core_tables, rank_of, row_q_tiles, word_name
from liquidcp_runtime.plan_coverage import check_coverage
from liquidcp_runtime.plan_ranges import SPACE_TABLES, check_ranges, ranks_of
from liquidcp_runtime.scheduling import output_task

_CHECKED: WeakSet[Plan] = WeakSet()

#: Fields that say what a tile is: equal on the rank that pulls it and on the one that holds it.
_SAME_ITEM = {
    Space.Q: ("tile", "rows", "position", "head", "num_heads"),
    Space.KV: ("tile", "rows", "position", "interleave", "group", "phase"),
    Space.STATE: ("state", "owner"),
}


def check_is_plan(plan: object) -> None:
    """Raise PlanError for anything but a plan, such as the problem it is to be made from."""
    if not isinstance(plan, Plan):
        raise PlanError(f"plan is a {type(plan).__name__}; allowed: what liquidcp_compiler.plan or Plan.load returns")


def check_plan(plan: Plan) -> None:
    """Check the tables of every rank; nothing is done for a plan that has passed before.

    Raises PlanError for indices outside their tables and ScheduleError, naming rank and task, for everything that would
    make the plan hang or compute wrong numbers.
    """
    if plan in _CHECKED:
        return
    if plan.world:
        check_ranges(plan)
        tables = core_tables(plan)
        _check_transfers(plan)
        _check_prefixes(plan, tables)
        _check_signals(plan, tables)
        _check_ready_rows(plan, tables)
        _check_states(plan, tables)
        _check_merge_counts(plan, tables)
        check_coverage(plan, tables)
    _CHECKED.add(plan)


def _fail(plan: Plan, table: str, bad: np.ndarray, message: str) -> NoReturn:
    """Raise for the first row of a concatenated table where ``bad`` holds."""
    index = int(np.flatnonzero(bad)[0])
    rank = rank_of(plan, table, index)
    raise ScheduleError(rank, plan.task_name(rank, table, index - int(plan.offsets[table][rank])), message)


def _check_transfers(plan: Plan) -> None:
    transfers, rank = plan.tables["transfers"], ranks_of(plan, "transfers")
    if (transfers["peer"] == rank).any():
        _fail(plan, "transfers", transfers["peer"] == rank, "pulls from its own rank")
    for space, table in SPACE_TABLES.items():
        rows, chosen = plan.tables[table], np.flatnonzero(transfers["space"] == space)
        source = transfers["source"][chosen] + plan.offsets[table][transfers["peer"][chosen]]
        target = transfers["target"][chosen] + plan.offsets[table][rank[chosen]]
        bad = np.zeros(len(transfers), bool)
        for field in _SAME_ITEM[space]:
            bad[chosen] |= rows[field][source] != rows[field][target]
        if bad.any():
            _fail(plan, "transfers", bad, f"the peer's {table[:-1]} is not the one that the target describes")
        is_pulled = _pulled(plan, table)
        bad[chosen] = ~is_pulled[target]
        if bad.any():
            _fail(plan, "transfers", bad, "writes an item that this rank makes itself")
        times = np.bincount(target, minlength=len(rows))
        bad[chosen] = times[target] > 1
        if bad.any():
            _fail(plan, "transfers", bad, "its target is pulled twice")
        _check_all_pulled(plan, table, is_pulled & (times == 0))
        bad[chosen] = transfers["signal"][chosen] != rows["signal"][target]
        if bad.any():
            _fail(plan, "transfers", bad, "it does not set the signal that its readers wait for")
        # What the peer owns is covered by its READY; what it computes or pulls has a signal.
        made_later = is_pulled[source] | (space == Space.STATE)
        bad[chosen] = (transfers["wait_signal"][chosen] != rows["signal"][source]) | (
            made_later & (transfers["wait_signal"][chosen] < 0)
        )
        if bad.any():
            _fail(plan, "transfers", bad, "it does not wait for the signal of what it pulls")


def _pulled(plan: Plan, table: str) -> np.ndarray:
    """Which rows of a table are pulled from a peer."""
    rank = ranks_of(plan, table)
    if table == "states":
        return plan.tables[table]["owner"] != rank
    place = np.arange(len(rank)) - plan.offsets[table][rank]
    return place >= plan.headers[f"num_local_{table}"][rank]


def _check_all_pulled(plan: Plan, table: str, missing: np.ndarray) -> None:
    if missing.any():
        index = int(np.flatnonzero(missing)[0])
        rank = rank_of(plan, table, index)
        row = plan.tables[table][index]
        name = row["state" if table == "states" else "tile"]
        user = _user_of(plan, rank, table, index - int(plan.offsets[table][rank]))
        raise ScheduleError(rank, user, f"no transfer brings {table[:-1]} {name}")


def _user_of(plan: Plan, rank: int, table: str, index: int) -> str:
    """The first task of a rank that reads an item; the item itself if none does."""
    rows, reductions = plan.table("rows", rank), plan.table("reductions", rank)
    if table == "q_tiles":
        q_list = plan.table("q_list", rank)
        users = np.flatnonzero([index in q_list[r["q_lo"] : r["q_hi"]] for r in rows])
    elif table == "kv_tiles":
        kv_list, sequence = plan.table("kv_list", rank), plan.table("kv_tiles", rank)[index]["sequence"]
        static = [index in kv_list[r["kv_list"] :][: r["num_kv_tiles"]] for r in rows]
        ready = (rows["formation"] == Formation.READY) & (rows["sequence"] == sequence)
        ready &= rows["num_arrivals"] > 0
        users = np.flatnonzero(np.where(rows["formation"] == Formation.STATIC, static, ready))
    else:
        states = plan.table("state_list", rank)
        users = np.flatnonzero([index in states[r["state_list"] :][: r["num_states"]] for r in reductions])
        return plan.task_name(rank, "reductions", int(users[0])) if len(users) else f"{table}[{index}]"
    return plan.task_name(rank, "rows", int(users[0])) if len(users) else f"{table}[{index}]"


def _check_prefixes(plan: Plan, tables: CoreTables) -> None:
    """Arrivals of each sequence are as many as announced, and front ones come first in the queue."""
    transfers = plan.tables["transfers"]
    published = transfers["signal"] < 0
    bad = published & ((transfers["sequence"] < 0) | (transfers["space"] != Space.KV))
    if bad.any():
        _fail(plan, "transfers", bad, "sets no signal and is published in no prefix")
    sequence, back = tables.transfer_sequence[published], tables.transfer_back[published]
    size = len(tables.sequence_arrivals)
    total, front = np.bincount(sequence, minlength=size), np.bincount(sequence[~back], minlength=size)
    for seen, expected, what in ((total, tables.sequence_arrivals, ""), (front, tables.sequence_front, "front ")):
        wrong = np.flatnonzero(seen != expected)
        if len(wrong):
            s = int(wrong[0])
            rank = rank_of(plan, "sequences", s)
            task = _ready_task(plan, tables, s) or word_name(plan, len(plan.tables["signals"]) + s)
            message = f"{seen[s]} {what}arrivals are pulled, {expected[s]} expected"
            raise ScheduleError(rank, task, message)
    order = np.flatnonzero(published)
    last_front = np.full(size, -1)
    np.maximum.at(last_front, sequence[~back], order[~back])
    early = np.zeros(len(transfers), bool)
    early[order[back]] = order[back] < last_front[sequence[back]]
    if early.any():
        _fail(plan, "transfers", early, "a back arrival is queued before a front one, which it waits for")


def _ready_task(plan: Plan, tables: CoreTables, sequence: int) -> str:
    rows = np.flatnonzero(tables.row_ready & (tables.row_sequence == sequence) & (tables.row_arrivals > 0))
    if not len(rows):
        return ""
    rank = rank_of(plan, "rows", int(rows[0]))
    return plan.task_name(rank, "rows", int(rows[0] - plan.offsets["rows"][rank]))


def _check_signals(plan: Plan, tables: CoreTables) -> None:
    """Every signal has as many setters as it expects."""
    signals, transfers = plan.tables["signals"], plan.tables["transfers"]
    setters = np.zeros(len(signals), np.int64)
    np.add.at(setters, tables.transfer_signal[tables.transfer_signal >= 0], 1)
    written = np.concatenate([_row_states(tables)[1], tables.reduction_target[~tables.reduction_to_out]])
    state_signals = tables.state_signal[written]
    np.add.at(setters, state_signals[state_signals >= 0], 1)
    pairs = np.unique(np.stack([ranks_of(plan, "transfers"), transfers["peer"]]), axis=1)
    np.add.at(setters, tables.done_word[pairs[1]], 1)
    np.add.at(setters, tables.ready_word, 1)
    wrong = (signals["kind"] != SignalKind.PREFIX) & (setters != signals["expected"])
    if wrong.any():
        word = int(np.flatnonzero(wrong)[0])
        rank = rank_of(plan, "signals", word)
        message = f"{word_name(plan, word)} has {setters[word]} setters, {signals['expected'][word]} expected"
        raise ScheduleError(rank, _waiter(plan, tables, word), message)


def _waiter(plan: Plan, tables: CoreTables, word: int) -> str:
    """The first task that waits for a signal."""
    rank = rank_of(plan, "signals", word)
    pulls = np.flatnonzero((tables.transfer_wait == word) & (plan.tables["transfers"]["wait_signal"] >= 0))
    if len(pulls):
        rank = rank_of(plan, "transfers", int(pulls[0]))
        return plan.task_name(rank, "transfers", int(pulls[0] - plan.offsets["transfers"][rank]))
    columns = {"q_tiles": tables.q_signal, "kv_tiles": tables.kv_signal, "states": tables.state_signal}
    for table, column in columns.items():
        items = np.flatnonzero(column == word)
        if len(items):
            return _user_of(plan, rank, table, int(items[0] - plan.offsets[table][rank]))
    return word_name(plan, word)


def _check_ready_rows(plan: Plan, tables: CoreTables) -> None:
    rows = plan.tables["rows"]
    bad = ~np.isin(rows["formation"], (Formation.STATIC, Formation.READY))
    bad |= ~np.isin(rows["target_space"], (Space.OUT, Space.STATE)) | (rows["q_hi"] <= rows["q_lo"])
    if bad.any():
        _fail(plan, "rows", bad, "its formation, target or query tiles are not set")
    ready = tables.row_ready
    q_sequence = plan.tables["q_tiles"]["sequence"] + plan.offsets["sequences"][ranks_of(plan, "q_tiles")]
    row, _, q = row_q_tiles(tables)
    np.logical_or.at(bad, row, q_sequence[q] != tables.row_sequence[row])
    if bad.any():
        _fail(plan, "rows", bad, "its query tiles are not all of its sequence")
    bad = ready & (tables.row_tiles != tables.row_own + tables.row_arrivals)
    if bad.any():
        _fail(plan, "rows", bad, "own tiles and arrivals do not add up to its KV tiles")
    bad = ready & ((tables.row_tau_min < 1) | (tables.row_tau_max < 1))
    if bad.any():
        _fail(plan, "rows", bad, "tau_min and tau_max must be at least 1")
    total, front = tables.sequence_arrivals[tables.row_sequence], tables.sequence_front[tables.row_sequence]
    count = tables.row_arrivals
    bad = ready & (count != 0) & (count != front) & (count != total)
    if bad.any():
        _fail(plan, "rows", bad, "its arrivals are neither the front ones nor all, so the prefix does not say which")
    _check_ready_tiles(plan, tables)


def _check_ready_tiles(plan: Plan, tables: CoreTables) -> None:
    """No ready row is given a KV tile that lies wholly behind its last visible key: its arrival class is wrong then."""
    ready = np.flatnonzero(tables.row_ready & (tables.row_arrivals > 0))
    if not len(ready):
        return
    q_tiles, kv_tiles, sequences = (plan.tables[n] for n in ("q_tiles", "kv_tiles", "sequences"))
    last = q_tiles[tables.q_list[tables.row_q_hi[ready] - 1]]
    s = tables.row_sequence[ready]
    end = last["position"] + last["rows"]
    pointer, _, key_end = plan.problem.mask_bound.intervals(sequences["sequence"][s], np.maximum(end - 1, 0), end)
    visible_end = np.zeros(len(ready), np.int64)
    some = np.diff(pointer) > 0
    visible_end[some] = key_end[pointer[1:][some] - 1]

    pulls = np.flatnonzero(tables.transfer_signal < 0)
    tile = plan.tables["transfers"]["target"][pulls] + plan.offsets["kv_tiles"][ranks_of(plan, "transfers")[pulls]]
    first_key = kv_tiles["position"][tile].astype(np.int64)
    of_sequence, back = tables.transfer_sequence[pulls], tables.transfer_back[pulls]
    for chosen, applies in (
        (~back, np.ones(len(ready), bool)),
        (back, tables.row_arrivals[ready] > tables.sequence_front[s]),
    ):
        farthest, culprit = np.full(len(sequences), -1), np.full(len(sequences), -1)
        order = np.argsort(first_key[chosen], kind="stable")
        farthest[of_sequence[chosen][order]] = first_key[chosen][order]
        culprit[of_sequence[chosen][order]] = pulls[chosen][order]
        beyond = applies & (farthest[s] >= visible_end) & (farthest[s] >= 0)
        if beyond.any():
            bad = np.zeros(len(plan.tables["transfers"]), bool)
            bad[culprit[s[beyond][0]]] = True
            row = int(ready[np.flatnonzero(beyond)[0]])
            rank = rank_of(plan, "rows", row)
            reader = plan.task_name(rank, "rows", row - int(plan.offsets["rows"][rank]))
            _fail(plan, "transfers", bad, f"wrong arrival class: {reader} would read it, but sees none of its keys")


def _row_states(tables: CoreTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, state, query tile) of every partial state that compute rows write."""
    row, place, q = row_q_tiles(tables)
    into_state = ~tables.row_to_out[row]
    row, place, q = row[into_state], place[into_state], q[into_state]
    return row, tables.target_list[tables.row_target_list[row] + place], q


def _check_states(plan: Plan, tables: CoreTables) -> None:
    """Every own state is written by exactly one task, and everything that touches a state means its query tile."""
    states, pulled = plan.tables["states"], _pulled(plan, "states")
    state_q = states["q_tile"] + plan.offsets["q_tiles"][ranks_of(plan, "states")]
    row, row_state, row_q = _row_states(tables)
    into_state = np.flatnonzero(~tables.reduction_to_out)
    reduction_state = tables.reduction_target[into_state]
    written = np.bincount(np.concatenate([row_state, reduction_state]), minlength=len(states))
    bad_state = (written > 1) | pulled & (written > 0)
    for table, task, state in (("rows", row, row_state), ("reductions", into_state, reduction_state)):
        bad = np.zeros(len(plan.tables[table]), bool)
        bad[task] = bad_state[state]
        if bad.any():
            _fail(plan, table, bad, "writes a state that another task writes as well")
    if (~pulled & (written == 0)).any():
        index = int(np.flatnonzero(~pulled & (written == 0))[0])
        rank = rank_of(plan, "states", index)
        user = _user_of(plan, rank, "states", index - int(plan.offsets["states"][rank]))
        raise ScheduleError(rank, user, f"no task writes state {states['state'][index]}")
    bad = np.zeros(len(plan.tables["rows"]), bool)
    bad[row] = state_q[row_state] != row_q
    if bad.any():
        _fail(plan, "rows", bad, "writes a state of another query tile")
    _check_reduction_states(plan, tables, state_q)


def _check_reduction_states(plan: Plan, tables: CoreTables, state_q: np.ndarray) -> None:
    count = tables.reduction_hi - tables.reduction_lo
    if (count < 1).any():
        _fail(plan, "reductions", count < 1, "combines no state")
    task = np.repeat(np.arange(len(count)), count)
    entry = tables.reduction_lo[task] + np.arange(len(task)) - np.repeat(np.cumsum(count) - count, count)
    bad = np.zeros(len(count), bool)
    np.logical_or.at(bad, task, state_q[tables.state_list[entry]] != tables.reduction_q_tile[task])
    if bad.any():
        _fail(plan, "reductions", bad, "combines a state of another query tile")
    _check_uses_of_states(plan, tables, task, tables.state_list[entry])


def _check_uses_of_states(plan: Plan, tables: CoreTables, reduction: np.ndarray, state: np.ndarray) -> None:
    """Every state is combined by one reduction of its rank, or pulled by one peer: else its keys count twice or not."""
    transfers = plan.tables["transfers"]
    pulls = np.flatnonzero(transfers["space"] == Space.STATE)
    source = transfers["source"][pulls] + plan.offsets["states"][transfers["peer"][pulls]]
    uses = np.bincount(np.concatenate([state, source]), minlength=len(plan.tables["states"]))
    for table, task, used in (("reductions", reduction, state), ("transfers", pulls, source)):
        bad = np.zeros(len(plan.tables[table]), bool)
        bad[task] = uses[used] > 1
        if bad.any():
            _fail(plan, table, bad, "double contribution: takes a state that another task takes as well")
    for i in np.flatnonzero(uses == 0)[:1]:
        rank = rank_of(plan, "states", int(i))
        number, writer = plan.tables["states"]["state"][i], _writer_of(plan, tables, int(i))
        raise ScheduleError(rank, writer, f"missing contribution: nothing takes state {number} further")


def _writer_of(plan: Plan, tables: CoreTables, state: int) -> str:
    """The task that makes a state: a compute row, a reduction, or a pull."""
    row, row_state, _ = _row_states(tables)
    rank = rank_of(plan, "states", state)
    target = plan.tables["transfers"]["target"] + plan.offsets["states"][ranks_of(plan, "transfers")]
    pulls = (plan.tables["transfers"]["space"] == Space.STATE) & (target == state)
    for table, tasks in (
        ("rows", row[row_state == state]),
        ("reductions", np.flatnonzero(~tables.reduction_to_out & (tables.reduction_target == state))),
        ("transfers", np.flatnonzero(pulls)),
    ):
        if len(tasks):
            return plan.task_name(rank, table, int(tasks[0] - plan.offsets[table][rank]))
    return f"state {plan.tables['states']['state'][state]}"


def _check_merge_counts(plan: Plan, tables: CoreTables) -> None:
    q_tiles, pulled = plan.tables["q_tiles"], _pulled(plan, "q_tiles")
    counts = np.zeros(len(q_tiles), np.int64)
    row, _, q = row_q_tiles(tables)
    out = tables.row_to_out[row]
    np.add.at(counts, q[out], np.maximum(tables.row_tiles[row[out]], 1))
    np.add.at(counts, tables.reduction_q_tile[tables.reduction_to_out], 1)
    wrong = (counts != q_tiles["merge_count"]) | (pulled != (q_tiles["merge_count"] == 0))
    if wrong.any():
        # What is there once too often has a task to name; what is missing may not.
        index = int(np.flatnonzero(wrong)[np.argmax((counts > q_tiles["merge_count"])[wrong])])
        rank = rank_of(plan, "q_tiles", index)
        task = output_task(plan, rank, index - int(plan.offsets["q_tiles"][rank]))
        expected = q_tiles["merge_count"][index]
        what = "missing" if counts[index] < expected else "double"
        tile = q_tiles["tile"][index]
        message = f"{what} contribution: its tasks merge {counts[index]} into q {tile}, {expected} expected"
        raise ScheduleError(rank, task, message)
