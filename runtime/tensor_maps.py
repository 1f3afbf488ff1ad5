"""How the tensor copy engine sees the tensors of a launch: the second parameter of Hopper kernels.

A map holds the address, sizes and strides of a tensor and the box that one copy moves. The driver encodes it on the
host, in microseconds; a launch on tensors that were seen before encodes nothing.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.ir.kernel_path import TensorBoxes
from liquidcp_compiler.ir.launch import TENSOR_MAP, TENSOR_MAPS
from liquidcp_runtime import driver_api
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.tensor_check import row_strides
from liquidcp_runtime.workspace import Workspace

#: Encoded maps that a world keeps (128 bytes each), and parameters of whole launches (6 KB each).
MAP_ENTRIES = 4096
LAUNCH_ENTRIES = 256

_DTYPES = {torch.bfloat16: "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", torch.float16: "CU_TENSOR_MAP_DATA_TYPE_FLOAT16"}


class TensorMapCache:
    """The maps of a world's launches; what was used last stays. For one thread at a time."""

    def __init__(self) -> None:
        self._encode = lru_cache(MAP_ENTRIES)(encode_map)
        self._launches: OrderedDict[Hashable, np.ndarray] = OrderedDict()

    def of_launch(
        self, boxes: TensorBoxes, tensors: Sequence[RankTensors], workspace: Workspace, first_rank: int = 0
    ) -> np.ndarray:
        """One element of ``TENSOR_MAPS.dtype``, read-only, for a launch of these ranks; ``first_rank`` is for messages.

        Raises DriverError for a tensor that the driver refuses.
        """
        key = (boxes, *_identity(workspace), *(part for local in tensors for part in _tensor_identity(local)))
        found = self._launches.get(key)
        if found is None:
            found = self._assemble(boxes, tensors, workspace, first_rank)
            self._launches[key] = found
            if len(self._launches) > LAUNCH_ENTRIES:
                self._launches.popitem(last=False)
        else:
            self._launches.move_to_end(key)
        return found

    def _assemble(
        self, boxes: TensorBoxes, tensors: Sequence[RankTensors], workspace: Workspace, first_rank: int
    ) -> np.ndarray:
        maps = np.zeros(1, TENSOR_MAPS.dtype)
        for index, local in enumerate(tensors):
            rank = maps["ranks"][0, index : index + 1]
            views = {"q": local.q, "k": local.k, "v": local.v, "out": local.out}
            views["kv_buffer_k"], views["kv_buffer_v"] = workspace.kv_views(index, local.k)
            for name, view in views.items():
                rows = {"q": boxes.q_rows, "out": boxes.out_rows}.get(name, boxes.kv_rows)
                encoded = self._map(f"{name} of rank {first_rank + index}", view, boxes.columns, rows)
                rank[name]["opaque"] = np.frombuffer(encoded, np.uint64)
        maps.flags.writeable = False
        return maps

    def _map(self, name: str, x: Tensor, columns: int, rows: int) -> bytes:
        """The map of [tokens, heads, head_dim]; zero without tokens, for which the driver has none."""
        tokens, heads, head_dim = x.shape
        if tokens == 0:
            return bytes(TENSOR_MAP.size)
        token_stride, head_stride = row_strides(name, x)
        return self._encode(
            x.data_ptr(), (head_dim, heads, tokens), (head_stride, token_stride), x.dtype, columns, rows
        )


def encode_map(
    address: int, sizes: tuple[int, int, int], strides: tuple[int, int], dtype: torch.dtype, columns: int, rows: int
) -> bytes:
    """Have the driver encode one map, 128 bytes, with 128-byte swizzle; what a box has outside the tensor reads as 0.

    Args:
        sizes: head_dim, heads, tokens; all at least 1.
        strides: from a head to the next and from a token to the next, in elements.
        columns, rows: of a box, which is of one head.

    Raises DriverError.
    """
    driver = driver_api.bindings()
    long, word = driver.cuuint64_t, driver.cuuint32_t
    encoded = driver_api.call(
        "cuTensorMapEncodeTiled",
        getattr(driver.CUtensorMapDataType, _DTYPES[dtype]),
        len(sizes),
        address,
        [long(size) for size in sizes],
        [long(stride * dtype.itemsize) for stride in strides],
        [word(size) for size in (columns, 1, rows)],
        [word(1)] * len(sizes),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(encoded.getPtr(), TENSOR_MAP.size)


def _identity(workspace: Workspace) -> tuple[int, ...]:
    """What the maps of the buffers of pulled tiles follow from, beside the shape of k."""
    return workspace.kv_k.data_ptr(), workspace.kv_v.data_ptr(), workspace.sizes.kv


def _tensor_identity(local: RankTensors) -> tuple[Hashable, ...]:
    """What the maps of one rank's tensors follow from."""
    q, k, v, out = local.q, local.k, local.v, local.out
    addresses = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
    return (q.dtype, *addresses, q.shape, k.shape, q.stride(), k.stride(), v.stride(), out.stride())
