"""Cuts a problem's dense attention into blocks of bounded memory, and checks the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.problem import Problem

MAX_ELEMENTS = 2**21
"""Elements of a float64 temporary (16 MiB); six or so are alive at once. One head's keys may be more."""


def check_inputs(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
) -> None:
    """Raise TensorError where a tensor does not have the shape that the problem gives it."""
    kv_shape = (problem.total_kv, problem.num_heads_kv, problem.head_dim)
    check_shape("q", q, (problem.total_q, problem.num_heads_q, problem.head_dim))
    check_shape("k", k, kv_shape)
    check_shape("v", v, kv_shape)
    if problem.sinks != (sinks is not None):
        expected = "a tensor [num_heads_q]" if problem.sinks else "None, as the problem has no sinks"
        raise TensorError("sinks", "value", "a tensor" if sinks is not None else None, expected)
    if sinks is not None:
        check_shape("sinks", sinks, (problem.num_heads_q,))


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise TensorError unless ``tensor`` is a floating-point tensor of this shape."""
    if tuple(tensor.shape) != shape:
        raise TensorError(name, "shape", tuple(tensor.shape), shape)
    if not tensor.is_floating_point():
        raise TensorError(name, "dtype", tensor.dtype, "a floating-point type")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows of one sequence with the keys they may see, for some heads. Slices of the packed tensors."""

    rows: slice
    keys: slice
    heads: slice  # query heads
    visible: torch.Tensor  # bool [rows, keys]

    def take(self, problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        """Parts of q, k, v on the device of q, [heads, rows or keys, head_dim], a KV head for each query head."""
        kv_heads = [head // problem.group_size for head in range(self.heads.start, self.heads.stop)]
        parts = [q[self.rows, self.heads], k[self.keys][:, kv_heads], v[self.keys][:, kv_heads]]
        return [x.detach().to(q.device).transpose(0, 1) for x in parts]


def blocks(problem: Problem) -> Iterator[Block]:
    """Blocks that cover every visible pair for every head, small enough for MAX_ELEMENTS."""
    for seq in range(problem.num_sequences):
        row_begin, row_end = map(int, problem.q_offsets[seq : seq + 2])
        key_begin, key_end = map(int, problem.kv_offsets[seq : seq + 2])
        num_rows, num_keys = row_end - row_begin, key_end - key_begin
        if num_rows == 0 or num_keys == 0:
            continue
        num_heads = min(problem.num_heads_q, max(1, MAX_ELEMENTS // (num_keys * problem.head_dim)))
        step = max(1, MAX_ELEMENTS // (num_heads * max(num_keys, problem.head_dim)))
        for begin in range(0, num_rows, step):
            end = min(begin + step, num_rows)
            visible = problem.mask_bound.visible(seq, np.arange(begin, end), np.arange(num_keys))
            seen = np.flatnonzero(visible.any(axis=0))
            if seen.size == 0:
                continue
            first, past = int(seen[0]), int(seen[-1]) + 1
            for head in range(0, problem.num_heads_q, num_heads):
                yield Block(
                    rows=slice(row_begin + begin, row_begin + end),
                    keys=slice(key_begin + first, key_begin + past),
                    heads=slice(head, min(head + num_heads, problem.num_heads_q)),
                    visible=torch.from_numpy(visible[:, first:past]),
                )
