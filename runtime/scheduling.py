"""Schedules: what the event core decided, as one table of events; and the errors for plans that cannot finish."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from liquidcp_compiler.errors import DeadlockError, InvalidField, ScheduleError
from liquidcp_compiler.ir.layout import Formation, SignalKind, Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime import event_core
from liquidcp_runtime.event_core import COMPUTE, LAND, REDUCE, CoreResult, Durations
from liquidcp_runtime.event_tables import core_tables, rank_of, word_name
from liquidcp_runtime.profiles import CostModel, hostile_durations, model_durations

#: kind -> (name, the plan's table in which ``index`` counts)
EVENT_KINDS: dict[int, tuple[str, str]] = {
    LAND: ("land", "transfers"),
    COMPUTE: ("compute", "rows"),
    REDUCE: ("reduce", "reductions"),
}

EVENT = np.dtype(
    [
        ("time", "<f8"),  # completion
        ("begin", "<f8"),  # all inputs were there: copying or computing began
        ("claim", "<f8"),  # the CTA took the task
        ("rank", "<i4"),
        ("cta", "<i4"),  # of the rank
        ("kind", "<i4"),
        ("index", "<i4"),  # in the rank's table of that kind
        ("lo", "<i4"),  # compute: claimed KV interval of the row; land: place in the committed prefix, or -1
        ("hi", "<i4"),
    ]
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """One interleaving of a plan's tasks.

    Fields:
        events: ``EVENT`` rows of all ranks in order of completion.
        world, num_comm, num_compute: ranks, and CTAs a rank by role at the start.
        profile, seed: where the durations came from; ``"cost-model"`` for simulations, ``"given"`` for
            :func:`schedule_of`.
    """

    events: np.ndarray
    world: int
    num_comm: int
    num_compute: int
    profile: str
    seed: int

    @property
    def makespan(self) -> float:
        """Time of the last event; 0 if there is none."""
        return float(self.events["time"][-1]) if len(self.events) else 0.0

    def rank_times(self) -> np.ndarray:
        """float64 [world]: time of each rank's last event."""
        times = np.zeros(self.world)
        np.maximum.at(times, self.events["rank"], self.events["time"])
        return times

    def of(self, kind: int, rank: int | None = None) -> np.ndarray:
        """The events of one kind (``LAND``, ``COMPUTE``, ``REDUCE``), of one rank or of all."""
        chosen = self.events["kind"] == kind
        if rank is not None:
            chosen &= self.events["rank"] == rank
        return self.events[chosen]


def schedule(plan: Plan, profile: str = "random", seed: int = 0, num_comm: int = 2, num_compute: int = 4) -> Schedule:
    """Sample one interleaving under hostile durations.

    It samples, it does not prove. Raises InvalidField for a bad profile or count, DeadlockError when the plan cannot
    finish, and ScheduleError when contributions or arrivals do not add up.
    """
    _check_counts(num_comm, num_compute)
    durations = hostile_durations(plan, profile, seed, num_comm, num_compute)
    return _run(plan, durations, num_comm, num_compute, profile, seed)


def simulate(plan: Plan, cost: CostModel | None = None, num_comm: int = 16, num_compute: int = 116) -> Schedule:
    """The schedule under a cost model, in microseconds; ``makespan`` and ``rank_times()`` are the estimate.

    Raises what :func:`schedule` raises.
    """
    _check_counts(num_comm, num_compute)
    durations = model_durations(plan, cost or CostModel(), num_comm, num_compute)
    return _run(plan, durations, num_comm, num_compute, "cost-model", 0)


