"""Tensor maps: what the driver is asked to encode, and how seldom."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from liquidcp_compiler.ir.kernel_path import TensorBoxes
from liquidcp_compiler.ir.launch import TENSOR_MAP
from liquidcp_runtime import tensor_maps
from liquidcp_runtime.memory_sizes import MemorySizes
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.tensor_maps import TensorMapCache, encode_map
from liquidcp_runtime.workspace import Workspace, make_workspace

BOXES = TensorBoxes(q_rows=128, kv_rows=32, out_rows=64)
CPU = torch.device("cpu")


class Encoded:
    """A map whose first word numbers it."""

    def __init__(self, number: int) -> None:
        self._words = (ctypes.c_uint64 * 16)(number)

    def getPtr(self) -> int:  # noqa: N802 (the bindings' name)
        return ctypes.addressof(self._words)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the driver was asked for, one entry a map."""
    calls: list[dict[str, Any]] = []

    def call(name: str, dtype: Any, rank: int, address: int, *rest: Any) -> Encoded:
        sizes, strides, box = ([int(x) for x in values] for values in rest[:3])
        calls.append(
            {"name": name, "dtype": dtype.name, "address": address, "sizes": sizes, "strides": strides, "box": box}
        )
        assert rank == len(sizes) == len(box) == len(strides) + 1
        return Encoded(len(calls))

    monkeypatch.setattr(tensor_maps.driver_api, "call", call)
    return calls


def tensors(tokens: int = 200, dtype: torch.dtype = torch.bfloat16, **changes: torch.Tensor) -> RankTensors:
    q, k = torch.zeros(tokens, 4, 64, dtype=dtype), torch.zeros(tokens, 2, 64, dtype=dtype)
    made = {"q": q, "k": k, "v": k.clone(), "out": q.clone(), "lse": torch.zeros(4, tokens)}
    return RankTensors(**(made | changes))


def workspace(kv_tokens: int = 256) -> Workspace:
    return make_workspace(MemorySizes(kv=kv_tokens * 2 * 64 * 2), 1, CPU)


def test_a_map_has_sizes_strides_and_box_of_its_tensor(asked: list[dict[str, Any]]) -> None:
    """Sizes from the innermost dimension on, strides in bytes, boxes of 64 columns of one head."""
    fused = torch.zeros(200, 8, 64, dtype=torch.float16)
    local = tensors(dtype=torch.float16, k=fused[:, 4:6])
    room = workspace()
    TensorMapCache().of_launch(BOXES, [local], room)
    assert [entry["sizes"] for entry in asked] == [
        [64, 4, 200],
        [64, 2, 200],
        [64, 2, 200],
        [64, 4, 200],
        [64, 2, 256],
        [64, 2, 256],
    ]
    assert asked[0]["strides"] == [128, 512]
    assert asked[1]["strides"] == [128, 1024]
    assert [entry["box"] for entry in asked] == [
        [64, 1, 128],
        [64, 1, 32],
        [64, 1, 32],
        [64, 1, 64],
        [64, 1, 32],
        [64, 1, 32],
    ]
    assert asked[1]["address"] == fused.data_ptr() + 4 * 64 * 2
    assert [entry["address"] for entry in asked[4:]] == [room.kv_k.data_ptr(), room.kv_v.data_ptr()]
    assert {(entry["name"], entry["dtype"]) for entry in asked} == {
        ("cuTensorMapEncodeTiled", "CU_TENSOR_MAP_DATA_TYPE_FLOAT16")
    }


def test_maps_lie_in_the_order_of_the_struct(asked: list[dict[str, Any]]) -> None:
    maps = TensorMapCache().of_launch(BOXES, [tensors(), tensors()], make_workspace(workspace().sizes, 2, CPU))
    for rank in range(2):
        entry = maps["ranks"][0, rank]
        numbers = [int(entry[name]["opaque"][0]) for name in ("q", "k", "v", "out", "kv_buffer_k", "kv_buffer_v")]
        assert numbers == list(range(6 * rank + 1, 6 * rank + 7))
    assert not maps["ranks"]["q"]["opaque"][0, 2:].any()
    assert not maps.flags.writeable


