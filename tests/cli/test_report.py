"""Summaries: numbers counted another way."""

from __future__ import annotations

import json

import numpy as np
import pytest

from liquidcp_compiler import DecodeProblem, Full, PrefillProblem, SlidingWindow, plan
from liquidcp_compiler.plan_regions import regions, scores_per_rank
from liquidcp_compiler.report import RANK_COLUMNS, describe_problem, format_bytes, plan_text, summarize, summary_text

HEADS = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 64}
PROBLEMS = {
    "prefill": PrefillProblem(lengths=(900, 1, 77, 0, 513), **HEADS),
    "window": PrefillProblem(lengths=(900, 300), mask=SlidingWindow(left=100, right=0), **HEADS),
    "longer keys": PrefillProblem(lengths=(100, 300), kv_lengths=(700, 300), mask=Full(), **HEADS),
    "decode": DecodeProblem(requests=((700, 1), (0, 20), (130, 3)), **HEADS),
    "empty": PrefillProblem(lengths=(), **HEADS),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_scores_are_those_of_the_regions(name: str) -> None:
    made = plan(PROBLEMS[name], 2)
    q, kv = {}, {}
    for table, sizes in (("q_tiles", q), ("kv_tiles", kv)):
        for row in made.tables[table]:
            sizes[int(row["tile"])] = int(row["rows"]) * (int(row["num_heads"]) if table == "q_tiles" else 1)
    expected = np.zeros(2)
    for region in regions(made):
        height = sum(q[t] for t in region.q_tiles.tolist())
        expected[region.rank] += height * sum(kv[t] for t in region.kv_tiles.tolist())
    np.testing.assert_array_equal(scores_per_rank(made), expected)


def test_full_attention_scores_are_the_product_of_lengths() -> None:
    made = plan(PrefillProblem(lengths=(100, 300), kv_lengths=(700, 300), mask=Full(), **HEADS), 2)
    assert scores_per_rank(made).sum() == 4 * (100 * 700 + 300 * 300)


@pytest.mark.parametrize("name", PROBLEMS)
def test_tokens_tiles_and_tasks_add_up(name: str) -> None:
    problem = PROBLEMS[name]
    made = plan(problem, 2)
    data = summarize(made)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    ranks = data["ranks"]
    assert [set(r) for r in ranks] == [set(RANK_COLUMNS)] * 2
    copies = 2 if problem.kind == "decode" else 1  # query heads are divided, tokens are not
    assert sum(r["q_tokens"] for r in ranks) == copies * problem.total_q
    assert sum(r["transfers"] for r in ranks) == data["counts"]["transfers"]
    assert sum(r["compute_rows"] for r in ranks) == data["counts"]["compute_rows"]
    assert sum(r["reductions"] for r in ranks) == data["counts"]["reductions"]
    assert sum(r["attention_share"] for r in ranks) == pytest.approx(1.0 if problem.total_q else 0.0)


def test_bytes_pulled_are_the_tiles_that_travel() -> None:
    # Full attention on two ranks: each pulls what the other owns, K and V of 2 heads of 64 in bf16.
    data = summarize(plan(PrefillProblem(lengths=(512,), mask=Full(), **HEADS), 2))
    assert data["bytes_pulled"] == 512 * 2 * 2 * 64 * 2


@pytest.mark.parametrize("name", PROBLEMS)
def test_texts_have_every_rank_and_table(name: str) -> None:
    made = plan(PROBLEMS[name], 2)
    summary, text = summary_text(made), plan_text(made)
    assert text.startswith(summary)
    assert summary.startswith(describe_problem(PROBLEMS[name]))
    for table in made.tables:
        assert text.count(f"\n  {table}:") == 2
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_enums_are_printed_by_name() -> None:
    text = plan_text(plan(PROBLEMS["decode"], 2))
    for word in ("history", "chunk", "static", "state", "result", "ready", "done"):
        assert f" {word} " in text


def test_units() -> None:
    sizes = (0, 1023, 1024, 1536 * 1024, 5 * 2**40)
    assert [format_bytes(n) for n in sizes] == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5120.0 GiB"]
