"""Draws the figures of README and docs: ``python docs/figures/draw.py``."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from liquidcp_compiler.cli.demo import WORLD, problems
from liquidcp_compiler.driver import plan
from liquidcp_compiler.plot import INK, PALETTE, region_map, save_figure

HERE = Path(__file__).parent
WIDTH, HEIGHT = 11.0, 4.7  # inches, and the units of every place below

#: name -> (x, y, width, title, text, colour)
BOXES = {
    "problem": (0.3, 2.95, 1.5, "problem", "lengths, heads,\nmask, dtype", "#EFEFEF"),
    "graph": (2.2, 2.95, 1.8, "task graph", "Transfer, Compute,\nReduction on tiles", PALETTE[0]),
    "passes": (4.4, 2.95, 2.0, "passes", "placement, transfers,\nformation, order, sync", "#D98532"),
    "plan": (6.8, 2.95, 1.7, "plan", "packed tables,\none fingerprint", "#4F9A4F"),
    "codegen": (8.9, 2.95, 1.8, "codegen", "one persistent\nCUDA kernel", PALETTE[3]),
    "cpu": (0.9, 0.62, 2.6, "CPU world", "event core and interpreter:\nreal data, no GPU", PALETTE[4]),
    "simulator": (4.7, 0.62, 2.3, "simulator", "the same event core:\na cost model, no data", "#3E9494"),
    "gpu": (8.3, 0.62, 2.4, "GPU worlds", "NVRTC, and ranks\nthat signal each other", PALETTE[3]),
}
BOX_HEIGHT = 1.05
BUS = 2.28  # height of the line that leads from the plan to the worlds
LAYERS = (("liquidcp_compiler: ir, passes, codegen, driver", 2.6, 4.4), ("liquidcp_runtime", 0.4, 2.1))


def architecture() -> Figure:
    """The way of a batch: problem, graph, passes, plan, and the ways to run it."""
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, HEIGHT)
    axes.axis("off")
    for name, low, high in LAYERS:
        band = FancyBboxPatch(
            (0.12, low), WIDTH - 0.24, high - low, boxstyle="round,pad=0,rounding_size=0.12", fc="#F8F8F8", ec="#DDDDDD"
        )
        axes.add_patch(band)
        axes.text(0.28, high - 0.1, name, fontsize=8, color="#888888", va="top")
    for x, y, width, title, text, colour in BOXES.values():
        style = "round,pad=0,rounding_size=0.08"
        axes.add_patch(FancyBboxPatch((x, y), width, BOX_HEIGHT, boxstyle=style, fc=colour, ec=INK, lw=0.8))
        ink = INK if colour == "#EFEFEF" else "white"
        middle = x + width / 2
        axes.text(middle, y + 0.78, title, fontsize=11, weight="bold", color=ink, ha="center", va="center")
        axes.text(middle, y + 0.36, text, fontsize=8.5, color=ink, ha="center", va="center")
    middle = BOX_HEIGHT / 2
    for left, right in (("problem", "graph"), ("graph", "passes"), ("passes", "plan"), ("plan", "codegen")):
        start, end = BOXES[left], BOXES[right]
        _arrow(axes, (start[0] + start[2], start[1] + middle), (end[0], end[1] + middle))
    plan_x, bottom = BOXES["plan"][0] + BOXES["plan"][2] / 2, BOXES["plan"][1]
    for name in ("cpu", "simulator", "gpu"):
        x, y, width, *_ = BOXES[name]
        _arrow(axes, (plan_x, bottom), (x + width / 2 - 0.5 * (name == "gpu"), y + BOX_HEIGHT), turn=BUS)
    x = BOXES["codegen"][0] + BOXES["codegen"][2] / 2
    _arrow(axes, (x + 0.2, bottom), (x + 0.2, BOXES["gpu"][1] + BOX_HEIGHT))
    axes.text(2.3, BUS + 0.07, "the same tables drive every way of running a batch", fontsize=8, color="#666666")
    return figure


def _arrow(axes, start: tuple[float, float], end: tuple[float, float], turn: float | None = None) -> None:
    """An arrow, straight or by way of a horizontal line at height ``turn``."""
    if turn is not None:
        axes.plot([start[0], start[0], end[0]], [start[1], turn, turn], color=INK, lw=1.1, solid_joinstyle="round")
        start = (end[0], turn)
    style = {"arrowstyle": "-|>", "mutation_scale": 11, "shrinkA": 0, "shrinkB": 1}
    axes.add_patch(FancyArrowPatch(start, end, color=INK, lw=1.1, **style))


def main() -> None:
    """Write architecture.svg, and a region map a problem of the demo."""
    print(save_figure(architecture(), HERE / "architecture.svg"))
    for name, problem in problems().items():
        print(save_figure(region_map(plan(problem, WORLD)), HERE / f"regions-{name}.png"))


if __name__ == "__main__":
    main()