def test_a_launch_on_the_same_tensors_encodes_nothing(asked: list[dict[str, Any]]) -> None:
    cache, local, room = TensorMapCache(), tensors(), workspace()
    first = cache.of_launch(BOXES, [local], room)
    count = len(asked)
    assert cache.of_launch(BOXES, [local], room) is first
    assert len(asked) == count


def test_what_a_map_follows_from_makes_a_new_one(asked: list[dict[str, Any]]) -> None:
    """Only the tensor that changed is encoded, since single maps are kept too."""
    cache, local, room = TensorMapCache(), tensors(), workspace()
    cache.of_launch(BOXES, [local], room)
    count = len(asked)
    other = torch.zeros_like(local.v)
    changed = RankTensors(q=local.q, k=local.k, v=other, out=local.out, lse=local.lse)
    cache.of_launch(BOXES, [changed], room)
    assert [entry["address"] for entry in asked[count:]] == [other.data_ptr()]
    larger = workspace(512)
    cache.of_launch(BOXES, [changed], larger)
    assert [entry["sizes"] for entry in asked[count + 1 :]] == [[64, 2, 512], [64, 2, 512]]


def test_launches_that_were_not_used_lately_are_forgotten(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_maps, "LAUNCH_ENTRIES", 2)
    cache, room, several = TensorMapCache(), workspace(), [tensors() for _ in range(3)]
    first = cache.of_launch(BOXES, [several[0]], room)
    second = cache.of_launch(BOXES, [several[1]], room)
    assert cache.of_launch(BOXES, [several[0]], room) is first
    cache.of_launch(BOXES, [several[2]], room)
    assert cache.of_launch(BOXES, [several[0]], room) is first
    assert cache.of_launch(BOXES, [several[1]], room) is not second
    assert len(asked) == 3 * 4 + 2  # every map of every tensor once, for all that


def test_no_tokens_have_a_map_of_zeros(asked: list[dict[str, Any]]) -> None:
    """The driver has no map for them, and a kernel never looks at it."""
    empty = torch.zeros(0, 2, 64, dtype=torch.bfloat16)
    maps = TensorMapCache().of_launch(BOXES, [tensors(k=empty, v=empty)], workspace(0))
    entry = maps["ranks"][0, 0]
    for name in ("k", "v", "kv_buffer_k", "kv_buffer_v"):
        assert not entry[name]["opaque"].any()
    assert len(asked) == 2


@pytest.mark.parametrize("stride", [3, 2**50])
def test_strides_of_a_single_token_or_head_do_not_reach_the_driver(asked: list[dict[str, Any]], stride: int) -> None:
    """torch allows any number there, the driver multiples of 16 bytes below 2^40."""
    odd = torch.zeros(128, dtype=torch.bfloat16).as_strided((1, 1, 64), (stride, stride, 1))
    TensorMapCache().of_launch(BOXES, [tensors(k=odd, v=odd)], workspace(0))
    assert asked[1]["strides"] == [128, 128]


def test_an_expanded_tensor_has_strides_of_zero(asked: list[dict[str, Any]]) -> None:
    shared = torch.zeros(200, 1, 64, dtype=torch.bfloat16).expand(200, 2, 64)
    TensorMapCache().of_launch(BOXES, [tensors(k=shared, v=shared)], workspace(0))
    assert asked[1]["strides"] == [0, 128]


def test_a_map_is_128_bytes(asked: list[dict[str, Any]]) -> None:
    encoded = encode_map(4096, (64, 2, 200), (64, 128), torch.bfloat16, 64, 32)
    assert len(encoded) == TENSOR_MAP.size == 128
    assert asked[0]["dtype"] == "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"
