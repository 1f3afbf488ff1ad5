"""Pictures of plans: the region map (as figure 5 of the paper), drawn without a display.

matplotlib is loaded on first use.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.atomic_file import write_file
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import DecodeProblem
from liquidcp_compiler.plan_regions import Region, regions
from liquidcp_compiler.report import counted, describe_problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
PALETTE = ("#4C78A8", "#F2A154", "#6BAF6B", "#D9706F", "#8F7DB8", "#5FB3B3", "#D98CB3", "#A68A64")
MASKED, REPLICATED, INK = "#E3E3E3", "#F7EBC8", "#2B2B2B"
#: Values of a cell that no rank owns.
CELL_MASKED, CELL_REPLICATED = -2, -1

MAX_PANELS = 12
_MAX_CELL, _WIDTH, _GAP, _COLUMN_HEIGHT = 0.24, 9.0, 0.42, 3.2  # inches
_STRIP = 0.7  # width of the strip of query owners, in cells


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One sequence as cells.

    Fields: ``q_tiles``, ``kv_tiles`` (tile numbers of the graph), ``q_owner`` (rank of each query tile), ``owner``
    [q tiles, kv tiles] (rank that owns the cell's keys, ``CELL_MASKED`` where nothing is computed, ``CELL_REPLICATED``
    for keys on every rank), ``regions`` of the sequence.
    """

    sequence: int
    q_tiles: NDArray[np.int64]
    kv_tiles: NDArray[np.int64]
    q_owner: NDArray[np.int64]
    q_head: NDArray[np.int64]
    owner: NDArray[np.int64]
    regions: tuple[Region, ...]


def panels(plan: Plan) -> list[Panel]:
    """Every sequence that has query tiles, in order. Empty sequences have no panel."""
    q, kv = _tiles(plan, "q_tiles"), _tiles(plan, "kv_tiles")
    by_sequence: dict[int, list[Region]] = {}
    for region in regions(plan):
        for sequence in np.unique(q["sequence"][np.searchsorted(q["tile"], region.q_tiles)]).tolist():
            by_sequence.setdefault(sequence, []).append(region)
    result = []
    for sequence in np.unique(q["sequence"]).tolist():
        mine, keys = q[q["sequence"] == sequence], kv[kv["sequence"] == sequence]
        owner = np.full((len(mine), len(keys)), CELL_MASKED, np.int64)
        for region in by_sequence.get(sequence, []):
            rows = _places(mine["tile"], region.q_tiles)
            columns = _places(keys["tile"], region.kv_tiles)
            owner[np.ix_(rows, columns)] = keys["owner"][columns]
        result.append(
            Panel(
                sequence=sequence,
                q_tiles=mine["tile"].astype(np.int64),
                kv_tiles=keys["tile"].astype(np.int64),
                q_owner=mine["owner"].astype(np.int64),
                q_head=mine["head"].astype(np.int64),
                owner=owner,
                regions=tuple(by_sequence.get(sequence, [])),
            )
        )
    return result


