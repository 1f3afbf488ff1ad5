"""Mask data of plans, read as kernels read it, against exact visibility."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.driver import plan
from liquidcp_compiler.ir.layout import Formation, MaskKind
from liquidcp_compiler.ir.mask_data import mask_data
from liquidcp_compiler.ir.problem import PrefillProblem

HEADS = {"num_heads_q": 2, "num_heads_kv": 1, "head_dim": 64}


def read(kind: MaskKind, data: np.ndarray, q_length: int, kv_length: int) -> np.ndarray:
    """bool [q_length, kv_length] from one sequence's entries: what attention/band_mask.cuh and block_mask.cuh do."""
    index, key = np.arange(q_length)[:, None], np.arange(kv_length)[None, :]
    position = index + kv_length - q_length

    def document_start(starts: np.ndarray) -> np.ndarray:
        assert starts[0] == 0
        return starts[np.searchsorted(starts, position, side="right") - 1]

    if kind == MaskKind.SLIDING_WINDOW:
        left, right = data.astype(np.int64)
        return (key >= position - left) & (key <= position + right)
    if kind == MaskKind.DOCUMENT:
        return (key >= document_start(data)) & (key <= position)
    if kind == MaskKind.SHARED_PREFIX:
        return (key <= position) & ((key >= document_start(data[1:])) | (key < data[0]))
    if kind == MaskKind.BLOCK_SPARSE:
        block, words_a_row = data[:2]
        words = data[2:].view(np.uint32).reshape(-1, words_a_row)
        return (words[index // block, key // block // 32] >> (key // block % 32).astype(np.uint32) & 1).astype(bool)
    raise AssertionError(kind)


@st.composite
def problems(draw: st.DrawFn) -> PrefillProblem:
    kind = draw(st.sampled_from(("sliding_window", "document", "shared_prefix", "block_sparse")))
    if kind == "sliding_window":
        reach = st.sampled_from((0, 1, 5, 40, 2**31 - 1, 2**40))
        lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
        kv_lengths = [n + draw(st.integers(0, 20)) for n in lengths]
        mask = {"type": kind, "left": draw(reach), "right": draw(reach)}
        return PrefillProblem(lengths=lengths, kv_lengths=kv_lengths, mask=mask, **HEADS)
    if kind == "block_sparse":
        q_length, kv_length = draw(st.integers(1, 90)), draw(st.integers(1, 90))
        block = draw(st.sampled_from((1, 2, 7, 32, 64, 2**31, 2**40)))
        num_key_blocks = -(-kv_length // block)
        row = st.lists(st.integers(0, num_key_blocks - 1), unique=True).map(sorted)
        rows = draw(st.lists(row, min_size=-(-q_length // block), max_size=-(-q_length // block)))
        rows[0] = rows[0] or [0]
        mask = {"type": kind, "block": block, "rows": rows}
        return PrefillProblem(lengths=(q_length,), kv_lengths=(kv_length,), mask=mask, **HEADS)
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    if kind == "shared_prefix":
        mask = {"type": kind, "prefix": draw(st.integers(1, lengths[0]))}
        return PrefillProblem(lengths=lengths, mask=mask, **HEADS)
    total = sum(lengths)
    bounds = sorted(draw(st.lists(st.integers(0, total), max_size=6)))
    return PrefillProblem(lengths=lengths, mask={"type": kind, "cu_seqlens": [0, *bounds, total]}, **HEADS)


@given(problem=problems())
def test_says_what_each_query_sees(problem: PrefillProblem) -> None:
    bound = problem.mask_bound
    kind = MaskKind[problem.mask.to_json()["type"].upper()]
    entries, ptr = mask_data(bound)
    assert entries.dtype == np.int32
    for s, (q_length, kv_length) in enumerate(zip(bound.q_lengths, bound.kv_lengths, strict=True)):
        seen = read(kind, entries[ptr[s] : ptr[s + 1]], int(q_length), int(kv_length))
        assert (seen == bound.visible(s, np.arange(q_length), np.arange(kv_length))).all()


@pytest.mark.parametrize(
    ("mask", "formation"),
    [
        ({"type": "causal"}, Formation.READY),
        ({"type": "full"}, Formation.READY),
        ({"type": "sliding_window", "left": 100, "right": 0}, Formation.STATIC),
        ({"type": "document", "cu_seqlens": [0, 150, 1000]}, Formation.STATIC),
        ({"type": "shared_prefix", "prefix": 20}, Formation.STATIC),
        ({"type": "block_sparse", "block": 500, "rows": [[0], [0, 1]]}, Formation.STATIC),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_plans_carry_it_on_every_rank(mask: dict, formation: Formation) -> None:
    made = plan(PrefillProblem(lengths=(1000,), mask=mask, **HEADS), 2)
    assert made.spec.mask == MaskKind[mask["type"].upper()]
    assert (made.tables["rows"]["formation"] == formation).all()
    entries, _ = mask_data(made.problem.mask_bound)
    for rank in range(2):
        sequence = made.table("sequences", rank)[0]
        base, size = int(sequence["mask_base"]), int(sequence["mask_size"])
        assert (base, size) == (0, len(entries))
        assert (made.table("mask_data", rank)[base : base + size] == entries).all()