def schedule_of(plan: Plan, durations: Durations, num_comm: int = 2, num_compute: int = 4) -> Schedule:
    """The schedule under given durations, for cases where it matters what arrives when.

    Raises what :func:`schedule` raises, and InvalidField for a duration too many, too few, or below 0.
    """
    _check_counts(num_comm, num_compute)
    ctas = plan.world * (num_comm + num_compute)
    transfers, rows, reductions = (len(plan.tables[n]) for n in ("transfers", "rows", "reductions"))
    sizes = {"transfer": transfers, "transfer_not_before": transfers, "row_per_tile": rows, "row_overhead": rows}
    sizes |= {"reduction": reductions, "cta_start": ctas, "cta_slowdown": ctas, "rank_ready": plan.world}
    for name, size in sizes.items():
        values = getattr(durations, name)
        if values.shape != (size,) or not (np.isfinite(values) & (values >= 0)).all():
            raise InvalidField(f"durations.{name}", values.tolist(), f"{size} finite numbers of at least 0")
    return _run(plan, durations, num_comm, num_compute, "given", 0)


def _check_counts(num_comm: int, num_compute: int) -> None:
    for name, count in (("num_comm", num_comm), ("num_compute", num_compute)):
        if not isinstance(count, int) or count < 1:
            raise InvalidField(name, count, "a whole number of CTAs, at least 1")


def _run(plan: Plan, durations: Durations, num_comm: int, num_compute: int, profile: str, seed: int) -> Schedule:
    tables = core_tables(plan)
    rows = plan.tables["rows"]
    tasks_of_rows = np.where(
        rows["formation"] == Formation.READY, rows["num_kv_tiles"] // np.maximum(rows["tau_min"], 1) + 1, 1
    )
    most = len(plan.tables["transfers"]) + int(tasks_of_rows.sum()) + len(plan.tables["reductions"])
    result = event_core.simulate_core(tables, durations, plan.world, num_comm, num_compute, most)
    if result.status != event_core.FINISHED:
        raise _failure(plan, result, num_comm + num_compute)
    _check_complete(plan, result)
    return Schedule(
        events=_events(plan, result, num_comm + num_compute),
        world=plan.world,
        num_comm=num_comm,
        num_compute=num_compute,
        profile=profile,
        seed=seed,
    )


def _events(plan: Plan, result: CoreResult, num_ctas: int) -> np.ndarray:
    events = np.empty(len(result.time), EVENT)
    events["time"], events["begin"], events["claim"] = result.time, result.begin, result.claim
    events["rank"], events["cta"] = result.cta // num_ctas, result.cta % num_ctas
    events["kind"], events["lo"], events["hi"] = result.kind, result.lo, result.hi
    for kind, (_, table) in EVENT_KINDS.items():
        chosen = result.kind == kind
        events["index"][chosen] = result.index[chosen] - plan.offsets[table][events["rank"][chosen]]
    return events


def _check_complete(plan: Plan, result: CoreResult) -> None:
    """Every output has all its contributions, and every rank was told that its peers have read it."""
    q_tiles, signals = plan.tables["q_tiles"], plan.tables["signals"]
    short = np.flatnonzero(result.merged != q_tiles["merge_count"])
    if len(short):
        q = int(short[0])
        rank = rank_of(plan, "q_tiles", q)
        raise ScheduleError(
            rank,
            output_task(plan, rank, q - int(plan.offsets["q_tiles"][rank])),
            f"missing contribution: {result.merged[q]} of {q_tiles['merge_count'][q]} merged",
        )
    done = signals["kind"] == SignalKind.DONE
    wrong = np.flatnonzero(done & (result.words[: len(signals)] != signals["expected"]))
    if len(wrong):
        word = int(wrong[0])
        raise ScheduleError(
            rank_of(plan, "signals", word),
            word_name(plan, word),
            f"{result.words[word]} peers have finished reading, {signals['expected'][word]} expected",
        )


def output_task(plan: Plan, rank: int, q_tile: int) -> str:
    """The compute row, or else the reduction, that merges into the output of a query tile of a rank."""
    rows, reductions = plan.table("rows", rank), plan.table("reductions", rank)
    q_list = plan.table("q_list", rank)
    into = np.array([r["target_space"] == Space.OUT and q_tile in q_list[r["q_lo"] : r["q_hi"]] for r in rows], bool)
    if into.any():
        return plan.task_name(rank, "rows", int(np.flatnonzero(into)[0]))
    into = (reductions["target_space"] == Space.OUT) & (reductions["q_tile"] == q_tile)
    if into.any():
        return plan.task_name(rank, "reductions", int(np.flatnonzero(into)[0]))
    return f"output of q {plan.table('q_tiles', rank)['tile'][q_tile]}"


