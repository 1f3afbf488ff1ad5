"""What every CTA did, and when: the records of a traced launch, or a schedule of the event core, in one form."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import DroppedRecordsWarning, TraceError
from liquidcp_compiler.ir.launch import TRACE_RECORD, TraceKind
from liquidcp_compiler.ir.layout import Formation
from liquidcp_compiler.ir.plan import Plan

if TYPE_CHECKING:
    from liquidcp_runtime.scheduling import Schedule

#: kind -> table of the plan in which ``task`` counts
TASK_TABLES: dict[TraceKind, str] = {
    TraceKind.STAGE: "staged_list",
    TraceKind.TRANSFER: "transfers",
    TraceKind.COMPUTE: "rows",
    TraceKind.MERGE: "rows",
    TraceKind.WAIT: "rows",
    TraceKind.REDUCTION: "reductions",
}
GPU_CLOCK = "%globaltimer of the GPU"

_OF_A_ROW = (TraceKind.COMPUTE, TraceKind.MERGE, TraceKind.WAIT)
_NS_PER_UNIT = 1000.0  # schedules of a cost model count microseconds


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """Columns with one entry a record, sorted by rank and CTA, and by time within a CTA, where none overlap.

    Fields:
        plan: whose tasks they are.
        clock: what the times were read from or computed by.
        first_rank, num_ranks, ctas_per_rank: the CTAs that there were, also those without a record.
        dropped: records that are missing, since a CTA had more of them than it had room for.
        rank, cta: int32, rank of the plan and index of the CTA within it.
        sm: int32, streaming multiprocessor; -1 where nothing ran on a GPU.
        kind: int32, ``TraceKind``.
        task: int32, index in the rank's table that goes with the kind (``TASK_TABLES``); -1: none.
        unit: int32, query tile and head of a row, as the kernel counts them; -1: all of the row, or no row.
        kv_lo, kv_hi: int32, KV interval of the task in its row's order; -1: not known, or no row.
        begin_ns, end_ns: int64, nanoseconds of ``clock``.
    """

    plan: Plan
    clock: str
    first_rank: int
    num_ranks: int
    ctas_per_rank: int
    dropped: int
    rank: NDArray[np.int32]
    cta: NDArray[np.int32]
    sm: NDArray[np.int32]
    kind: NDArray[np.int32]
    task: NDArray[np.int32]
    unit: NDArray[np.int32]
    kv_lo: NDArray[np.int32]
    kv_hi: NDArray[np.int32]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def from_records(
        cls, plan: Plan, records: np.ndarray, counts: np.ndarray, *, ctas_per_rank: int, first_rank: int = 0
    ) -> Timeline:
        """The timeline of one traced launch.

        Args:
            plan: what the launch ran.
            records: ``TRACE_RECORD.dtype`` [CTAs, capacity], on the host.
            counts: [CTAs], 32-bit: records of each CTA; more than the capacity where some were dropped.
            ctas_per_rank, first_rank: CTA i belongs to rank ``first_rank + i // ctas_per_rank``.

        What a record says of a KV interval is only that of static rows, which take all of theirs. Waits inside a
        task, such as for a peer that is not ready, are part of its record. Warns with DroppedRecordsWarning; raises
        TraceError for records that cannot be those of this plan and grid.
        """
        num_ranks = _check_grid(plan, records, counts, ctas_per_rank, first_rank)
        written = np.asarray(counts).astype(np.int64) & 0xFFFFFFFF
        capacity = records.shape[1]
        kept = np.minimum(written, capacity)
        flat = records[np.arange(capacity) < kept[:, None]]
        place = np.repeat(np.arange(len(records), dtype=np.int32), kept)
        kind = flat["kind"]
        timeline = cls(
            plan=plan,
            clock=GPU_CLOCK,
            first_rank=first_rank,
            num_ranks=num_ranks,
            ctas_per_rank=ctas_per_rank,
            dropped=int((written - kept).sum()),
            rank=(first_rank + place // ctas_per_rank).astype(np.int32),
            cta=(place % ctas_per_rank).astype(np.int32),
            sm=flat["sm"].copy(),
            kind=kind.copy(),
            task=flat["task"].copy(),
            unit=np.where(np.isin(kind, _OF_A_ROW), flat["unit"], np.int32(-1)),
            kv_lo=np.full(len(flat), -1, np.int32),
            kv_hi=np.full(len(flat), -1, np.int32),
            begin_ns=flat["begin_ns"].astype(np.int64),
            end_ns=flat["end_ns"].astype(np.int64),
        )
        timeline.check()
        if timeline.dropped:
            short = int((written > capacity).sum())
            warnings.warn(DroppedRecordsWarning(timeline.dropped, short, capacity, int(written.max())), stacklevel=2)
        return timeline._with_static_intervals()

    @classmethod
    def from_schedule(cls, plan: Plan, schedule: Schedule) -> Timeline:
        """The timeline of a schedule of the event core; one unit of its time is a microsecond.

        A compute record stands for all units of its row together, its merge included. A CTA waits from the launch, or
        from the end of its last task, until the inputs of the next one are there. Nothing is staged.
        """
        from liquidcp_runtime.event_core import COMPUTE, LAND, REDUCE

        names = {LAND: TraceKind.TRANSFER, COMPUTE: TraceKind.COMPUTE, REDUCE: TraceKind.REDUCTION}
        events = schedule.events[np.lexsort((schedule.events["cta"], schedule.events["rank"]))]
        begin, end = (np.rint(events[name] * _NS_PER_UNIT).astype(np.int64) for name in ("begin", "time"))
        free = _end_before(events, end)
        waits = np.flatnonzero(begin > free)
        # Each wait goes before the task that it led to.
        source = np.concatenate((np.arange(len(events)), waits))
        order = np.argsort(np.concatenate((2 * np.arange(len(events)) + 1, 2 * waits)))
        is_wait = (np.arange(len(source)) >= len(events))[order]
        source = source[order]
        is_row = events["kind"][source] == COMPUTE
        kinds = np.array([names.get(kind, TraceKind.NONE) for kind in range(max(names) + 1)], np.int32)
        none = np.full(len(source), -1, np.int32)
        timeline = cls(
            plan=plan,
            clock=f"event core, {schedule.profile}",
            first_rank=0,
            num_ranks=schedule.world,
            ctas_per_rank=schedule.num_comm + schedule.num_compute,
            dropped=0,
            rank=events["rank"][source],
            cta=events["cta"][source],
            sm=none,
            kind=np.where(is_wait, np.int32(TraceKind.WAIT), kinds[events["kind"][source]]),
            task=np.where(is_wait & ~is_row, none, events["index"][source]),
            unit=none,
            kv_lo=np.where(is_row & ~is_wait, events["lo"][source], none),
            kv_hi=np.where(is_row & ~is_wait, events["hi"][source], none),
            begin_ns=np.where(is_wait, free[source], begin[source]),
            end_ns=np.where(is_wait, begin[source], end[source]),
        )
        timeline.check()
        return timeline

    @classmethod
    def joined(cls, timelines: Sequence[Timeline]) -> Timeline:
        """Timelines of neighbouring ranks that ran one after another, as if they had begun together.

        Each begins at 0. Raises TraceError unless they are of one plan and grid and follow each other by rank.
        """
        first, ranks = timelines[0], [t.first_rank for t in timelines]
        for before, t in zip(timelines, timelines[1:], strict=False):
            if t.first_rank != before.first_rank + before.num_ranks:
                raise TraceError(f"timelines begin at ranks {ranks}: each must begin where the one before it ends")
            if t.plan is not first.plan or t.ctas_per_rank != first.ctas_per_rank or t.clock != first.clock:
                raise TraceError("timelines of different plans, grids or clocks cannot be joined")
        shifts = [int(t.begin_ns.min()) if len(t) else 0 for t in timelines]
        columns = {name: np.concatenate([getattr(t, name) for t in timelines]) for name in _COLUMNS}
        for name in ("begin_ns", "end_ns"):
            columns[name] = np.concatenate([getattr(t, name) - by for t, by in zip(timelines, shifts, strict=True)])
        num_ranks, dropped = sum(t.num_ranks for t in timelines), sum(t.dropped for t in timelines)
        return replace(first, num_ranks=num_ranks, dropped=dropped, **columns)

    def check(self) -> None:
        """Raises TraceError for kinds, tasks and units that there are not, and for times that run backwards."""
        limits = np.full((self.plan.world, max(TraceKind) + 1), -1, np.int64)
        for kind, table in TASK_TABLES.items():
            limits[:, kind] = np.diff(self.plan.offsets[table])
        known = np.isin(self.kind, list(TASK_TABLES))
        self._check_all(known, "kinds are " + ", ".join(f"{k.value} {k.name.lower()}" for k in TASK_TABLES))
        no_task = (self.kind == TraceKind.WAIT) & (self.task == -1)
        inside = (self.task >= 0) & (self.task < limits[self.rank, self.kind])
        self._check_all(inside | no_task, "no such task in the plan; pass the plan that was launched")
        of_row = np.flatnonzero((self.unit != -1) & inside)
        rows = self.plan.tables["rows"][self.plan.offsets["rows"][self.rank[of_row]] + self.task[of_row]]
        units = np.zeros(len(self), np.int64)
        units[of_row] = (rows["q_hi"] - rows["q_lo"]) * self.plan.problem.num_heads_q
        no_unit = self.unit == -1
        self._check_all(no_unit | (self.unit >= 0) & (self.unit < units), "no such unit of the row")
        self._check_all(self.end_ns >= self.begin_ns, "ends before it begins")
        same_cta = np.diff(self.place, prepend=-1) == 0
        previous_end = np.concatenate((self.end_ns[:1], self.end_ns[:-1]))
        self._check_all(~same_cta | (self.begin_ns >= previous_end), "begins before the one before it ends")

    @property
    def place(self) -> NDArray[np.int64]:
        """int64: the CTA of each record, counted through all ranks of the timeline."""
        return (self.rank.astype(np.int64) - self.first_rank) * self.ctas_per_rank + self.cta

    def to_perfetto(self, path: str | os.PathLike[str]) -> Path:
        """Write the timeline as trace-event JSON for ui.perfetto.dev; returns the path. Raises OSError."""
        from liquidcp_runtime.timeline_perfetto import write_perfetto

        return write_perfetto(self, path)  # type: ignore[arg-type] (pyright knows this file by two names)

    def _check_all(self, right: np.ndarray, message: str) -> None:
        if right.all():
            return
        i = int(np.flatnonzero(~right)[0])
        record = f"kind {self.kind[i]}, task {self.task[i]}, {self.begin_ns[i]} to {self.end_ns[i]} ns"
        raise TraceError(f"rank {self.rank[i]}, CTA {self.cta[i]}: record ({record}): {message}")

    def _with_static_intervals(self) -> Timeline:
        """A static row is one task of all of its KV tiles a unit."""
        of_a_task = np.flatnonzero((self.kind == TraceKind.COMPUTE) | (self.kind == TraceKind.MERGE))
        rows = self.plan.tables["rows"][self.plan.offsets["rows"][self.rank[of_a_task]] + self.task[of_a_task]]
        static = rows["formation"] == Formation.STATIC
        kv_lo, kv_hi = self.kv_lo.copy(), self.kv_hi.copy()
        kv_lo[of_a_task[static]] = 0
        kv_hi[of_a_task[static]] = rows["num_kv_tiles"][static]
        return replace(self, kv_lo=kv_lo, kv_hi=kv_hi)


_COLUMNS = ("rank", "cta", "sm", "kind", "task", "unit", "kv_lo", "kv_hi", "begin_ns", "end_ns")


def _check_grid(plan: Plan, records: np.ndarray, counts: np.ndarray, ctas_per_rank: int, first_rank: int) -> int:
    """Number of ranks whose CTAs wrote the records."""
    if records.dtype != TRACE_RECORD.dtype or records.ndim != 2:
        raise TraceError(f"records are {records.dtype} {list(records.shape)}, not TRACE_RECORD.dtype [CTAs, capacity]")
    if counts.shape != records.shape[:1]:
        raise TraceError(f"counts has shape {list(counts.shape)}, not [CTAs] = [{len(records)}]")
    if ctas_per_rank < 1 or len(records) % ctas_per_rank:
        raise TraceError(f"{len(records)} CTAs are no whole number of ranks of {ctas_per_rank} CTAs")
    num_ranks = len(records) // ctas_per_rank
    if not 0 <= first_rank <= first_rank + num_ranks <= plan.world:
        raise TraceError(
            f"records of ranks {first_rank} to {first_rank + num_ranks - 1}, the plan has {plan.world}; pass the plan "
            "that was launched"
        )
    return num_ranks


def _end_before(events: np.ndarray, end: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the CTA of each event was free: at the end of its event before, or at 0."""
    free = np.zeros(len(events), np.int64)
    same_cta = (np.diff(events["cta"]) == 0) & (np.diff(events["rank"]) == 0)
    free[1:] = np.where(same_cta, end[:-1], 0)
    return free
