"""What a command says of a timeline: its file, and a table of where the time of each rank went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from liquidcp_compiler.cli.output import Output

if TYPE_CHECKING:
    from liquidcp_compiler.ir.launch import TraceKind
    from liquidcp_runtime.timeline import Timeline
    from liquidcp_runtime.timeline_summary import RankSummary


def timeline_data(timeline: Timeline, path: Path) -> dict[str, Any]:
    """What is said of a timeline that lies in ``path``, in plain values."""
    from liquidcp_runtime.timeline_summary import summarize

    ranks = [summary.to_json() for summary in summarize(timeline)]
    return {"file": str(path), "clock": timeline.clock, "dropped": timeline.dropped, "ranks": ranks}


def print_timeline(timeline: Timeline, out: Output) -> None:
    """Two tables with one line a rank: what its CTAs did with their time, and the tails of its stages."""
    from liquidcp_runtime.timeline_summary import STAGES, WORK, summarize

    summaries = summarize(timeline)
    work = [kind for kind in WORK if any(x.busy_ns[kind] for x in summaries)]
    out.heading(f"timeline by {timeline.clock}")
    headings = ["rank", "us", *(kind.name.lower() for kind in work), "wait", "unrecorded"]
    out.table(headings, [_time_cells(x, work) for x in summaries])
    stages = [s for s in STAGES if any(tail.stage == s for x in summaries for tail in x.tails)]
    out.table(
        ["rank", *(f"{stage} tail" for stage in stages), "tail idle"], [_tail_cells(x, stages) for x in summaries]
    )
    if timeline.dropped:
        out.line(f"dropped   {timeline.dropped} records: busy times are too small")


def _time_cells(summary: RankSummary, work: list[TraceKind]) -> list[str]:
    """The rank's span, and parts of its CTAs' time."""
    parts = [*(summary.busy_ns[kind] for kind in work), summary.wait_ns, summary.unrecorded_ns]
    shares = (f"{part / max(summary.cta_ns, 1):.1%}" for part in parts)
    return [str(summary.rank), f"{summary.span_ns / 1e3:.1f}", *shares]


def _tail_cells(summary: RankSummary, stages: list[str]) -> list[str]:
    """Tail idle as a part of the CTAs' time in each stage, and in all."""
    tails = {tail.stage: f"{tail.fraction:.1%}" for tail in summary.tails}
    return [str(summary.rank), *(tails.get(stage, "-") for stage in stages), f"{summary.tail_fraction:.1%}"]
