"""Where the time of a timeline went: busy, waiting and idle CTAs, and the tails of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.launch import TraceKind
from liquidcp_runtime.timeline import Timeline

#: stage -> kinds of its tasks
STAGES: dict[str, tuple[TraceKind, ...]] = {
    "comm": (TraceKind.STAGE, TraceKind.TRANSFER),
    "compute": (TraceKind.COMPUTE, TraceKind.MERGE),
    "reduction": (TraceKind.REDUCTION,),
}
#: Kinds of work, in the order in which it is done; waiting is none.
WORK = tuple(kind for kinds in STAGES.values() for kind in kinds)

_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class StageTail:
    """Tail idle of one stage on one rank, in nanoseconds.

    Fields: ``span_ns``: from the earliest begin of a task of the stage to the latest end; ``cta_ns``: that times the
    CTAs that count; ``idle_ns``: their tail idle, summed.
    """

    rank: int
    stage: str
    span_ns: int
    cta_ns: int
    idle_ns: int

    @property
    def fraction(self) -> float:
        """Tail idle as a part of the CTAs' time."""
        return self.idle_ns / self.cta_ns if self.cta_ns else 0.0


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """Where the time of one rank went, in nanoseconds; all but ``span_ns`` are sums over its CTAs.

    Fields: ``span_ns``: from the rank's first record to the end of its last; ``cta_ns``: that times all its CTAs;
    ``busy_ns``: by kind of work; ``wait_ns``: looking for work, or waiting for its inputs; ``unrecorded_ns``: the rest
    of ``cta_ns``, before the first and after the last record of a CTA and between records; ``tails``: of the stages
    that the rank has.
    """

    rank: int
    span_ns: int
    cta_ns: int
    busy_ns: Mapping[TraceKind, int]
    wait_ns: int
    unrecorded_ns: int
    tails: tuple[StageTail, ...]

    @property
    def tail_fraction(self) -> float:
        """Tail idle of all stages over the CTAs' time in all stages: the paper's fraction."""
        total = sum(tail.cta_ns for tail in self.tails)
        return sum(tail.idle_ns for tail in self.tails) / total if total else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        tails = {
            t.stage: {"span_ns": t.span_ns, "cta_ns": t.cta_ns, "idle_ns": t.idle_ns, "fraction": t.fraction}
            for t in self.tails
        }
        return {
            "rank": self.rank,
            "span_ns": self.span_ns,
            "cta_ns": self.cta_ns,
            "busy_ns": {kind.name.lower(): ns for kind, ns in self.busy_ns.items()},
            "wait_ns": self.wait_ns,
            "unrecorded_ns": self.unrecorded_ns,
            "tail_idle": tails,
            "tail_idle_fraction": self.tail_fraction,
        }


def tail_idle(timeline: Timeline) -> tuple[StageTail, ...]:
    """Tail idle of each stage on each rank that has tasks of it, rank by rank.

    After the paper's section 2.2, where stages run one after another: when an SM has done its last task of a stage it
    waits until the stage's last task, on whichever SM, is done, and that wait is its tail idle. The fraction is the sum
    of all such waits over the time of all SMs in all stages, each from its first begin to its last end.

    Three things have to be said for CTAs of one kernel, in which stages overlap. Who works on another stage in the
    meantime does not wait, so that work is taken off; where stages are serial there is none. A CTA without any task of
    a stage waits from its begin. And the comm stage counts only CTAs that staged or pulled, since the others are not
    meant to; every CTA may take compute tasks and reductions.
    """
    by_stage = [_stage_tails(timeline, stage) for stage in STAGES]
    return tuple(sorted((t for tails in by_stage for t in tails), key=lambda t: t.rank))


def summarize(timeline: Timeline) -> tuple[RankSummary, ...]:
    """One entry a rank, also for ranks without a record."""
    tails = tail_idle(timeline)
    local = timeline.rank - timeline.first_rank
    begin, end = _spans(local, timeline, timeline.num_ranks)
    kinds = local.astype(np.int64) * len(TraceKind) + timeline.kind
    length = (timeline.end_ns - timeline.begin_ns).astype(np.float64)
    sums = np.bincount(kinds, length, minlength=timeline.num_ranks * len(TraceKind))
    by_kind = np.rint(sums).astype(np.int64).reshape(timeline.num_ranks, len(TraceKind))
    summaries = []
    for i in range(timeline.num_ranks):
        span = int(end[i] - begin[i])
        summaries.append(
            RankSummary(
                rank=timeline.first_rank + i,
                span_ns=span,
                cta_ns=span * timeline.ctas_per_rank,
                busy_ns={kind: int(by_kind[i, kind]) for kind in WORK},
                wait_ns=int(by_kind[i, TraceKind.WAIT]),
                unrecorded_ns=span * timeline.ctas_per_rank - int(by_kind[i].sum()),
                tails=tuple(t for t in tails if t.rank == timeline.first_rank + i),
            )
        )
    return tuple(summaries)


def _stage_tails(timeline: Timeline, stage: str) -> list[StageTail]:
    """Tail idle of one stage, of the ranks that have it."""
    per_rank, num_ranks = timeline.ctas_per_rank, timeline.num_ranks
    inside = np.isin(timeline.kind, STAGES[stage])
    place = timeline.place
    stage_begin, stage_end = _spans(timeline.rank - timeline.first_rank, timeline, num_ranks, inside)
    last = np.full(num_ranks * per_rank, -1, np.int64)
    np.maximum.at(last, place[inside], timeline.end_ns[inside])
    takes_part = last >= 0
    # From here on a CTA has nothing more to do for the stage.
    free = np.where(takes_part, last, np.repeat(stage_begin, per_rank))
    elsewhere = np.minimum(timeline.end_ns, np.repeat(stage_end, per_rank)[place])
    elsewhere -= np.maximum(timeline.begin_ns, free[place])
    elsewhere[timeline.kind == TraceKind.WAIT] = 0
    busy = np.bincount(place, np.maximum(elsewhere, 0), minlength=num_ranks * per_rank)
    idle = np.repeat(stage_end, per_rank) - free - np.rint(busy).astype(np.int64)
    counts = takes_part if stage == "comm" else np.ones_like(takes_part)
    idle, num_ctas = (x.reshape(num_ranks, per_rank).sum(axis=1) for x in (idle * counts, counts))
    return [
        StageTail(
            rank=timeline.first_rank + i,
            stage=stage,
            span_ns=int(stage_end[i] - stage_begin[i]),
            cta_ns=int((stage_end[i] - stage_begin[i]) * num_ctas[i]),
            idle_ns=int(idle[i]),
        )
        for i in np.flatnonzero(takes_part.reshape(num_ranks, per_rank).any(axis=1)).tolist()
    ]


def _spans(
    group: np.ndarray, timeline: Timeline, num_groups: int, chosen: np.ndarray | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(earliest begin, latest end) of the chosen records in each group; (0, 0) for a group without any."""
    chosen = np.ones(len(group), bool) if chosen is None else chosen
    begin, end = np.full(num_groups, _LATEST, np.int64), np.full(num_groups, -1, np.int64)
    np.minimum.at(begin, group[chosen], timeline.begin_ns[chosen])
    np.maximum.at(end, group[chosen], timeline.end_ns[chosen])
    empty = end < 0
    begin[empty], end[empty] = 0, 0
    return begin, end
