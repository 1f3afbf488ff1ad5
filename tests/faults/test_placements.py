"""Placement: batches of many tiny documents, degrees that follow each batch, short sequences kept whole."""

from __future__ import annotations

import numpy as np
import pytest

from liquidcp_compiler.driver import PLACEMENTS
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.passes.buddy_ring import BuddyRing
from liquidcp_compiler.passes.placement import Placer
from liquidcp_compiler.placement_report import PlacementReport
from liquidcp_compiler.workloads import sample_batch
from tests.numerics import check, prefill

pytestmark = pytest.mark.slow

GROUPED = [name for name, made in PLACEMENTS.items() if issubclass(made, Placer) and name != "explicit"]


@pytest.mark.parametrize("name", GROUPED)
def test_sequences_of_length_0_are_placed_nowhere(name: str) -> None:
    """fault B22"""
    placement = PLACEMENTS[name]().place([0, 5, 0, 300], 4)
    assert [s.degree for s in placement.sequences][::2] == [0, 0]
    check(prefill(0, 5, 0, 300), 4, place=PLACEMENTS[name](tile=32))


def test_a_sequence_that_no_group_can_hold_is_named() -> None:
    """fault B22"""
    with pytest.raises(InvalidField, match=r"lengths\[1\] is 10000000"):
        BuddyRing(token_limit=100_000).place([500, 10_000_000], 8)


def tiny_documents(num: int) -> list[int]:
    """Log-normal lengths around 33 tokens: almost all are far below one tile."""
    return np.maximum(np.random.default_rng(7).lognormal(3.0, 1.0, num), 1).astype(int).tolist()


@pytest.mark.parametrize(
    ("name", "num"), [("buddy-ring", 400), pytest.param("buddy-ring", 4000, marks=pytest.mark.slow)]
)
def test_many_tiny_documents(name: str, num: int) -> None:
    """fault B25: every document whole on one rank, nothing travels, buffers stay within the outputs' own size."""
    lengths = tiny_documents(num)
    plan, _, _ = check(prefill(*lengths), 8, place=PLACEMENTS[name]())
    assert len(plan.tables["transfers"]) == 0
    assert len(plan.tables["rows"]) == len(plan.tables["q_tiles"])
    tokens = plan.headers["num_local_q_tokens"]
    assert tokens.max() <= 1.1 * tokens.mean() + 1
    running = 2 * int(tokens.max()) * (16 + 1) * 4
    assert plan.workspace_bytes() <= running + 4096


def test_each_batch_is_planned_anew_without_a_new_kernel() -> None:
    """fault K5: the degree follows the longest sequence; kernel and buffers' kinds do not change."""
    specs, degrees = set(), []
    for longest in (1024, 5000, 16384, 70_000, 131_072):
        lengths = [longest, *([1024] * ((131_072 - longest) // 1024 + 1))]
        degrees.append(BuddyRing().place(lengths, 8).sequences[0].degree)
        specs.add(make_plan(prefill(*lengths), 8, placement=BuddyRing()).spec)
    assert len(specs) == 1
    assert degrees == sorted(degrees)
    assert degrees[0] < degrees[-1] == 8


def test_short_sequences_stay_whole_where_the_tolerances_allow() -> None:
    """fault K6, figure 7 of the paper"""
    placement = BuddyRing().place([24576, 24576, 14336, 2048], 4)
    report = PlacementReport(placement=placement).to_json()
    assert placement.sequences[3].degree == 1
    assert (round(report["D_T"], 3), round(report["D_W"], 3), report["shards"]) == (9.375, 0.888, 9)


@pytest.mark.parametrize("dataset", ["arxiv", "freelaw", "github", "pile-cc", "prolong"])
def test_loads_are_within_tolerance(dataset: str) -> None:
    """fault K6: 10 % of tokens and 5 % of attention, or the report says by how much not."""
    for seed in range(3):
        report = PlacementReport(placement=BuddyRing().place(sample_batch(dataset, 131_072, seed=seed), 8)).to_json()
        assert report["D_T"] <= 10
        assert report["D_W"] <= 5
        assert report["V"] == 0
