"""The picture of a placement: a row a sequence, a column a rank (figure 7 of the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from liquidcp_compiler.plot import INK, rank_colors
from liquidcp_compiler.report import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from liquidcp_compiler.placement_report import PlacementReport

OUTSIDE = "#E3E3E3"
#: The longest sequences are drawn where a batch has more.
MAX_ROWS = 40
_ROW, _LEFT, _RIGHT, _TOP, _BOTTOM = 0.3, 1.15, 1.5, 0.72, 0.5  # inches


def placement_figure(report: PlacementReport) -> Figure:
    """Coloured where a rank shares the sequence, grey where it does not; ``2 x 12K`` is degree x tokens per rank."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    p = report.placement
    rows = sorted(np.argsort(-p.lengths, kind="stable")[:MAX_ROWS].tolist())
    column = min(0.6, max(0.22, 9.0 / p.world))
    width = max(_LEFT + column * p.world + _RIGHT, 4.2)
    height = _TOP + _ROW * max(len(rows), 1) + _BOTTOM
    figure = Figure(figsize=(width, height), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    box = (_LEFT / width, _BOTTOM / height, column * p.world / width, 1 - (_TOP + _BOTTOM) / height)
    _draw(figure.add_axes(box), report, rows)
    more = f" ({len(rows)} longest of {len(p.sequences)})" if len(rows) < len(p.sequences) else ""
    title = f"{p.scheme}, {counted(p.world, 'rank')}{more}"
    figure.text(0.15 / width, 1 - 0.26 / height, title, fontsize=10, weight="bold", color=INK)
    caption = f"$D_T$ = {report.token_imbalance:.2f} %,  $D_W$ = {report.work_imbalance:.2f} %"
    caption += f",  {counted(report.num_shards, 'shard')}"
    figure.text(0.15 / width, 0.18 / height, caption, fontsize=9, color=INK)
    return figure


def _draw(axes: Axes, report: PlacementReport, rows: list[int]) -> None:
    from matplotlib.patches import Rectangle

    from liquidcp_compiler.placement_report import short_tokens

    p, colors = report.placement, rank_colors(max(len(rows), 1))
    axes.set_xlim(0, p.world)
    axes.set_ylim(max(len(rows), 1), 0)
    for y, i in enumerate(rows):
        s = p.sequences[i]
        for rank in range(p.world):
            fill = colors[y] if rank in s.ranks else OUTSIDE
            axes.add_patch(Rectangle((rank, y), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.5))
        name = f"S{i}  {short_tokens(s.length)}"
        axes.text(-0.12, y + 0.5, name, ha="right", va="center", fontsize=8, color=INK)
        axes.text(p.world + 0.12, y + 0.5, report.part(i), ha="left", va="center", fontsize=8, color=INK)
    for x, name, side in ((-0.12, "rank", "right"), (p.world + 0.12, "ranks x tokens", "left")):
        axes.text(x, -0.42, name, ha=side, va="center", fontsize=8, color=INK, alpha=0.7)
    step = max(1, p.world // 32)
    axes.set_xticks([r + 0.5 for r in range(0, p.world, step)], [str(r) for r in range(0, p.world, step)])
    axes.set_yticks([])
    axes.tick_params(top=False, bottom=False, labeltop=True, labelbottom=False, labelsize=8, colors=INK, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)
