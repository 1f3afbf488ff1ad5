"""The oracle against a naive loop, and error reports that pass good results and fail bad ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.mask import BlockSparse, Causal, Document, Full, Mask, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.problem import DecodeProblem, DType, PrefillProblem, Problem, Request
from liquidcp_runtime import reference, reference_blocks
from liquidcp_runtime.reference import ErrorReport, error_report, reference_attention, sdpa_baseline

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
HEADS: dict[str, Any] = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 16}


def inputs(problem: Problem, seed: int = 0) -> Inputs:
    """Random q, k, v in the problem's dtype, and sinks where it has them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    kv_shape = (problem.total_kv, problem.num_heads_kv, problem.head_dim)
    q = normal(problem.total_q, problem.num_heads_q, problem.head_dim)
    sinks = normal(problem.num_heads_q) if problem.sinks else None
    dtype = problem.dtype.torch
    return q.to(dtype), normal(*kv_shape).to(dtype), normal(*kv_shape).to(dtype), sinks


def naive(problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None):
    """Row by row, head by head, key by key."""
    out = np.zeros(q.shape)
    lse = np.full((problem.num_heads_q, problem.total_q), -np.inf)
    for seq in range(problem.num_sequences):
        q0, k0 = int(problem.q_offsets[seq]), int(problem.kv_offsets[seq])
        for i in range(int(problem.q_lengths[seq])):
            visible = problem.mask_bound.visible(seq, [i], np.arange(problem.kv_lengths_array[seq]))[0]
            for h in range(problem.num_heads_q):
                exps: list[tuple[float, np.ndarray]] = []
                for key in np.flatnonzero(visible):
                    row = k0 + int(key), h * problem.num_heads_kv // problem.num_heads_q
                    x = float(q[q0 + i, h].double() @ k[row].double()) * problem.scale
                    x = problem.softcap * math.tanh(x / problem.softcap) if problem.softcap else x
                    exps.append((math.exp(x), v[row].double().numpy()))
                total = sum(e for e, _ in exps) + (math.exp(float(sinks[h])) if sinks is not None else 0.0)
                if total:
                    lse[h, q0 + i] = math.log(total)
                    out[q0 + i, h] = sum((e / total * x for e, x in exps), np.zeros(problem.head_dim))
    return torch.from_numpy(out), torch.from_numpy(lse)


