"""Merging partial states: empty sides, far-apart lse values, bases, sinks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.errors import LseBaseError, TensorError
from liquidcp_runtime.state import AttentionState, apply_sink, empty_state, from_log2, merge, merge_into


def state_of(scores: torch.Tensor, values: torch.Tensor, base: str = "e") -> AttentionState:
    """Attention of one query over keys with these scores [n] and values [n, d]."""
    lse = torch.logsumexp(scores, 0)
    out = torch.softmax(scores, 0) @ values
    return AttentionState(out=out, lse=lse if base == "e" else lse / math.log(2.0), base=base)


def test_two_empty_states_merge_to_an_empty_one() -> None:
    merged = merge(empty_state(2, head_dim=4), empty_state(2, head_dim=4))
    assert torch.equal(merged.out, torch.zeros(2, 4))
    assert torch.equal(merged.lse, torch.full((2,), -math.inf))


@pytest.mark.parametrize("empty_first", [True, False])
def test_what_lies_in_an_empty_state_never_reaches_the_result(empty_first: bool) -> None:
    full = AttentionState(out=torch.tensor([[1.0, -2.0]]), lse=torch.tensor([0.3]))
    stale = AttentionState(out=torch.full((1, 2), math.nan), lse=torch.tensor([-math.inf]))
    merged = merge(stale, full) if empty_first else merge(full, stale)
    assert torch.equal(merged.out, full.out)
    assert torch.equal(merged.lse, full.lse)
    both = merge(stale, stale)
    assert torch.equal(both.out, torch.zeros(1, 2))


@given(
    st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=12),
    st.lists(st.integers(0, 11), max_size=4),
    st.integers(0, 99),
)
def test_any_split_of_the_keys_merges_to_the_whole(scores: list[float], cuts: list[int], seed: int) -> None:
    s = torch.tensor(scores)
    values = torch.randn(len(s), 3, generator=torch.Generator().manual_seed(seed))
    borders = [0, *sorted(min(c, len(s)) for c in cuts), len(s)]
    merged = empty_state(head_dim=3)
    for lo, hi in zip(borders, borders[1:], strict=False):
        part = state_of(s[lo:hi], values[lo:hi]) if hi > lo else empty_state(head_dim=3)
        merged = merge(merged, part)
    expected_lse = torch.logsumexp(s.double(), 0)
    expected = torch.softmax(s.double(), 0) @ values.double()
    assert abs(merged.lse.double() - expected_lse) <= 1e-5 * max(1.0, abs(float(expected_lse)))
    torch.testing.assert_close(merged.out.double(), expected, atol=1e-4, rtol=1e-4)


def test_merging_is_the_same_bit_for_bit_from_either_side() -> None:
    g = torch.Generator().manual_seed(1)
    a, b = (AttentionState(out=torch.randn(50, 8, generator=g), lse=5 * torch.randn(50, generator=g)) for _ in range(2))
    ab, ba = merge(a, b), merge(b, a)
    assert torch.equal(ab.out, ba.out)
    assert torch.equal(ab.lse, ba.lse)


def test_states_of_different_bases_do_not_merge() -> None:
    scores, values = torch.tensor([0.0, 8.0]), torch.tensor([[1.0], [2.0]])
    natural, log2 = state_of(scores, values), state_of(scores, values, base="2")
    with pytest.raises(LseBaseError, match="'e'.*'2'"):
        merge(natural, log2)
    with pytest.raises(LseBaseError):
        merge_into(log2, natural)
    with pytest.raises(LseBaseError, match="10"):
        AttentionState(out=values, lse=scores, base="10")


def test_an_imported_log2_state_gives_the_right_numbers() -> None:
    # lse values far apart: with the base mixed up the small side would get a visible weight.
    scores, values = torch.tensor([0.0, 1.0, 9.0, 8.0]), torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    far = state_of(scores[2:], values[2:], base="2")
    merged = merge(state_of(scores[:2], values[:2]), from_log2(far.out, far.lse))
    whole = state_of(scores, values)
    torch.testing.assert_close(merged.out, whole.out)
    torch.testing.assert_close(merged.lse, whole.lse)
    two = merge(state_of(scores[:2], values[:2], base="2"), far)
    assert two.base == "2"
    torch.testing.assert_close(two.lse * math.log(2.0), whole.lse)


def test_merge_into_changes_its_target_in_place() -> None:
    target = empty_state(1, head_dim=2)
    out, lse = target.out, target.lse
    merge_into(target, AttentionState(out=torch.tensor([[3.0, 4.0]]), lse=torch.tensor([-2.0])))
    assert out.tolist() == [[3.0, 4.0]]
    assert lse.tolist() == [-2.0]


def test_a_sink_is_one_more_key_of_value_zero() -> None:
    scores, values = torch.tensor([0.5, -1.0]), torch.tensor([[1.0], [2.0]])
    whole = state_of(torch.cat([scores, torch.tensor([2.0])]), torch.cat([values, torch.zeros(1, 1)]))
    part = state_of(scores, values)
    out, lse = apply_sink(part.out, part.lse, torch.tensor(2.0))
    torch.testing.assert_close(out, whole.out)
    torch.testing.assert_close(lse, whole.lse)
    out, lse = apply_sink(torch.full((1,), math.nan), torch.tensor(-math.inf), torch.tensor(2.0))
    assert out.tolist() == [0.0]
    assert lse.item() == 2.0


@pytest.mark.parametrize(
    ("out", "lse", "what"),
    [
        (torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(2), "dtype"),
        (torch.zeros(2, 4), torch.zeros(2, dtype=torch.float16), "dtype"),
        (torch.zeros(2, 4), torch.zeros(4), "shape"),
    ],
)
def test_states_are_fp32_and_fit_together(out: torch.Tensor, lse: torch.Tensor, what: str) -> None:
    with pytest.raises(TensorError, match=what):
        AttentionState(out=out, lse=lse)
