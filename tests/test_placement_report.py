"""Reports, pictures and advice on placements, and the command that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from liquidcp_compiler.cli import main
from liquidcp_compiler.driver import plan
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem import DType
from liquidcp_compiler.passes.all_local import AllLocal
from liquidcp_compiler.passes.magi_chunks import MagiChunks
from liquidcp_compiler.passes.megatron_hybrid import MegatronHybrid
from liquidcp_compiler.passes.placement import Placement, SequencePlace
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_compiler.placement_advice import PlacementCost, advise
from liquidcp_compiler.placement_report import AttentionShape, PlacementReport, describe_ranks, short_tokens
from tests.graphs import prefill_problem

FIGURE_7 = [24576, 24576, 14336, 2048]
BATCH = [*map(str, FIGURE_7), "--world", "4"]


def placed(*ranks: tuple[int, ...]) -> Placement:
    """Figure 7's batch with these groups."""
    places = tuple(SequencePlace(length=n, ranks=r) for n, r in zip(FIGURE_7, ranks, strict=True))
    return Placement(scheme="by hand", world=4, tile=128, sequences=places)


def report(placement: Placement, **fields) -> PlacementReport:
    return PlacementReport(placement=placement, **fields)


def test_megatron_in_figure_7():
    r = report(MegatronHybrid().place(FIGURE_7, 4))
    assert r.token_imbalance == 18.75
    assert round(r.work_imbalance, 3) == 14.201
    assert (r.num_shards, r.num_rounds) == (12, 2)
    assert r.violation == pytest.approx(14.20139 - 5, abs=1e-4)


def test_buddy_ring_in_figure_7():
    r = report(placed((0, 1), (2, 3), (0, 1, 2, 3), (0,)))
    assert r.token_imbalance == 9.375
    assert round(r.work_imbalance, 3) == 0.888
    assert (r.num_shards, r.num_groups, r.violation) == (9, 4, 0)
    assert r.comm_tokens == 35328


def test_tiles_agree_with_the_nominal_loads_where_they_divide():
    r = report(placed((0, 1), (2, 3), (0, 1, 2, 3), (0,)))
    assert (r.tile_tokens == r.tokens).all()
    assert (r.tile_work == r.work).all()