MASKS: list[tuple[Mask, tuple[int, ...]]] = [
    (Causal(), (5, 0, 7)),
    (Full(), (5, 1)),
    (SlidingWindow(left=2, right=1), (9, 4)),
    (Document(cu_seqlens=(0, 3, 8, 11)), (5, 6)),
    (SharedPrefix(prefix=2), (4, 3, 5)),
    (BlockSparse(block=3, rows=((0, 2), (), (1,), (0, 1, 2, 3))), (10,)),
]


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("mask", "lengths"), MASKS, ids=lambda x: x.type if isinstance(x, Mask) else None)
def test_reference_is_the_naive_loop(mask: Mask, lengths: tuple[int, ...], softcap: float | None, sinks: bool) -> None:
    problem = PrefillProblem(lengths=lengths, mask=mask, softcap=softcap, sinks=sinks, **HEADS)
    tensors = inputs(problem)
    out, lse = reference_attention(problem, *tensors)
    expected_out, expected_lse = naive(problem, *tensors)
    assert out.dtype == lse.dtype == torch.float64
    torch.testing.assert_close(out, expected_out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=3),
    st.booleans(),
    st.sampled_from([Causal(), Full(), SlidingWindow(left=1, right=0)]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_other_key_lengths_and_decode(pairs: list[tuple[int, int]], decode: bool, mask: Mask, sinks: bool) -> None:
    fields: dict[str, Any] = {"mask": mask, "sinks": sinks, "softmax_scale": 0.7, **HEADS}
    if decode:
        problem: Problem = DecodeProblem(requests=tuple(Request(a, b) for a, b in pairs), **fields)
    else:
        lengths, kv_lengths = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        problem = PrefillProblem(lengths=lengths, kv_lengths=kv_lengths, **fields)
    tensors = inputs(problem)
    out, lse = reference_attention(problem, *tensors)
    expected_out, expected_lse = naive(problem, *tensors)
    torch.testing.assert_close(out, expected_out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)
    assert error_report(problem, out, lse, *tensors).ok()


@pytest.mark.parametrize("sinks", [False, True])
def test_rows_that_see_nothing(sinks: bool) -> None:
    problem = PrefillProblem(lengths=(5, 3), kv_lengths=(2, 0), sinks=sinks, **HEADS)
    q, k, v, sink = inputs(problem)
    out, lse = reference_attention(problem, q, k, v, sink)
    empty = [0, 1, 2, 5, 6, 7]
    assert not out[empty].any()
    expected = sink.double()[:, None].expand(-1, 6) if sink is not None else torch.full((4, 6), -torch.inf)
    assert torch.equal(lse[:, empty].double(), expected.double())
    assert out[[3, 4]].all()
    baseline = sdpa_baseline(problem, q, k, v, sink)
    assert not baseline[empty].any()
    assert baseline.isfinite().all()


def test_blocks_of_any_size_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PrefillProblem(lengths=(40, 3, 25), mask=SlidingWindow(left=6, right=2), sinks=True, **HEADS)
    tensors = inputs(problem)
    out, lse = reference_attention(problem, *tensors)
    baseline = sdpa_baseline(problem, *tensors)
    for elements in (1, 700, 5000):
        monkeypatch.setattr(reference_blocks, "MAX_ELEMENTS", elements)
        again_out, again_lse = reference_attention(problem, *tensors)
        torch.testing.assert_close(again_out, out, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(again_lse, lse, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(sdpa_baseline(problem, *tensors), baseline, rtol=0, atol=2e-2)


def test_extreme_scores_stay_finite() -> None:
    problem = PrefillProblem(lengths=(6,), softmax_scale=1000.0, dtype=DType.FP32, **HEADS)
    q, k, v, _ = inputs(problem)
    out, lse = reference_attention(problem, q, k, v)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    assert lse.abs().max() > 1000


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("extra", [{}, {"softcap": 2.0}, {"sinks": True}], ids=["plain", "softcap", "sinks"])
def test_baseline_errs_as_its_dtype_does(dtype: DType, extra: dict[str, Any]) -> None:
    problem = PrefillProblem(lengths=(150, 20), dtype=dtype, **extra, **HEADS)
    tensors = inputs(problem)
    out, lse = reference_attention(problem, *tensors)
    baseline = sdpa_baseline(problem, *tensors)
    assert baseline.dtype == torch.float32
    report = error_report(problem, baseline, lse, *tensors, reference=(out, lse), baseline=baseline)
    assert report.whole == report.whole_baseline
    assert report.worst_tile == report.worst_tile_baseline >= report.whole
    assert dtype.rounding_unit / 16 < report.whole < dtype.rounding_unit * 8
    assert report.ok()


def broken_report(change: Any, dtype: DType = DType.BF16, lengths: tuple[int, ...] = (300, 20)) -> ErrorReport:
    """The report of a perfect result after ``change(out, lse)``."""
    problem = PrefillProblem(lengths=lengths, dtype=dtype, **HEADS)
    tensors = inputs(problem)
    out, lse = (x.float() for x in reference_attention(problem, *tensors))
    change(out, lse)
    return error_report(problem, out, lse, *tensors)


def test_a_perfect_result_passes() -> None:
    report = broken_report(lambda out, lse: None)
    assert report.ok()
    assert report.whole < 1e-7
    assert report.max_rel_error == report.worst_tile < 1e-7
    assert report.lse_max < 1e-6
    assert report.explain().count("pass") == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("target", [0, 1], ids=["out", "lse"])
def test_a_number_that_is_not_finite_fails(target: int, value: float) -> None:
    report = broken_report(lambda *tensors: tensors[target].view(-1)[77:78].fill_(value))
    assert not report.ok()
    assert (report.lse_max if target else report.worst_tile) == math.inf
    assert report.explain().count("FAIL") == (1 if target else 2)


def test_a_lost_row_fails_by_its_tile_though_not_by_the_whole() -> None:
    def lose_a_row(out: torch.Tensor, lse: torch.Tensor) -> None:
        out[2500, 2] *= 0.8

    report = broken_report(lose_a_row, lengths=(3000,))
    assert report.whole < report.whole_limit
    assert report.worst_tile > report.worst_tile_limit
    assert (report.worst_tile_row, report.worst_tile_head) == (2500 // 128 * 128, 2)
    assert not report.ok()
    assert "rows from 2432, head 2" in report.explain()


def test_an_error_all_over_fails_by_the_whole() -> None:
    report = broken_report(lambda out, lse: out.mul_(1.007))
    assert report.whole == pytest.approx(0.007, rel=1e-3)
    assert report.whole > report.whole_limit
    assert report.worst_tile < report.worst_tile_limit
    assert not report.ok()


def test_tiles_do_not_span_sequences() -> None:
    def damage(out: torch.Tensor, lse: torch.Tensor) -> None:
        out[305, 1] = 0

    report = broken_report(damage)
    assert (report.worst_tile_row, report.worst_tile_head) == (300, 1)


def test_lse_tolerance_is_relative_beyond_one() -> None:
    report = broken_report(lambda out, lse: lse.add_(5e-4))
    assert report.lse_max == pytest.approx(5e-4, rel=1e-2)
    assert not report.ok()
    assert report.ok(lse_tolerance=1e-3)
    reference_lse = torch.tensor([[0.5, 100.0, -torch.inf]], dtype=torch.float64)
    errors = reference._lse_errors(reference_lse + torch.tensor([[0.0, 1e-3, 0.0]]).double(), reference_lse)
    assert errors == pytest.approx((1e-3, 1e-5))
    assert reference._lse_errors(torch.zeros(1, 3).double(), reference_lse) == (math.inf, math.inf)


@pytest.mark.parametrize("noise", [1e-30, math.nan])
def test_where_the_reference_is_zero_only_zero_passes(noise: float) -> None:
    problem = PrefillProblem(lengths=(4, 3), kv_lengths=(4, 0), **HEADS)
    tensors = inputs(problem)
    out, lse = reference_attention(problem, *tensors)
    assert error_report(problem, out, lse, *tensors).ok()
    out[5, 1, 3] = noise
    report = error_report(problem, out, lse, *tensors)
    assert report.worst_tile == math.inf
    assert not report.ok()


def test_empty_problem_passes() -> None:
    problem = PrefillProblem(lengths=(), **HEADS)
    tensors = inputs(problem)
    out, lse = reference_attention(problem, *tensors)
    assert lse.shape == (4, 0)
    assert error_report(problem, out, lse, *tensors).ok()


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse"])
def test_wrong_shapes_name_the_tensor(name: str) -> None:
    problem = PrefillProblem(lengths=(4,), kv_lengths=(6,), **HEADS)
    q, k, v, _ = inputs(problem)
    out, lse = reference_attention(problem, q, k, v)
    tensors: dict[str, Any] = {"out": out, "lse": lse, "q": q, "k": k, "v": v}
    with pytest.raises(TensorError, match=f"^{name}: shape is"):
        error_report(problem, **(tensors | {name: tensors[name][1:]}))
    with pytest.raises(TensorError, match=f"^{name}: dtype is torch.int32"):
        error_report(problem, **(tensors | {name: tensors[name].nan_to_num().int()}))


def test_sinks_are_given_exactly_where_the_problem_has_them() -> None:
    plain, with_sinks = (PrefillProblem(lengths=(4,), sinks=flag, **HEADS) for flag in (False, True))
    q, k, v, sinks = inputs(with_sinks)
    with pytest.raises(TensorError, match="^sinks: "):
        reference_attention(plain, q, k, v, sinks)
    with pytest.raises(TensorError, match="^sinks: "):
        reference_attention(with_sinks, q, k, v)
    assert sinks is not None
    with pytest.raises(TensorError, match=r"^sinks: shape is \(3,\), expected \(4,\)"):
        sdpa_baseline(with_sinks, q, k, v, sinks[:3])