def _failure(plan: Plan, result: CoreResult, num_ctas: int) -> ScheduleError:
    if result.status == event_core.DEADLOCK:
        return _deadlock(plan, result, num_ctas)
    rank = int(result.fault_cta) // num_ctas
    if result.status == event_core.OVERFULL_PREFIX:
        index = int(result.fault_item) - int(plan.offsets["transfers"][rank])
        task = plan.task_name(rank, "transfers", index)
        return ScheduleError(rank, task, "more arrivals are published in the prefix than the sequence expects")
    q_tile = int(result.fault_item) - int(plan.offsets["q_tiles"][rank])
    count, expected = result.merged[result.fault_item], plan.table("q_tiles", rank)["merge_count"][q_tile]
    task = output_task(plan, rank, q_tile)
    return ScheduleError(rank, task, f"double contribution: {count} merged, {expected} expected")


def _deadlock(plan: Plan, result: CoreResult, num_ctas: int) -> DeadlockError:
    """Name the blocked task nearest the cause: one whose word no pending task would raise, if there is one."""
    blocked = _blocked_tasks(plan, result, num_ctas)
    held_up = _pending_words(plan, result)
    rank, table, index, word, expected = next((b for b in blocked if b[3] not in held_up), blocked[0])
    task = plan.task_name(rank, table, index)
    return DeadlockError(rank, task, word_name(plan, word), expected, int(result.words[word]))


def _blocked_tasks(plan: Plan, result: CoreResult, num_ctas: int) -> list[tuple[int, str, int, int, int]]:
    """(rank, table, local index, word, expected) of every CTA that waits, rank by rank."""
    waits = {
        event_core.WAIT_SOURCE: "transfers",
        event_core.COPY_DONE: "transfers",
        event_core.WAIT_INPUTS: "rows",
        event_core.WAIT_STATES: "reductions",
    }
    blocked = []
    for cta in np.flatnonzero(result.cta_phase != event_core.EXITED).tolist():
        rank, table = cta // num_ctas, waits.get(int(result.cta_phase[cta]))
        if table:
            index = int(result.cta_task[cta] - plan.offsets[table][rank])
            blocked.append((rank, table, index, int(result.cta_word[cta]), int(result.cta_threshold[cta])))
    rows, num_signals = plan.tables["rows"], len(plan.tables["signals"])
    for row in np.flatnonzero((result.row_claimed < rows["num_kv_tiles"]) & (rows["formation"] == Formation.READY)):
        rank = rank_of(plan, "rows", int(row))
        word = num_signals + int(plan.offsets["sequences"][rank] + rows["sequence"][row])
        blocked.append((rank, "rows", int(row - plan.offsets["rows"][rank]), word, int(rows["num_arrivals"][row])))
    return blocked


def _pending_words(plan: Plan, result: CoreResult) -> set[int]:
    """Words that some task which has not run would raise."""
    tables = core_tables(plan)
    num_signals = len(plan.tables["signals"])
    ran = {kind: set(result.index[result.kind == kind].tolist()) for kind in EVENT_KINDS}
    words: set[int] = set(tables.done_word.tolist())
    for i in set(range(len(tables.transfer_peer))) - ran[LAND]:
        signal = int(tables.transfer_signal[i])
        words.add(signal if signal >= 0 else num_signals + int(tables.transfer_sequence[i]))
    for i in set(range(len(tables.row_tiles))) - ran[COMPUTE]:
        if not tables.row_to_out[i]:
            first = int(tables.row_target_list[i])
            states = tables.target_list[first : first + int(tables.row_q_hi[i] - tables.row_q_lo[i])]
            words.update(tables.state_signal[states].tolist())
    for i in set(range(len(tables.reduction_lo))) - ran[REDUCE]:
        if not tables.reduction_to_out[i]:
            words.add(int(tables.state_signal[tables.reduction_target[i]]))
    return words