def test_tiles_show_what_the_nominal_loads_hide():
    r = report(ZigzagAll().place([200], 2))
    assert (r.token_imbalance, r.tokens.tolist()) == (0, [100, 100])
    assert r.tile_tokens.tolist() == [72, 128]
    assert r.tile_work.tolist() == [200 * 201 // 2 - 128 * 129 // 2, 128 * 129 // 2]
    assert r.to_json()["tiles"]["D_T"] == pytest.approx(28)


def test_received_tokens_add_up_to_the_proxy():
    r = report(placed((0, 1), (2, 3), (0, 1, 2, 3), (0,)))
    by_sequence = sum(n * (g - 1) for n, g in zip(FIGURE_7, (2, 2, 4, 1), strict=True))
    assert r.received.sum() == by_sequence
    assert r.pulls.tolist() == [1 + 3] * 4
    shape = AttentionShape(num_heads_kv=2, head_dim=64, dtype=DType.FP32)
    assert report(r.placement, shape=shape).comm_bytes == 35328 * 2 * 2 * 64 * 4


def test_json_has_what_the_contract_names():
    data = json.loads(json.dumps(report(MegatronHybrid().place([*FIGURE_7, 0], 4)).to_json()))
    assert {"D_T", "D_W", "V", "shards", "groups", "bytes", "ranks", "sequences"} <= set(data)
    assert data["ranks"][0] == {"tokens": 19456.0, "work": 202384896.0}
    first = {"length": 24576, "start": 0, "degree": 4, "ranks": [0, 1, 2, 3], "round": 0}
    assert data["sequences"][0] == first
    assert data["sequences"][4]["ranks"] == []


def test_text_shows_the_longest_sequences():
    text = report(AllLocal().place([100, 5, 300, 7], 2)).to_text(most=2)
    assert "4 sequences, 412 tokens, longest 300" in text
    rows = [line.split()[:2] for line in text.splitlines() if line.endswith(" 0")]
    assert rows == [["0", "100"], ["2", "300"]]
    assert text.endswith("and 2 shorter sequences\n")


def test_parts_of_scattered_sequences_are_ranges():
    r = report(MagiChunks(chunk=128, min_chunks_per_rank=1).place([384, 100], 2))
    assert [r.part(0), r.part(1)] == ["2 x 128 to 256", "1 x 100"]


def test_empty_batches_have_no_imbalance():
    r = report(AllLocal().place([], 3))
    assert (r.token_imbalance, r.work_imbalance, r.violation, r.num_rounds) == (0, 0, 0, 1)
    assert "0 sequences" in r.to_text()


@pytest.mark.parametrize("name", ["token_tolerance", "work_tolerance"])
@pytest.mark.parametrize("value", [-0.01, float("nan"), "0.1", None, True])
def test_tolerances_are_shares(name, value):
    with pytest.raises(InvalidField, match=name):
        report(placed((0,), (0,), (0,), (0,)), **{name: value})


def test_tolerances_decide_on_the_violation():
    placement = MegatronHybrid().place(FIGURE_7, 4)
    assert report(placement, token_tolerance=0.2, work_tolerance=0.15).violation == 0


def test_short_forms():
    assert [short_tokens(x) for x in (12288, 3584, 700, 100.5)] == ["12K", "3.5K", "700", "100.5"]
    assert [describe_ranks(x) for x in ((0, 1, 2), (2, 0), (3,), (), (1, 0))] == ["0-2", "0 2", "3", "-", "0-1"]
    assert describe_ranks((5, 2, 0)) == "0 2 5"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_whole_and_the_same_again(tmp_path, suffix):
    r = report(MegatronHybrid().place(FIGURE_7, 4))
    paths = [r.plot(tmp_path / f"{i}.{suffix}") for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"0.{suffix}", f"1.{suffix}"]


def test_pictures_have_a_row_a_sequence_and_a_column_a_rank():
    from matplotlib.patches import Rectangle

    from liquidcp_compiler.placement_plot import OUTSIDE, placement_figure

    figure = placement_figure(report(MegatronHybrid().place(FIGURE_7, 4)))
    (axes,) = figure.axes
    cells = {(p.get_y(), p.get_x()): p for p in axes.patches if isinstance(p, Rectangle)}
    assert len(cells) == 16
    grey = matplotlib_rgba(OUTSIDE)
    assert [[cells[y, x].get_facecolor() == grey for x in range(4)] for y in (1, 2, 3)] == [
        [False] * 4,
        [False, False, True, True],
        [True, True, False, False],
    ]
    words = {t.get_text() for t in axes.texts}
    assert {"4 x 6K", "2 x 7K", "2 x 1K", "S2  14K"} <= words
    assert any("18.75" in t.get_text() and "14.20" in t.get_text() for t in figure.texts)


def matplotlib_rgba(color: str):
    from matplotlib.colors import to_rgba

    return to_rgba(color)


def test_pictures_of_another_kind_are_refused(tmp_path):
    with pytest.raises(InvalidField, match="plot"):
        report(AllLocal().place([5], 2)).plot(tmp_path / "x.gif")
    assert list(tmp_path.iterdir()) == []


def test_short_batches_want_fewer_ranks():
    advice = advise([1024], 8, ZigzagAll())
    assert advice.fewer_is_better
    assert advice.best.world < 8
    assert advice.sentence in advice.to_text()
    assert [row.world for row in advice.rows] == [1, 2, 4, 8]


def test_long_batches_want_them_all():
    advice = advise([131072], 6, ZigzagAll())
    assert [row.world for row in advice.rows] == [1, 2, 4, 6]
    assert not advice.fewer_is_better
    assert advice.to_json()["best"] == 6


def test_advice_is_the_documented_model():
    cost = PlacementCost(flops=1e12, link_bytes_per_s=1e9, link_latency_s=1e-3)
    row = advise([1000], 2, ZigzagAll(tile=100), AttentionShape(), cost).rows[-1]
    assert row.attention_s == pytest.approx(1000 * 1001 / 2 / 2 * 4 * 32 * 128 / 1e12)
    assert row.communication_s == pytest.approx(500 * 2 * 8 * 128 * 2 / 1e9 + 1e-3)


def test_advice_leaves_out_what_the_placer_refuses():
    assert [row.world for row in advise([32768], 8, MegatronHybrid()).rows] == [4, 8]
    with pytest.raises(InvalidField, match="target_tokens"):
        advise([65537], 8, MegatronHybrid())


@pytest.mark.parametrize("name", ["flops", "link_bytes_per_s", "link_latency_s"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), "1", None, True])
def test_costs_are_positive(name, value):
    with pytest.raises(InvalidField, match=name):
        PlacementCost(**{name: value})