def region_map(plan: Plan) -> Figure:
    """The plan as a picture: a panel a sequence, rows query tiles, columns KV tiles.

    Colours say who owns the keys and values, grey is masked, dashed outlines are compute regions, and the strip on the
    left says which rank owns the queries. The largest sequences are shown where there are more than ``MAX_PANELS``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = panels(plan)
    shown = sorted(found, key=lambda p: (-p.owner.shape[0], -p.owner.shape[1]))[:MAX_PANELS]
    places, width, height, cell = _pack(shown)
    bottom, top = 0.62, 0.95
    figure = Figure(figsize=(width + 1.0, height + bottom + top), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    w, h = width + 1.0, height + bottom + top
    for panel, (x, y) in zip(shown, places, strict=True):
        rows, columns = panel.owner.shape
        box = ((0.6 + x) / w, (h - top - y - rows * cell) / h, columns * cell / w, rows * cell / h)
        _draw_panel(figure.add_axes(box), panel, plan, cell)
    more = f" ({MAX_PANELS} of {len(found)} sequences)" if len(found) > MAX_PANELS else ""
    title = f"{counted(plan.world, 'rank')}, {plan.pipeline.split(',')[0] or 'no passes'}{more}"
    figure.text(0.25 / w, 1 - 0.28 / h, title, fontsize=10, weight="bold", color=INK)
    figure.text(0.25 / w, 1 - 0.48 / h, describe_problem(plan.problem), fontsize=8, color=INK)
    _legend(figure, plan, found)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as .png, .svg or .pdf, without dates; it appears whole or not at all. Raises InvalidField."""
    import matplotlib

    suffix = check_suffix(path)
    buffer = io.BytesIO()
    no_date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    with matplotlib.rc_context({"svg.hashsalt": "liquidcp", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=suffix[1:], metadata=no_date)
    return write_file(path, buffer.getvalue())


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The kind of picture that a path names. Raises InvalidField."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidField("plot", os.fspath(path), "a file name that ends in " + ", ".join(SUFFIXES))
    return suffix


def rank_colors(world: int) -> list[str]:
    """One colour a rank; beyond the palette, hues around the circle."""
    if world <= len(PALETTE):
        return list(PALETTE[:world])
    from matplotlib.colors import hsv_to_rgb, to_hex

    values = [(i / world, 0.45 + 0.2 * (i % 2), 0.9 - 0.2 * (i % 3 == 1)) for i in range(world)]
    return [to_hex(tuple(hsv_to_rgb(v).tolist())) for v in values]


def _tiles(plan: Plan, table: str) -> NDArray:
    """One row a tile of the graph, in tile order."""
    rows = plan.tables[table]
    _, first = np.unique(rows["tile"], return_index=True)
    return rows[first]


def _places(tiles: NDArray, wanted: NDArray) -> NDArray[np.int64]:
    """Places of those of ``wanted`` that are among the sorted ``tiles``."""
    return np.flatnonzero(np.isin(tiles, wanted))


def _pack(shown: list[Panel]) -> tuple[list[tuple[float, float]], float, float, float]:
    """Corners of the panels in inches from the top left, width, height, and the size of a cell.

    The first panel is the tallest; the others are stacked in columns that are hardly taller.
    """
    if not shown:
        return [], 4.0, 0.5, _MAX_CELL
    columns: list[list[int]] = []
    cell = _MAX_CELL
    for _ in range(40):
        columns, used = [], 0.0
        tallest = shown[0].owner.shape[0] * cell
        limit = max(tallest, _COLUMN_HEIGHT)
        for i, panel in enumerate(shown):
            tall = panel.owner.shape[0] * cell
            if columns and used + _GAP + tall <= limit + 1e-9:
                columns[-1].append(i)
                used += _GAP + tall
            else:
                columns.append([i])
                used = tall
        width = sum(_column_width(shown, c, cell) for c in columns) + _GAP * (len(columns) - 1)
        if width <= _WIDTH and tallest <= _WIDTH:
            break
        cell *= 0.92
    places, x, height = [(0.0, 0.0)] * len(shown), 0.0, 0.0
    for column in columns:
        y = 0.0
        for i in column:
            places[i] = (x, y)
            y += shown[i].owner.shape[0] * cell + _GAP
        height = max(height, y - _GAP)
        x += _column_width(shown, column, cell) + _GAP
    return places, max(x - _GAP, 4.0), height, cell


def _column_width(shown: list[Panel], column: list[int], cell: float) -> float:
    return max(1.1, *(shown[i].owner.shape[1] * cell + (_STRIP + 0.4) * cell for i in column))


def _draw_panel(axes: Axes, panel: Panel, plan: Plan, cell: float) -> None:
    from matplotlib.colors import to_rgb

    rows, columns = panel.owner.shape
    colors = np.array([to_rgb(c) for c in (*rank_colors(plan.world), REPLICATED, MASKED)])
    index = np.where(panel.owner >= 0, panel.owner, plan.world + (panel.owner == CELL_MASKED))
    axes.imshow(colors[index], extent=(0, columns, rows, 0), interpolation="nearest", aspect="auto")
    strip = colors[np.where(panel.q_owner >= 0, panel.q_owner, plan.world)][:, None]
    axes.imshow(strip, extent=(-_STRIP - 0.3, -0.3, rows, 0), interpolation="nearest", aspect="auto", clip_on=False)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    if cell > 0.1:
        _grid(axes, rows, columns)
    _outline(axes, panel, cell)
    _label(axes, panel, plan, cell)


def _grid(axes: Axes, rows: int, columns: int) -> None:
    from matplotlib.collections import LineCollection

    lines = [[(x, 0), (x, rows)] for x in range(columns + 1)]
    lines += [[(-_STRIP - 0.3, y), (columns, y)] for y in range(rows + 1)]
    axes.add_collection(LineCollection(lines, colors="white", linewidths=0.7, clip_on=False))


def _outline(axes: Axes, panel: Panel, cell: float) -> None:
    """A dashed rectangle around each part of each region that lies together."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    boxes, inset = [], 0.08
    for region in panel.regions:
        rows, columns = _places(panel.q_tiles, region.q_tiles), _places(panel.kv_tiles, region.kv_tiles)
        for y0, y1 in _runs(rows):
            for x0, x1 in _runs(columns):
                boxes.append(Rectangle((x0 + inset, y0 + inset), x1 - x0 - 2 * inset, y1 - y0 - 2 * inset))
    style = {"facecolor": "none", "edgecolor": INK, "linewidth": min(0.9, cell * 5), "linestyle": (0, (2.2, 1.4))}
    axes.add_collection(PatchCollection(boxes, match_original=False, **style))


def _runs(places: NDArray[np.int64]) -> list[tuple[int, int]]:
    """[lo, hi) of neighbouring places."""
    if not len(places):
        return []
    cut = np.flatnonzero(np.diff(places) > 1)
    first = places[np.concatenate(([0], cut + 1))]
    last = places[np.concatenate((cut, [len(places) - 1]))]
    return list(zip(first.tolist(), (last + 1).tolist(), strict=True))


def _label(axes: Axes, panel: Panel, plan: Plan, cell: float) -> None:
    rows, columns = panel.owner.shape
    p, s = plan.problem, panel.sequence
    if isinstance(p, DecodeProblem):
        request = p.requests[s]
        title = f"request {s}: {request.history} + {request.query}"
    else:
        title = f"sequence {s}: {int(p.q_lengths[s])}"
    axes.text(-_STRIP - 0.3, -0.09 / cell, title, fontsize=7, color=INK, ha="left", va="bottom")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=6, pad=1, colors="#666666")
    step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 1 << 40) if s * cell >= 0.3)
    axes.set_xticks([])
    ticks = range(0, rows, step) if rows * cell > 0.5 else range(0, rows, max(rows, 1))
    axes.set_yticks([t + 0.5 for t in ticks], [_q_name(panel, t) for t in ticks])
    axes.tick_params(axis="y", pad=(_STRIP + 0.5) * cell * 72)


def _q_name(panel: Panel, place: int) -> str:
    heads = len(np.unique(panel.q_head)) > 1
    return f"H{panel.q_head[place]}" if heads else str(place)


def _legend(figure: Figure, plan: Plan, found: list[Panel]) -> None:
    from matplotlib.patches import Patch

    colors = rank_colors(plan.world)
    step = max(1, -(-plan.world // 16))
    handles = [Patch(facecolor=colors[r], label=f"rank {r}") for r in range(0, plan.world, step)]
    if any((p.owner == CELL_REPLICATED).any() for p in found):
        handles.append(Patch(facecolor=REPLICATED, label="on every rank"))
    if any((p.owner == CELL_MASKED).any() for p in found):
        handles.append(Patch(facecolor=MASKED, label="masked"))
    handles.append(Patch(facecolor="none", edgecolor=INK, linestyle=(0, (2.2, 1.4)), label="compute region"))
    columns = max(2, int(figure.get_figwidth() / 0.95))
    options = {"ncols": min(len(handles), columns), "fontsize": 7, "frameon": False, "handlelength": 1.2}
    figure.legend(handles=handles, loc="lower center", columnspacing=1.2, handletextpad=0.5, **options)
