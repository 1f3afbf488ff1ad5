"""Region maps: cells agree with the mask and the placement; files are whole, repeatable pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from liquidcp_compiler import (
    Causal,
    DecodeProblem,
    Document,
    Full,
    PrefillProblem,
    SharedPrefix,
    SlidingWindow,
    plan,
)
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.plot import (
    CELL_MASKED,
    CELL_REPLICATED,
    MAX_PANELS,
    panels,
    rank_colors,
    region_map,
    save_figure,
)

HEADS = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 64}
MASKS = [
    Causal(),
    Full(),
    SlidingWindow(left=150, right=0),
    Document(cu_seqlens=(0, 200, 901, 1030)),
    SharedPrefix(prefix=140),
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m.type)
def test_cells_are_what_the_mask_shows(mask) -> None:
    problem = PrefillProblem(lengths=(900, 130), mask=mask, **HEADS)
    made = plan(problem, 3)
    for panel in panels(made):
        s, bound = panel.sequence, problem.mask_bound
        length = int(problem.q_lengths[s])
        seen = bound.visible(s, np.arange(length), np.arange(length))
        edges = np.arange(0, length, 128)
        shown = np.logical_or.reduceat(np.logical_or.reduceat(seen, edges, axis=0), edges, axis=1)
        np.testing.assert_array_equal(panel.owner != CELL_MASKED, shown)


def test_colours_are_the_owners_of_the_keys() -> None:
    made = plan(PrefillProblem(lengths=(1024,), mask=Full(), **HEADS), 2)
    (panel,) = panels(made)
    expected = [0, 0, 1, 1, 1, 1, 0, 0]
    assert panel.q_owner.tolist() == expected
    assert panel.owner.tolist() == [expected] * 8


def test_decode_shows_shards_and_new_tokens() -> None:
    made = plan(DecodeProblem(requests=((600, 1), (0, 2)), **HEADS), 2)
    first, second = panels(made)
    assert first.owner.tolist() == [[0, 0, 0, 1, 1, 1, CELL_REPLICATED]] * 2
    assert first.q_head.tolist() == [0, 2]
    assert second.owner.tolist() == [[CELL_REPLICATED]] * 2


def test_the_figure_has_a_panel_a_sequence_and_a_legend() -> None:
    figure = region_map(plan(PrefillProblem(lengths=(900, 0, 77, 300), **HEADS), 3))
    titles = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert titles == ["sequence 0: 900", "sequence 3: 300", "sequence 2: 77"]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["rank 0", "rank 1", "rank 2", "masked", "compute region"]
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(0 <= b.x0 < b.x1 <= 1 and 0 <= b.y0 < b.y1 <= 1 for b in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("lengths", [(), (1,), (20000,), (100,) * 40])
def test_figures_of_any_batch_stay_of_a_page(lengths: tuple[int, ...]) -> None:
    figure = region_map(plan(PrefillProblem(lengths=lengths, **HEADS), 2))
    width, height = figure.get_size_inches()
    assert width < 16
    assert height < 16
    assert len(figure.axes) == min(len(lengths), MAX_PANELS)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_files_are_whole_and_repeatable(tmp_path: Path, suffix: str) -> None:
    made = plan(PrefillProblem(lengths=(300, 77), **HEADS), 2)
    first = save_figure(region_map(made), tmp_path / f"a{suffix}").read_bytes()
    assert first == save_figure(region_map(made), tmp_path / f"b{suffix}").read_bytes()
    assert first.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    made = plan(PrefillProblem(lengths=(1,), **HEADS), 1)
    with pytest.raises(InvalidField, match=r"\.png, \.svg, \.pdf"):
        save_figure(region_map(made), tmp_path / "map.gif")


@pytest.mark.parametrize("world", [1, 8, 9, 64])
def test_every_rank_has_a_colour_of_its_own(world: int) -> None:
    colors = rank_colors(world)
    assert len(set(colors)) == len(colors) == world