def test_advice_names_what_makes_no_sense():
    with pytest.raises(InvalidField, match="cp_size"):
        advise([5], 2.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="dtype.*bf16"):
        AttentionShape(dtype="none")  # type: ignore[arg-type]


def test_the_page_s_placement_works_as_it_stands():
    page = (Path(__file__).parents[1] / "docs" / "placement.md").read_text()
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "placement.md", "exec"), names)
    scheme = names["RoundRobin"](tile=16)
    made = plan(prefill_problem([100, 50, 20]), 2, placement=scheme, verify="each")
    assert made.pipeline.startswith("round-robin{tile=16}")
    assert [int(made.header(r)["num_local_q_tokens"]) for r in range(2)] == [120, 50]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["place", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_place_prints_the_report(capsys, tmp_path):
    picture = str(tmp_path / "p.png")
    code, out, _ = run(capsys, *BATCH, "--placement", "megatron-hybrid", "--plot", picture)
    assert code == 0
    assert "D_T 18.750 %, D_W 14.201 %" in out
    assert "12 shards" in out
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_place_as_json(capsys):
    code, out, _ = run(capsys, *BATCH, "--placement", "megatron-hybrid", "--target-tokens", "16384", "--json")
    assert code == 0
    assert json.loads(out)["shards"] == 8


def test_place_compares_all(capsys):
    code, out, _ = run(capsys, *BATCH, "--compare", "--json", "--target-tokens", "100")
    data = {entry["placement"]: entry for entry in json.loads(out)["placements"]}
    assert code == 0
    assert "at most 400" in data["megatron-hybrid"]["error"]
    assert data["zigzag-all"]["D_T"] == 0
    assert data["buddy-ring"]["D_T"] == 9.375
    assert {"zeppelin", "all-local", "magi-chunks"} < set(data)
    assert np.isfinite([entry["D_W"] for entry in data.values() if "D_W" in entry]).all()


def test_a_bad_option_ends_a_comparison(capsys):
    code, out, err = run(capsys, "500", "--world", "2", "--compare", "--legality", "none")
    assert (code, out) == (2, "")
    assert "legality is 'none'" in err


def test_place_gives_advice(capsys):
    code, out, _ = run(capsys, "1024", "--world", "8", "--placement", "zigzag-all", "--advise")
    assert code == 0
    assert "Fewer ranks do better" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["5", "0", "--world", "2", "--placement", "all-local"], "lengths[1] is '0'"),
        (["5", "-3", "--world", "2", "--placement", "all-local"], "lengths[1] is '-3'"),
        (["5", "x", "--world", "2"], "lengths[1] is 'x'"),
        (["5"], "--world is missing"),
        (["5", "--world", "0"], "--world is 0"),
        (["5", "--world", "3", "--placement", "megatron-hybrid"], "--world is 3; allowed: a power of two"),
        (["5", "--world", "2", "--placement", "none"], "--placement is 'none'"),
        (["5", "--world", "2", "--placement", "dcp"], "--placement is 'dcp'"),
        (["5", "--world", "2", "--placement", "zeppelin", "--legality", "paper"], "zeppelin has no such option"),
        (["5", "--world", "2", "--placement", "zeppelin", "--target-tokens", "9"], "zeppelin has no such option"),
        (["5", "--world", "2", "--placement", "zigzag-all", "--legality", "x"], "legality is 'x'"),
        (["9999", "--world", "2", "--placement", "megatron-hybrid", "--target-tokens", "9"], "lengths[0] is 9999"),
        (["5", "--world", "2", "--placement", "megatron-hybrid{target-tokens=5}", "--target-tokens", "9"], "already"),
        (["5", "--world", "2", "--compare", "--placement", "zeppelin"], "beside --compare"),
        (["5", "--world", "2", "--placement", "all-local", "--plot", "x.gif"], "plot is 'x.gif'"),
        (["5", "--wrld", "2"], "--wrld"),
    ],
)
def test_place_refuses(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
