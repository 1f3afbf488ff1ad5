"""Where rows of a tensor lie, what kernels can address, and which tensors share memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.errors import TensorError
from liquidcp_runtime.tensor_check import check_aligned, check_kind, check_result, overlap, row_strides

QKV = torch.arange(20 * 3 * 4 * 16, dtype=torch.float32).view(20, 3, 4, 16)
DENSE = torch.arange(20 * 4 * 16, dtype=torch.float32).view(20, 4, 16)

READABLE = {
    "contiguous": DENSE,
    "heads first": DENSE.view(4, 20, 16).transpose(0, 1),
    "one of three in a row": QKV[:, 1],
    "every second token": DENSE[::2],
    "every second head": DENSE[:, ::2],
    "one head for all": DENSE[:, :1].expand(20, 4, 16),
    "one token for all": DENSE[:1].expand(20, 4, 16),
    "part of each row": DENSE[:, :, :8],
    "overlapping rows": DENSE.as_strided((20, 4, 16), (8, 16, 1)),
    "a batch": DENSE.view(2, 10, 4, 16),
    "a batch, heads first": DENSE.view(4, 2, 10, 16).permute(1, 2, 0, 3),
    "a batch of one": DENSE[None],
    "a batch of single tokens": DENSE[::4, None],
    "one head": DENSE[:, 1:2],
    "one token of odd stride": DENSE.as_strided((1, 4, 16), (3, 16, 1)),
    "one head of odd stride": DENSE.as_strided((20, 1, 16), (64, 5, 1)),
    "nothing": DENSE[:0],
}


@pytest.mark.parametrize("name", READABLE)
def test_row_strides_lead_to_every_element(name: str) -> None:
    x = READABLE[name]
    token_stride, head_stride = row_strides("q", x)
    heads, head_dim = x.shape[-2:]
    tokens = x.numel() // (heads * head_dim)
    storage = torch.empty(0).set_(x.untyped_storage())
    found = storage.as_strided((tokens, heads, head_dim), (token_stride, head_stride, 1), x.storage_offset())
    assert torch.equal(found, x.reshape(tokens, heads, head_dim))


@pytest.mark.parametrize("name", ["one token of odd stride", "one head of odd stride", "nothing"])
def test_strides_that_torch_leaves_open_are_those_of_a_contiguous_tensor(name: str) -> None:
    assert row_strides("q", READABLE[name]) == (64, 16)
    check_aligned("q", READABLE[name])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (DENSE.transpose(1, 2), r"^q: strides is \(64, 1, 16\), expected 1 in the last dimension"),
        (DENSE[:, :, ::2], "expected 1 in the last dimension"),
        (DENSE[:, :, :1].expand(20, 4, 16), "expected 1 in the last dimension"),
        (DENSE.view(10, 2, 4, 16).transpose(0, 1), "expected 1280 in the first dimension"),
        (DENSE[0], "shape is"),
        (QKV[None], "shape is"),
    ],
)
def test_rows_that_have_no_two_strides_are_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        row_strides("q", x)


@pytest.mark.parametrize("name", READABLE)
def test_outputs_have_a_place_for_each_element(name: str) -> None:
    x = READABLE[name]
    places = {sum(i * s for i, s in zip(at, x.stride(), strict=True)) for at in np.ndindex(*x.shape)}
    if len(places) == x.numel():
        assert row_strides("out", x, output=True) == row_strides("out", x)
    else:
        with pytest.raises(TensorError, match="out: strides .*a place of its own for each element.*contiguous"):
            row_strides("out", x, output=True)
        with pytest.raises(TensorError, match="out: strides"):
            check_result("out", x, tuple(x.shape), x.dtype)


@given(
    shape=st.lists(st.integers(0, 4), min_size=3, max_size=4),
    steps=st.lists(st.integers(1, 2), min_size=4, max_size=4),
    data=st.data(),
)
def test_slices_and_permutations_of_a_contiguous_tensor_are_outputs(shape: list[int], steps: list[int], data) -> None:
    x = torch.empty(shape)[tuple(slice(None, None, step) for step in steps[: len(shape)])]
    x = x.permute(data.draw(st.permutations(range(len(shape)))))
    check_result("out", x, tuple(x.shape), x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kernels_take_rows_that_begin_at_multiples_of_16_bytes(dtype: torch.dtype) -> None:
    unit = 16 // dtype.itemsize
    memory = torch.zeros(4096, dtype=dtype)
    start = (-memory.data_ptr() % 16) // dtype.itemsize
    for offset, token, head in itertools.product((0, 1, unit), (64, 64 + unit, 65), (16, 16 + unit, 17)):
        x = memory.as_strided((10, 2, 16), (token, head, 1), start + offset)
        if (offset, token % unit, head % unit) in ((0, 0, 0), (unit, 0, 0)):
            check_aligned("k", x)
            continue
        what = "address" if offset == 1 else f"strides .*multiples of {unit} elements"
        with pytest.raises(TensorError, match=f"^k: {what}"):
            check_aligned("k", x)


def test_kernels_cannot_read_a_lazy_negation() -> None:
    with pytest.raises(TensorError, match="resolve_neg"):
        check_aligned("k", torch._neg_view(DENSE))


def test_overlap_is_exact() -> None:
    memory = torch.zeros(1000)
    columns = memory[:960].view(10, 96)
    q, k, out = (columns[:, i : i + 32].view(10, 2, 16) for i in (0, 32, 64))
    assert not overlap(q, k)
    assert not overlap(out, q)
    assert overlap(q, columns[3:4, 31:40])
    assert not overlap(q, columns[:, 32:])
    assert overlap(out, memory.view(torch.bfloat16)[128:130])
    assert not overlap(out, memory.view(torch.bfloat16)[120:128])
    assert not overlap(memory[:500], memory[500:])
    assert not overlap(memory[:0], memory)
    assert not overlap(memory, memory.clone())


def test_a_tensor_on_another_device_is_refused() -> None:
    with pytest.raises(TensorError, match="^q: device is meta, expected cpu"):
        check_kind("q", DENSE.to("meta"), torch.float32)
    with pytest.raises(TensorError, match="^q: device is cpu, expected cuda:1"):
        check_kind("q", DENSE, torch.float32, torch.device("cuda", 1))
