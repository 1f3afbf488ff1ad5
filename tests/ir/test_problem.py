"""Problems: normal forms, derived tables, files, and every refusal with its error type and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from liquidcp_compiler.errors import InvalidField, LiquidCPError, TensorError, UnsupportedError
from liquidcp_compiler.ir.mask import Causal, Document, Full, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.problem import (
    DecodeProblem,
    DType,
    PrefillProblem,
    Problem,
    Request,
    load_problem,
    save_problem,
)

HEADS: dict[str, Any] = {"num_heads_q": 8, "num_heads_kv": 2}
PREFILL: dict[str, Any] = {"format": 1, "kind": "prefill", "lengths": [3, 5], **HEADS}
DECODE: dict[str, Any] = {"format": 1, "kind": "decode", "requests": [{"history": 9, "query": 1}], **HEADS}


def test_values_are_normalised_and_equal_by_value() -> None:
    fields: Any = {"lengths": [np.int64(3), 5], "dtype": "fp16", "mask": {"type": "full"}, "softmax_scale": 1}
    problem = PrefillProblem(**fields, **HEADS)
    assert problem.lengths == (3, 5)
    assert all(type(x) is int for x in problem.lengths)
    assert problem.dtype is DType.FP16
    assert problem.mask == Full()
    assert type(problem.softmax_scale) is float
    same = PrefillProblem(
        lengths=(3, 5), dtype=DType.FP16, mask=Full(), softmax_scale=1.0, num_heads_q=8, num_heads_kv=2
    )
    assert problem == same
    assert hash(problem) == hash(same)
    assert len({problem, same}) == 1
    assert problem != PrefillProblem(lengths=(3, 5), **HEADS)
    array: Any = np.array([3, 5], np.int32)
    assert PrefillProblem(lengths=array, **HEADS).lengths == (3, 5)


def test_requests_take_three_forms() -> None:
    requests: Any = [{"history": 4, "query": 2}, (7, 1), Request(history=0, query=0)]
    problem = DecodeProblem(requests=requests, **HEADS)
    assert problem.requests == (Request(4, 2), Request(7, 1), Request(0, 0))


def test_prefill_tables() -> None:
    problem = PrefillProblem(lengths=(3, 0, 5), kv_lengths=(4, 2, 0), **HEADS)
    assert problem.kind == "prefill"
    assert problem.q_lengths.tolist() == [3, 0, 5]
    assert problem.kv_lengths_array.tolist() == [4, 2, 0]
    assert problem.q_offsets.tolist() == [0, 3, 3, 8]
    assert problem.kv_offsets.tolist() == [0, 4, 6, 6]
    assert (problem.num_sequences, problem.total_q, problem.total_kv) == (3, 8, 6)
    assert problem.group_size == 4
    assert problem.scale == 128**-0.5
    for array in (problem.q_lengths, problem.kv_lengths_array, problem.q_offsets, problem.kv_offsets):
        assert array.dtype == np.int64
        assert not array.flags.writeable
    assert problem.q_offsets is problem.q_offsets


def test_shared_prefix_is_one_sequence() -> None:
    problem = PrefillProblem(lengths=(3, 4, 5), mask=SharedPrefix(prefix=2), **HEADS)
    assert problem.q_lengths.tolist() == problem.kv_lengths_array.tolist() == [12]
    assert problem.q_offsets.tolist() == [0, 12]


def test_decode_tables() -> None:
    requests = (Request(100, 1), Request(0, 20), Request(7, 0))
    problem = DecodeProblem(requests=requests, softmax_scale=0.5, **HEADS)
    assert problem.kind == "decode"
    assert problem.histories.tolist() == [100, 0, 7]
    assert problem.q_lengths.tolist() == [1, 20, 0]
    assert problem.kv_lengths_array.tolist() == [101, 20, 7]
    assert problem.kv_offsets.tolist() == [0, 101, 121, 128]
    assert problem.scale == 0.5
    assert problem.exchange_dtype is DType.FP32
    assert problem.mask_bound.visible_per_row(0).tolist() == [101]


def test_empty_batches() -> None:
    for problem in (PrefillProblem(lengths=(), **HEADS), DecodeProblem(requests=(), **HEADS)):
        assert problem.num_sequences == problem.total_q == problem.total_kv == 0
        assert problem.q_offsets.tolist() == [0]
    assert PrefillProblem(lengths=(0, 0), **HEADS).total_q == 0


def test_dtypes() -> None:
    assert [d.bytes for d in DType] == [2, 2, 4]
    assert [d.torch for d in DType] == [torch.bfloat16, torch.float16, torch.float32]
    assert [2 * d.rounding_unit for d in DType] == [torch.finfo(d.torch).eps for d in DType]


BAD_PREFILL = [
    ({"lengths": [1, 2, 3, -5]}, "lengths[3]"),
    ({"lengths": [1.0]}, "lengths[0]"),
    ({"lengths": [1, True]}, "lengths[1]"),
    ({"lengths": ["4"]}, "lengths[0]"),
    ({"lengths": "44"}, "lengths"),
    ({"lengths": {4, 5}}, "lengths"),
    ({"lengths": 4}, "lengths"),
    ({"lengths": None}, "lengths"),
    ({"lengths": [10**30]}, "lengths[0]"),
    ({"lengths": [2**40, 2**40]}, "sum(lengths)"),
    ({"lengths": np.array([1.0, 2.0])}, "lengths[0]"),
    ({"lengths": np.array([[1, 2]])}, "lengths[0]"),
    ({"lengths": np.array(3)}, "lengths"),
    ({"kv_lengths": [3]}, "kv_lengths"),
    ({"kv_lengths": [3, -1]}, "kv_lengths[1]"),
    ({"num_heads_q": 0}, "num_heads_q"),
    ({"num_heads_q": 8.0}, "num_heads_q"),
    ({"num_heads_kv": -1}, "num_heads_kv"),
    ({"num_heads_kv": 3}, "num_heads_kv"),
    ({"head_dim": 0}, "head_dim"),
    ({"head_dim": "128"}, "head_dim"),
    ({"dtype": "float16"}, "dtype"),
    ({"dtype": 16}, "dtype"),
    ({"softmax_scale": 0.0}, "softmax_scale"),
    ({"softmax_scale": float("nan")}, "softmax_scale"),
    ({"softmax_scale": float("inf")}, "softmax_scale"),
    ({"softmax_scale": 1e300}, "softmax_scale"),
    ({"softmax_scale": True}, "softmax_scale"),
    ({"softmax_scale": "1"}, "softmax_scale"),
    ({"softcap": -2.0}, "softcap"),
    ({"softcap": [3]}, "softcap"),
    ({"sinks": 1}, "sinks"),
    ({"sinks": "yes"}, "sinks"),
    ({"mask": 3}, "mask"),
    ({"colour": 3}, "colour"),
    ({"format": 2}, "format"),
    ({"format": True}, "format"),
    ({"format": "1"}, "format"),
    ({"kind": "training"}, "kind"),
    ({"kind": ["prefill"]}, "kind"),
    ({"requests": []}, "requests"),
]
BAD_DECODE = [
    ({"requests": [{"history": 1, "query": 1}, {"history": 1, "query": -1}]}, "requests[1].query"),
    ({"requests": [{"history": 1.5, "query": 1}]}, "requests[0].history"),
    ({"requests": [{"history": 1}]}, "requests[0].query"),
    ({"requests": [{"history": 1, "query": 1, "page": 3}]}, "requests[0].page"),
    ({"requests": [7]}, "requests[0]"),
    ({"requests": {"history": 1, "query": 1}}, "requests"),
    ({"requests": 3}, "requests"),
    ({"requests": [{"history": 2**40, "query": 1}]}, "sum(requests)"),
    ({"interleave": 0}, "interleave"),
    ({"new_kv": "cache"}, "new_kv"),
    ({"exchange_dtype": "fp16"}, "exchange_dtype"),
    ({"lengths": [3]}, "lengths"),
]


@pytest.mark.parametrize(
    ("base", "change", "field"),
    [(PREFILL, *case) for case in BAD_PREFILL] + [(DECODE, *case) for case in BAD_DECODE],
)
def test_bad_value_names_its_field(base: dict[str, Any], change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        Problem.from_json(base | change)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")
    assert "allowed: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_message_of_a_negative_length() -> None:
    with pytest.raises(InvalidField, match=r"^lengths\[3\] is -5; allowed: whole numbers >= 0$"):
        PrefillProblem(lengths=(1, 2, 3, -5), **HEADS)


@pytest.mark.parametrize("key", ["format", "kind", "lengths", "num_heads_q", "num_heads_kv"])
def test_missing_key(key: str) -> None:
    data = {k: v for k, v in PREFILL.items() if k != key}
    with pytest.raises(InvalidField, match=f"^{key} is missing; allowed: "):
        Problem.from_json(data)


@pytest.mark.parametrize("data", [None, 3, "prefill", [PREFILL]])
def test_problem_must_be_an_object(data: Any) -> None:
    with pytest.raises(InvalidField, match="^problem is "):
        Problem.from_json(data)


@pytest.mark.parametrize(
    ("change", "option", "named"),
    [
        ({"head_dim": 576}, "head_dim", "MLA"),
        ({"head_dim": 100}, "head_dim", "96, 112"),
        ({"head_dim_v": 64}, "head_dim_v", "head_dim = 128"),
        ({"dropout_p": 0.1}, "dropout_p", "without dropout"),
        ({"attn_bias": [1]}, "attn_bias", "no bias"),
        ({"alibi_slopes": [1]}, "alibi_slopes", "no bias"),
        ({"page_size": 16}, "page_size", "contiguous"),
        ({"kv_dtype": "fp8"}, "kv_dtype", "bf16, fp16, fp32"),
    ],
)
def test_meaningful_but_unsupported(change: dict[str, Any], option: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^{option} = .* is not supported; supported: ") as caught:
        Problem.from_json(PREFILL | change)
    assert caught.value.option == option
    assert named in str(caught.value)


@pytest.mark.parametrize("mask", [Document(cu_seqlens=(0, 1)), SharedPrefix(prefix=1)])
def test_decode_masks(mask: Any) -> None:
    with pytest.raises(UnsupportedError, match="causal, full, sliding_window"):
        DecodeProblem(requests=(Request(0, 1),), mask=mask, **HEADS)
    for allowed in (Causal(), Full(), SlidingWindow(left=3, right=0)):
        assert DecodeProblem(requests=(Request(0, 1),), mask=allowed, **HEADS).mask == allowed


def test_same_head_dim_v_is_accepted() -> None:
    assert PrefillProblem(lengths=(3,), head_dim=64, head_dim_v=64, **HEADS).head_dim_v == 64


def test_from_json_of_the_other_kind() -> None:
    with pytest.raises(InvalidField, match="^kind is 'decode'; allowed: 'prefill'$"):
        PrefillProblem.from_json(DECODE)


def test_json_form() -> None:
    assert PrefillProblem(lengths=(3, 5), **HEADS).to_json() == PREFILL | {
        "head_dim": 128,
        "dtype": "bf16",
        "softmax_scale": None,
        "mask": {"type": "causal"},
    }
    data = DecodeProblem(requests=(Request(9, 1),), new_kv="in_cache", sinks=True, **HEADS).to_json()
    assert data["requests"] == DECODE["requests"]
    assert (data["new_kv"], data["sinks"]) == ("in_cache", True)
    assert "interleave" not in data


attention_fields = st.fixed_dictionaries(
    {"num_heads_q": st.just(6), "num_heads_kv": st.sampled_from([1, 2, 3, 6])},
    optional={
        "head_dim": st.sampled_from([16, 128, 256]),
        "dtype": st.sampled_from(DType),
        "softmax_scale": st.floats(1e-3, 10),
        "softcap": st.floats(1, 100),
        "sinks": st.booleans(),
    },
)
requests_strategy = st.lists(st.builds(Request, st.integers(0, 99), st.integers(0, 9)), max_size=4).map(tuple)
decode_fields = st.fixed_dictionaries(
    {"requests": requests_strategy},
    optional={
        "interleave": st.integers(1, 64),
        "new_kv": st.sampled_from(["chunk", "in_cache"]),
        "exchange_dtype": st.sampled_from([DType.FP32, DType.BF16]),
    },
)


@given(attention_fields, st.one_of(decode_fields, st.lists(st.integers(0, 9), max_size=4)))
@settings(max_examples=100, deadline=None)
def test_round_trip_through_json(attention: dict[str, Any], rest: Any) -> None:
    is_decode = isinstance(rest, dict)
    problem = DecodeProblem(**rest, **attention) if is_decode else PrefillProblem(lengths=rest, **attention)
    again = Problem.from_json(json.loads(json.dumps(problem.to_json())))
    assert again == problem
    assert hash(again) == hash(problem)
    assert again.to_json() == problem.to_json()


def test_files_round_trip_and_leave_nothing_behind(tmp_path: Path) -> None:
    problem = DecodeProblem(requests=(Request(9, 1),), softcap=30.0, **HEADS)
    path = tmp_path / "problem.json"
    save_problem(path, PrefillProblem(lengths=(3,), **HEADS))
    save_problem(path, problem)
    assert load_problem(path) == problem
    assert load_problem(str(path)) == problem
    assert [p.name for p in tmp_path.iterdir()] == ["problem.json"]


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "problem.json"
    problem = PrefillProblem(lengths=(3,), **HEADS)
    save_problem(path, problem)

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save_problem(path, PrefillProblem(lengths=(4,), **HEADS))
    assert load_problem(path) == problem
    assert [p.name for p in tmp_path.iterdir()] == ["problem.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"lengths: 3",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"format": 1',
        b"[1, 2]",
        b'{"format": 1, "format": 1}',
    ],
)
def test_file_that_is_no_problem(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "problem.json"
    path.write_bytes(content)
    with pytest.raises(LiquidCPError) as caught:
        load_problem(path)
    assert "\n" not in str(caught.value)


def test_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match="a readable file. No such file"):
        load_problem(tmp_path / "nothing.json")


def test_nan_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PREFILL | {"softmax_scale": float("nan")}))
    with pytest.raises(InvalidField, match="^softmax_scale is nan"):
        load_problem(path)


def test_from_cu_seqlens() -> None:
    cu_seqlens = torch.tensor([0, 3, 3, 8], dtype=torch.int32)
    problem = PrefillProblem.from_cu_seqlens(cu_seqlens, total_q=8, total_k=8, **HEADS)
    assert problem == PrefillProblem(lengths=(3, 0, 5), **HEADS)
    keys = np.array([0, 4, 5, 9], np.int32)
    problem = PrefillProblem.from_cu_seqlens([0, 3, 3, 8], keys, total_q=8, total_k=9, **HEADS)
    assert problem == PrefillProblem(lengths=(3, 0, 5), kv_lengths=(4, 1, 4), **HEADS)
    assert PrefillProblem.from_cu_seqlens([0], **HEADS).lengths == ()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"cu_seqlens_q": []}, "cu_seqlens_q"),
        ({"cu_seqlens_q": 3}, "cu_seqlens_q"),
        ({"cu_seqlens_q": [1, 3]}, "cu_seqlens_q[0]"),
        ({"cu_seqlens_q": [0, 3, 2]}, "cu_seqlens_q[2]"),
        ({"cu_seqlens_q": [0, 3.0]}, "cu_seqlens_q[1]"),
        ({"cu_seqlens_q": torch.tensor([0, -3], dtype=torch.int32)}, "cu_seqlens_q[1]"),
        ({"cu_seqlens_q": [0, 3], "total_q": 4}, "cu_seqlens_q[-1]"),
        ({"cu_seqlens_q": [0, 3], "total_q": "3"}, "total_q"),
        ({"cu_seqlens_q": [0, 3], "total_k": 4}, "total_k"),
        ({"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 3], "total_k": 4}, "cu_seqlens_k[-1]"),
        ({"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 3, 4]}, "cu_seqlens_k"),
        ({"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 3, 1]}, "cu_seqlens_k[2]"),
    ],
)
def test_bad_cu_seqlens_values(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        PrefillProblem.from_cu_seqlens(**arguments, **HEADS)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (torch.tensor([0, 3]), "dtype"),
        (torch.tensor([0.0, 3.0]), "dtype"),
        (np.array([0, 3], np.int64), "dtype"),
        (np.array([True, False]), "dtype"),
        (torch.tensor([[0, 3]], dtype=torch.int32), "shape"),
        (torch.tensor(3, dtype=torch.int32), "shape"),
        (torch.empty(2, dtype=torch.int32, device="meta"), "device"),
    ],
)
def test_bad_cu_seqlens_tensors(value: Any, what: str) -> None:
    with pytest.raises(TensorError, match="^cu_seqlens_q: ") as caught:
        PrefillProblem.from_cu_seqlens(value, **HEADS)
    assert (caught.value.name, caught.value.what) == ("cu_seqlens_q", what)
