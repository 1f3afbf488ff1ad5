"""What a command says of a timeline: its file, and a table of where the time of each rank went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from liquidcp_compiler.cli.output import Output

if TYPE_CHECKING:
    from liquidcp_runtime.timeline import Timeline
    from liquidcp_runtime.timeline_summary import RankSummary


def save_timeline(timeline: Timeline, path: Path, out: Output) -> dict[str, Any]:
    """Write the timeline's file and print its summary; both as plain values."""
    from liquidcp_runtime.timeline_summary import STAGES, WORK, summarize

    with out.working("writing the timeline"):
        written = timeline.to_perfetto(path)
    summaries = summarize(timeline)
    out.heading(f"timeline by {timeline.clock}, parts of the CTAs' time")
    stages = [s for s in STAGES if any(tail.stage == s for x in summaries for tail in x.tails)]
    work = [kind for kind in WORK if any(x.busy_ns[kind] for x in summaries)]
    headings = ["rank", "us", *(kind.name.lower() for kind in work), "wait", "unrecorded"]
    headings += [f"{stage} tail" for stage in stages] + ["tail idle"]
    out.table(headings, [_cells(x, work, stages) for x in summaries])
    if timeline.dropped:
        out.line(f"dropped   {timeline.dropped} records: busy times are too small")
    out.line(f"timeline  {written}")
    ranks = [x.to_json() for x in summaries]
    return {"timeline": {"file": str(written), "clock": timeline.clock, "dropped": timeline.dropped, "ranks": ranks}}


def _cells(summary: RankSummary, work: list, stages: list[str]) -> list[str]:
    tails = {tail.stage: f"{tail.fraction:.1%}" for tail in summary.tails}
    total = max(summary.cta_ns, 1)
    parts = [*(summary.busy_ns[kind] for kind in work), summary.wait_ns, summary.unrecorded_ns]
    return [
        str(summary.rank),
        f"{summary.span_ns / 1e3:.1f}",
        *(f"{part / total:.1%}" for part in parts),
        *(tails.get(stage, "-") for stage in stages),
        f"{summary.tail_fraction:.1%}",
    ]
