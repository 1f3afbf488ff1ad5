"""Checks of the tensors that a user hands to a world, before anything runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.problem import Problem

LAYOUT = "[tokens, heads, head_dim]"


def packed(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Global q, k, v as packed [tokens, heads, head_dim] views.

    A batch [B, L, heads, head_dim] is taken too, where the problem's sequences all have the same length.
    Raises TensorError for a wrong type, dtype, device, shape or order of dimensions.
    """
    tensors = []
    for name, x, lengths, heads in (
        ("q", q, problem.q_lengths, problem.num_heads_q),
        ("k", k, problem.kv_lengths_array, problem.num_heads_kv),
        ("v", v, problem.kv_lengths_array, problem.num_heads_kv),
    ):
        check_kind(name, x, problem.dtype.torch)
        tensors.append(_packed(name, x, lengths.tolist(), heads, problem.head_dim))
    return tensors[0], tensors[1], tensors[2]


def check_local(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise TensorError unless ``x`` is a CPU tensor of this shape and dtype."""
    check_kind(name, x, dtype)
    if tuple(x.shape) != shape:
        raise TensorError(name, "shape", tuple(x.shape), f"{shape}, {LAYOUT} of this rank", _mixup(x.shape, shape))


def check_kind(name: str, x: Any, dtype: torch.dtype) -> None:
    """Raise TensorError unless ``x`` is a CPU tensor of this dtype."""
    if not isinstance(x, Tensor):
        raise TensorError(name, "type", type(x).__name__, "a torch tensor")
    if x.device.type != "cpu":
        raise TensorError(name, "device", x.device, "cpu", "move it with .cpu(), or use a world on the GPU")
    if x.layout != torch.strided:
        raise TensorError(name, "layout", x.layout, torch.strided, "make it dense with .to_dense()")
    if x.dtype != dtype:
        raise TensorError(name, "dtype", x.dtype, dtype, "the problem's dtype")


def check_sinks(problem: Problem, sinks: Tensor | None) -> None:
    """Raise TensorError unless sinks are given exactly where the problem has them, one a query head."""
    if problem.sinks != (sinks is not None):
        expected = "a tensor [num_heads_q]" if problem.sinks else "None, as the problem has no sinks"
        raise TensorError("sinks", "value", None if sinks is None else "a tensor", expected)
    if sinks is None:
        return
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point() or sinks.device.type != "cpu":
        raise TensorError("sinks", "type", _kind(sinks), "a floating-point CPU tensor")
    if tuple(sinks.shape) != (problem.num_heads_q,):
        raise TensorError("sinks", "shape", tuple(sinks.shape), f"({problem.num_heads_q},), one a query head")


def check_result(name: str, x: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise TensorError unless a given result tensor can take the result."""
    if x is None:
        return
    check_kind(name, x, dtype)
    if tuple(x.shape) != shape:
        raise TensorError(name, "shape", tuple(x.shape), shape)
    if any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True)):
        hint = "an expanded tensor has one place for many results; pass .contiguous()"
        raise TensorError(name, "strides", x.stride(), "a place of its own for each element", hint)


def row_strides(name: str, x: Tensor) -> tuple[int, int]:
    """(token stride, head stride) of a [tokens, heads, head_dim] tensor, in elements."""
    if x.stride(-1) != 1:
        raise TensorError(name, "strides", x.stride(), "1 in the last dimension", "pass .contiguous()")
    return x.stride(0), x.stride(1)


def _packed(name: str, x: Tensor, lengths: list[int], heads: int, head_dim: int) -> Tensor:
    shape = (sum(lengths), heads, head_dim)
    if tuple(x.shape) == shape:
        return x
    batch = (len(lengths), lengths[0], heads, head_dim) if lengths and len(set(lengths)) == 1 else None
    if batch is not None and tuple(x.shape) == batch:
        return x.reshape(shape)
    expected = f"{shape}, {LAYOUT}" + (f", or {batch}, [batch, tokens, heads, head_dim]" if batch else "")
    hint = _mixup(x.shape, shape) or (_mixup(x.shape, batch) if batch else "")
    raise TensorError(name, "shape", tuple(x.shape), expected, hint)


def _mixup(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """A hint where only the token and head dimensions are exchanged."""
    if len(found) < 3 or tuple(found) != (*expected[:-3], expected[-2], expected[-3], expected[-1]):
        return ""
    return "tokens and heads are exchanged; pass x.transpose(-3, -2)"


def _kind(x: Any) -> str:
    return f"{x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
