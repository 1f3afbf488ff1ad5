"""Masks: exact visibility against the definitions, intervals against visibility, and every refusal."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from liquidcp_compiler.errors import InvalidField, MaskError
from liquidcp_compiler.ir.mask import BlockSparse, Causal, Document, Full, Mask, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.mask_bound import explain_mask
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem

HEADS: dict[str, Any] = {"num_heads_q": 2, "num_heads_kv": 1, "head_dim": 16}


def defined_visible(problem: Problem, seq: int, i: int, k: int) -> bool:
    """The definition of each mask, pair by pair, in plain Python."""
    mask = problem.mask
    q_len, kv_len = int(problem.q_lengths[seq]), int(problem.kv_lengths_array[seq])
    position = i + kv_len - q_len
    match mask:
        case Full():
            return True
        case Causal():
            return k <= position
        case SlidingWindow(left=left, right=right):
            return position - left <= k <= position + right
        case Document(cu_seqlens=bounds):
            base = int(problem.q_offsets[seq])
            same = all((base + i >= b) == (base + k >= b) for b in bounds)
            return same and k <= i
        case SharedPrefix(prefix=prefix):
            assert isinstance(problem, PrefillProblem)
            borders = np.cumsum(problem.lengths)
            same = all((i >= b) == (k >= b) for b in borders)
            return k <= i and (same or k < prefix)
        case BlockSparse(block=block, rows=rows):
            return k // block in rows[i // block]
    raise AssertionError(mask)


def dense(problem: Problem, seq: int) -> np.ndarray:
    rows, columns = int(problem.q_lengths[seq]), int(problem.kv_lengths_array[seq])
    cells = [[defined_visible(problem, seq, i, k) for k in range(columns)] for i in range(rows)]
    return np.array(cells, np.bool_).reshape(rows, columns)


lengths_strategy = st.lists(st.integers(0, 14), max_size=4)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any small problem of any mask that can be built."""
    kind = draw(st.sampled_from(["plain", "decode", "document", "shared_prefix", "block_sparse"]))
    if kind in ("plain", "decode"):
        window = st.builds(lambda a, b: SlidingWindow(left=a, right=b), st.integers(0, 9), st.integers(0, 4))
        mask = draw(st.one_of(st.just(Causal()), st.just(Full()), window))
        pairs = draw(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=4))
        if kind == "decode":
            return DecodeProblem(requests=tuple(pairs), mask=mask, **HEADS)  # type: ignore[arg-type]
        lengths, kv_lengths = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        return PrefillProblem(lengths=lengths, kv_lengths=kv_lengths, mask=mask, **HEADS)
    lengths = tuple(draw(lengths_strategy))
    if kind == "document":
        total = sum(lengths)
        inner = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
        return PrefillProblem(lengths=lengths, mask=Document(cu_seqlens=(0, *inner, total)), **HEADS)
    if kind == "shared_prefix":
        lengths = (draw(st.integers(1, 14)), *lengths)
        prefix = draw(st.integers(1, lengths[0]))
        return PrefillProblem(lengths=lengths, mask=SharedPrefix(prefix=prefix), **HEADS)
    q_len, kv_len, block = draw(st.integers(0, 20)), draw(st.integers(0, 20)), draw(st.integers(1, 7))
    indices = st.lists(st.integers(0, max(-(-kv_len // block) - 1, 0)), unique=True).map(sorted)
    rows = [tuple(draw(indices)) if kv_len else () for _ in range(-(-q_len // block))]
    if q_len and kv_len and not any(rows):
        rows[0] = (0,)
    mask = BlockSparse(block=block, rows=tuple(rows))
    return PrefillProblem(lengths=(q_len,), kv_lengths=(kv_len,), mask=mask, **HEADS)


@given(problems())
@settings(max_examples=300, deadline=None)
def test_visible_is_the_definition(problem: Problem) -> None:
    bound = problem.mask_bound
    for seq in range(problem.num_sequences):
        expected = dense(problem, seq)
        rows, columns = expected.shape
        assert np.array_equal(bound.visible(seq, np.arange(rows), np.arange(columns)), expected)
        assert np.array_equal(bound.visible_per_row(seq), expected.sum(axis=1))
        assert bound.visible_per_row(seq).dtype == np.int64
        assert bound.count_visible(seq) == expected.sum()
        around = bound.visible(seq, np.arange(-2, rows + 2), np.arange(-2, columns + 2))
        assert around.sum() == expected.sum()


def all_row_ranges(problem: Problem) -> list[tuple[int, int, int]]:
    """Every (sequence, q_lo, q_hi), with empty and reversed ones and ones that reach past the end."""
    edges = [range(int(q_len) + 2) for q_len in problem.q_lengths]
    return [(seq, a, b) for seq, edge in enumerate(edges) for a in edge for b in edge if b >= a - 1]


@given(problems())
@example(PrefillProblem(lengths=(4, 3, 5), mask=SharedPrefix(prefix=4), **HEADS))
@example(PrefillProblem(lengths=(8,), mask=BlockSparse(block=2, rows=((0,), (1,), (3,), ())), **HEADS))
@settings(max_examples=200, deadline=None)
def test_intervals_hold_every_visible_pair_and_end_at_visible_keys(problem: Problem) -> None:
    ranges = all_row_ranges(problem)
    cells = [dense(problem, seq) for seq in range(problem.num_sequences)]
    ptr, lo, hi = problem.mask_bound.intervals(*(np.array([r[i] for r in ranges], np.int64) for i in range(3)))
    assert ptr.dtype == lo.dtype == hi.dtype == np.int64
    assert ptr.shape == (len(ranges) + 1,)
    assert ptr[0] == 0
    assert ptr[-1] == lo.size == hi.size
    for n, (seq, first, past) in enumerate(ranges):
        seen = np.asarray(cells[seq][first : max(first, past)].any(axis=0))
        # Within an interval these masks leave no hole: it is a maximal run of keys that some row sees.
        steps = np.diff(np.concatenate([[0], seen, [0]]).astype(int))
        assert lo[ptr[n] : ptr[n + 1]].tolist() == np.flatnonzero(steps == 1).tolist()
        assert hi[ptr[n] : ptr[n + 1]].tolist() == np.flatnonzero(steps == -1).tolist()


@given(problems(), st.integers(0, 2**32 - 1))
@example(PrefillProblem(lengths=(3, 3), mask=SharedPrefix(prefix=2), **HEADS), 0)
@settings(max_examples=200, deadline=None)
def test_fully_visible_never_claims_a_hidden_pair(problem: Problem, seed: int) -> None:
    random = np.random.default_rng(seed)
    for seq in range(problem.num_sequences):
        cells = dense(problem, seq)
        rows, columns = cells.shape
        q0, q1 = random.integers(-1, rows + 2, (2, 1000))
        k0, k1 = random.integers(-1, columns + 2, (2, 1000))
        answers = problem.mask_bound.fully_visible(seq, q0, q1, k0, k1)
        assert answers.dtype == np.bool_
        # Hidden pairs of every rectangle, from sums over the rectangles that begin at (0, 0).
        sums = np.pad(np.cumsum(np.cumsum(~cells, axis=0), axis=1), ((1, 0), (1, 0)))
        inside = (q0 >= 0) & (q1 <= rows) & (k0 >= 0) & (k1 <= columns)
        a, b, c, d = (
            np.clip(q0, 0, rows),
            np.clip(q1, 0, rows),
            np.clip(k0, 0, columns),
            np.clip(k1, 0, columns),
        )
        hidden = sums[b, d] - sums[a, d] - sums[b, c] + sums[a, c]
        # More than is promised: the test is exact for all masks of today.
        assert np.array_equal(answers, (q0 >= q1) | (k0 >= k1) | (inside & (hidden == 0)))


@given(problems())
@settings(max_examples=200, deadline=None)
def test_json_round_trip(problem: Problem) -> None:
    assert Mask.from_json(json.loads(json.dumps(problem.mask.to_json()))) == problem.mask
    assert type(problem).from_json(json.loads(json.dumps(problem.to_json()))) == problem


def test_json_forms() -> None:
    assert SlidingWindow(left=3, right=0).to_json() == {"type": "sliding_window", "left": 3, "right": 0}
    assert Document(cu_seqlens=(0, 4)).to_json() == {"type": "document", "cu_seqlens": [0, 4]}
    sparse = BlockSparse(block=8, rows=((0, 2), ()))
    assert sparse.to_json() == {"type": "block_sparse", "block": 8, "rows": [[0, 2], []]}
    assert Full().to_json() == {"type": "full"}
    assert SharedPrefix(prefix=5).to_json() == {"type": "shared_prefix", "prefix": 5}


def test_only_causal_and_full_are_prefix_masks() -> None:
    def bound(mask: Mask) -> bool:
        return PrefillProblem(lengths=(8,), mask=mask, **HEADS).mask_bound.is_prefix_mask

    assert bound(Causal())
    assert bound(Full())
    others = [SlidingWindow(left=8, right=0), Document(cu_seqlens=(0, 8)), SharedPrefix(prefix=2)]
    assert not any(map(bound, [*others, BlockSparse(block=8, rows=((0,),))]))


def test_long_sequences_cost_no_dense_mask() -> None:
    length = 2**20
    problem = PrefillProblem(lengths=(length,), **HEADS)
    tiles = np.arange(length // 128)
    ptr, lo, hi = problem.mask_bound.intervals(0, tiles * 128, tiles * 128 + 128)
    assert np.array_equal(ptr, np.arange(tiles.size + 1))
    assert not lo.any()
    assert np.array_equal(hi, tiles * 128 + 128)
    assert problem.mask_bound.count_visible(0) == length * (length + 1) // 2


def test_sequence_borders_separate_documents_too() -> None:
    mask = Document(cu_seqlens=[0, 2, 7])  # type: ignore[arg-type]
    problem = PrefillProblem(lengths=(4, 3), mask=mask, **HEADS)
    assert problem.mask_bound.visible_per_row(0).tolist() == [1, 2, 1, 2]
    assert problem.mask_bound.visible_per_row(1).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ("causal", "mask"),
        ({}, "mask.type"),
        ({"type": "alibi"}, "mask.type"),
        ({"type": ["causal"]}, "mask.type"),
        ({"type": "causal", "left": 3}, "mask.left"),
        ({"type": "sliding_window", "left": 3}, "mask.right"),
        ({"type": "sliding_window", "left": -1, "right": 0}, "mask.left"),
        ({"type": "sliding_window", "left": 3, "right": 0.5}, "mask.right"),
        ({"type": "document", "cu_seqlens": []}, "mask.cu_seqlens"),
        ({"type": "document", "cu_seqlens": 8}, "mask.cu_seqlens"),
        ({"type": "document", "cu_seqlens": [1, 8]}, "mask.cu_seqlens[0]"),
        ({"type": "document", "cu_seqlens": [0, 5, 4, 8]}, "mask.cu_seqlens[2]"),
        ({"type": "document", "cu_seqlens": [0, True, 8]}, "mask.cu_seqlens[1]"),
        ({"type": "shared_prefix", "prefix": 0}, "mask.prefix"),
        ({"type": "block_sparse", "block": 0, "rows": []}, "mask.block"),
        ({"type": "block_sparse", "block": 4, "rows": 3}, "mask.rows"),
        ({"type": "block_sparse", "block": 4, "rows": [[0], 1]}, "mask.rows[1]"),
        ({"type": "block_sparse", "block": 4, "rows": [[0, 0]]}, "mask.rows[0]"),
        ({"type": "block_sparse", "block": 4, "rows": [[1, 0]]}, "mask.rows[0]"),
        ({"type": "block_sparse", "block": 4, "rows": [[0], [-1]]}, "mask.rows[1][0]"),
    ],
)
def test_bad_mask_names_its_field(data: Any, field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        PrefillProblem(lengths=(8,), mask=data, **HEADS)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lengths", "kv_lengths", "mask", "message"),
    [
        ((8,), None, Document(cu_seqlens=(0, 7)), "ends at 7, but the batch has 8"),
        ((8,), (9,), Document(cu_seqlens=(0, 8)), "leave kv_lengths out"),
        ((4, 8), None, SharedPrefix(prefix=5), r"mask.prefix is 5, but lengths\[0\].* is 4"),
        ((), None, SharedPrefix(prefix=5), r"lengths\[0\]"),
        ((4, 8), (4, 9), SharedPrefix(prefix=2), "leave kv_lengths out"),
        ((4, 4), None, BlockSparse(block=4, rows=((0,),)), "one sequence, but the batch has 2"),
        ((9,), None, BlockSparse(block=4, rows=((0,), (1,))), "2 rows, but 9 queries"),
        ((8,), None, BlockSparse(block=4, rows=((0,), (2,))), r"rows\[1\] names key block 2"),
        ((8,), (0,), BlockSparse(block=4, rows=((0,), ())), r"rows\[0\] names key block 0"),
        ((8,), None, BlockSparse(block=4, rows=((), ())), "hides every query-key pair"),
    ],
)
def test_mask_that_does_not_fit(
    lengths: tuple[int, ...], kv_lengths: tuple[int, ...] | None, mask: Mask, message: str
) -> None:
    with pytest.raises(MaskError, match=message):
        PrefillProblem(lengths=lengths, kv_lengths=kv_lengths, mask=mask, **HEADS)


def test_rows_or_sequences_without_visible_keys_are_fine() -> None:
    problem = PrefillProblem(lengths=(5, 3), kv_lengths=(2, 0), **HEADS)
    assert problem.mask_bound.visible_per_row(0).tolist() == [0, 0, 0, 1, 2]
    assert problem.mask_bound.visible_per_row(1).tolist() == [0, 0, 0]
    BlockSparse(block=4, rows=((),))
    PrefillProblem(lengths=(8,), kv_lengths=(0,), mask=BlockSparse(block=4, rows=((), ())), **HEADS)


def test_explain_mask_draws_the_mask() -> None:
    problem = PrefillProblem(lengths=(3,), kv_lengths=(2,), **HEADS)
    assert explain_mask(problem).splitlines() == [
        "sequence 0: 3 queries x 2 keys, mask causal; '#' visible, '.' hidden",
        "                      01",
        "query 0 (position -1) ..",
        "query 1 (position 0)  #.",
        "query 2 (position 1)  ##",
    ]


def test_explain_mask_refuses_what_it_cannot_draw() -> None:
    problem = PrefillProblem(lengths=(65,), **HEADS)
    with pytest.raises(MaskError, match="max_size"):
        explain_mask(problem)
    assert len(explain_mask(problem, max_size=65).splitlines()) == 1 + 2 + 65
    with pytest.raises(InvalidField, match="sequence"):
        explain_mask(problem, sequence=1)
    with pytest.raises(InvalidField, match="sequence"):
        explain_mask(PrefillProblem(lengths=(), **HEADS))
