"""Placement buddy-ring: what every placement must be, the paper's example, options, and errors."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liquidcp_compiler.driver import plan
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.passes.buddy_loads import Target, largest_share, legal_sizes, smallest_sizes
from liquidcp_compiler.passes.buddy_ring import BuddyRing
from liquidcp_compiler.passes.placement import Placement
from liquidcp_compiler.passes.registry import pass_from_spec
from tests.graphs import prefill_problem

FIGURE_7 = [24576, 24576, 14336, 2048]


def loads(placement: Placement) -> tuple[list[Fraction], list[Fraction]]:
    """Tokens and work of every rank."""
    tokens, work = [Fraction(0)] * placement.world, [Fraction(0)] * placement.world
    for s in placement.sequences:
        for r in s.ranks:
            tokens[r] += Fraction(s.length, s.degree)
            work[r] += Fraction(s.length * (s.length + 1), 2 * s.degree)
    return tokens, work


def imbalance(load: list[Fraction]) -> Fraction:
    mean = sum(load) / len(load)
    return max(abs(x - mean) for x in load) / mean


def documents(num: int, seed: int, most: int = 1 << 17) -> list[int]:
    return np.minimum(np.exp(np.random.default_rng(seed).normal(6.5, 1.3, num)).astype(int) + 1, most).tolist()


@pytest.mark.parametrize("search", ["full", "paper"])
@pytest.mark.parametrize("legality", ["tile", "paper"])
def test_figure_7(search: str, legality: str):
    placement = BuddyRing(search=search, legality=legality).place(FIGURE_7, 4)
    assert [(s.start, s.degree) for s in placement.sequences] == [(0, 2), (2, 2), (0, 4), (0, 1)]
    tokens, work = loads(placement)
    assert tokens == [n * 1024 / 2 for n in (35, 31, 31, 31)]
    assert imbalance(tokens) == Fraction(9375, 100_000)
    assert round(float(imbalance(work)) * 100, 3) == 0.888
    assert sum(s.degree for s in placement.sequences) == 9


def test_figure_7_minimum_sizes():
    """The rule of A.1 gives 2, 2 and 1: it does not force the third sequence over four ranks."""
    lengths = np.array(FIGURE_7)
    target = Target.make(lengths, 4, (0.10, 0.05))
    legal = legal_sizes(lengths, 128, "paper", 4, None)
    assert np.round(target.kappa(lengths), 3).tolist() == [1.704, 1.704, 0.875, 0.125]
    assert smallest_sizes(target.loads(lengths, legal, 4), legal).tolist() == [1, 1, 0, 0]


@settings(max_examples=60)
@given(
    st.lists(st.one_of(st.integers(0, 600), st.integers(0, 40_000)), max_size=24),
    st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    st.sampled_from(["tile", "paper"]),
    st.sampled_from(["full", "paper"]),
)
def test_groups_are_aligned_legal_and_complete(lengths: list[int], world: int, legality: str, search: str):
    placement = BuddyRing(legality=legality, search=search).place(lengths, world)
    assert placement.lengths.tolist() == lengths
    assert placement.scheme == ("buddy-ring" if world <= 16 else "buddy-ring/two-level")
    for s in placement.sequences:
        assert (s.degree == 0) == (s.length == 0)
        if s.degree:
            assert s.start is not None
            assert s.ranks[-1] < world
            assert s.degree & (s.degree - 1) == 0
            assert s.degree <= 8 or world > 16
        if s.degree > 1:
            assert s.length % (256 * s.degree) == 0 if legality == "paper" else -(-s.length // 128) >= 2 * s.degree


@settings(max_examples=20)
@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=40), st.sampled_from([2, 8, 16, 32]))
def test_the_same_batch_gives_the_same_placement(lengths: list[int], world: int):
    assert BuddyRing().place(lengths, world) == BuddyRing().place(np.array(lengths), world)


@pytest.mark.parametrize("seed", range(6))
def test_documents_on_eight_ranks_are_within_tolerance(seed: int):
    tokens, work = loads(BuddyRing().place(documents(110, seed), 8))
    assert imbalance(tokens) <= Fraction(1, 10)
    assert imbalance(work) <= Fraction(1, 20)


@pytest.mark.parametrize(("num", "world"), [(600, 32), (1000, 64)])
def test_two_levels_are_within_tolerance(num: int, world: int):
    tokens, work = loads(BuddyRing().place(documents(num, 1), world))
    assert imbalance(tokens) <= Fraction(1, 10)
    assert imbalance(work) <= Fraction(1, 20)


def test_a_sequence_too_long_for_a_node_gets_whole_nodes():
    placement = BuddyRing().place([1 << 17, *[1024] * 512], 64)
    assert placement.sequences[0].degree >= 16
    assert placement.sequences[0].start is not None
    assert max(s.degree for s in placement.sequences[1:]) <= 8


def test_max_group_holds_except_for_whole_nodes():
    assert max(s.degree for s in BuddyRing(max_group=2).place([1 << 16, 1 << 15, 4096], 8).sequences) == 2
    assert max(s.degree for s in BuddyRing(max_group=16).place([1 << 17], 16).sequences) == 16
    degrees = {s.degree for s in BuddyRing(max_group=2).place([1 << 17, *documents(300, 0, 9000)], 32).sequences}
    assert degrees <= {1, 2, 16, 32}


def test_equal_sequences_are_placed_apart():
    placement = BuddyRing().place([4096] * 8, 8)
    assert sorted(s.ranks for s in placement.sequences) == [(r,) for r in range(8)]


def test_only_empty_sequences():
    assert [s.ranks for s in BuddyRing().place([0, 0], 4).sequences] == [(), ()]
    assert BuddyRing().place([], 4).sequences == ()


def test_largest_share_is_that_of_the_tiles():
    lengths = np.array([1, 127, 1000, 4097, 24576, 10_001])
    for g in (1, 2, 4, 8):
        placement = Placement(scheme="", world=g, tile=128, sequences=())
        for length, most in zip(lengths.tolist(), largest_share(lengths, 128, g).tolist(), strict=True):
            place = BuddyRing().place([length], 1).sequences[0]
            one = type(placement)(
                scheme="", world=g, tile=128, sequences=(type(place)(length=length, ranks=tuple(range(g))),)
            )
            owners = one.tile_owners(np.array([length]))
            rows = np.full(len(owners), 128)
            rows[-1] = length - 128 * (len(owners) - 1)
            assert np.bincount(owners, rows).max() == most


@pytest.mark.parametrize("seed", range(4))
def test_token_limit_holds_for_whole_tiles(seed: int):
    lengths = documents(40, seed, 40_000)
    limit = -(-sum(lengths) // 8) * 107 // 100
    placement = BuddyRing(token_limit=limit).place(lengths, 8)
    owners = placement.tile_owners(np.array(lengths))
    rows = np.concatenate([[min(128, n - at) for at in range(0, n, 128)] for n in lengths])
    assert np.bincount(owners, rows).max() <= limit


def test_token_limit_names_the_length_that_fits_no_group():
    with pytest.raises(InvalidField, match=r"lengths\[2\] is 50000"):
        BuddyRing(token_limit=4096).place([100, 0, 50_000], 8)
    with pytest.raises(InvalidField, match="token_limit"):
        BuddyRing(token_limit=4096).place([4096] * 9, 8)


@pytest.mark.parametrize("world", [0, 3, 6, 12])
def test_other_worlds_are_refused_with_placements_that_take_them(world: int):
    with pytest.raises(InvalidField, match=r"cp_size.*zigzag-all, all-local, magi-chunks and explicit"):
        BuddyRing().place([100], world)


@pytest.mark.parametrize("length", [-1, 1.5, True])
def test_bad_lengths_are_named(length: object):
    with pytest.raises(InvalidField, match=r"lengths\[1\]"):
        BuddyRing().place([5, length], 2)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_tolerance", -0.1),
        ("work_tolerance", float("nan")),
        ("structural_threshold", -1.0),
        ("load_bin", 0.0),
        ("smooth_max", 0.0),
        ("beam_width", 0),
        ("num_refined", 0),
        ("repair_iterations", -1),
        ("extremes", 0),
        ("candidates", 0),
        ("max_group", 3),
        ("tile", 0),
        ("legality", "any"),
        ("search", "best"),
        ("token_limit", 0),
    ],
)
def test_bad_options_are_named(field: str, value: object):
    with pytest.raises(InvalidField, match=field):
        BuddyRing(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"token_tolerance": 0, "work_tolerance": 0},
        {"smooth_max": 1000.0},
        {"beam_width": 1, "num_refined": 1, "extremes": 1, "candidates": 1, "repair_iterations": 0},
        {"load_bin": 5.0},
        {"structural_threshold": 0.0},
        {"structural_threshold": 100.0},
    ],
)
def test_options_at_their_ends_give_placements(options: dict):
    for search in ("full", "paper"):
        placement = BuddyRing(search=search, **options).place(documents(30, 0), 8)
        assert all(s.degree for s in placement.sequences)


def test_a_tolerance_that_allows_everything():
    assert BuddyRing(token_tolerance=1e300, work_tolerance=10**30).place([5000, 300], 4).degrees.tolist() == [1, 1]


def test_a_placed_graph_plans_and_keys_follow_queries():
    problem = prefill_problem([1024, 300, 4096])
    made = plan(problem, cp_size=4, placement=BuddyRing(tile=64))
    assert made is not None


def test_options_survive_pipeline_text():
    for placer in (BuddyRing(token_limit=20_000, search="paper", load_bin=0.05), BuddyRing()):
        assert pass_from_spec(placer.spec) == placer


def test_importing_needs_no_numba():
    code = "import sys, liquidcp_compiler.passes.buddy_ring; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
