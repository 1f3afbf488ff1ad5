"""Checks of the tensors that a user hands to a world, before anything runs.

Every world refuses a wrong type, device, layout, dtype or shape, and results that overlap themselves, each other or an
input. Inputs and results may have any strides on the CPU; kernels address rows of consecutive elements
(:func:`row_strides`) in units of 16 bytes (:func:`check_aligned`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.problem import Problem

LAYOUT = "[tokens, heads, head_dim]"
CPU = torch.device("cpu")
KERNEL_ALIGNMENT = 16  # bytes: what one cp.async moves, and what TMA wants of addresses and strides


def packed(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Global q, k, v on the CPU as packed [tokens, heads, head_dim], views where their strides allow.

    Raises TensorError as :func:`check_global` does.
    """
    check_global(problem, q, k, v)
    shape_q = (problem.total_q, problem.num_heads_q, problem.head_dim)
    shape_kv = (problem.total_kv, problem.num_heads_kv, problem.head_dim)
    return q.reshape(shape_q), k.reshape(shape_kv), v.reshape(shape_kv)


def check_global(problem: Problem, q: Tensor, k: Tensor, v: Tensor, device: torch.device = CPU) -> None:
    """Raise TensorError unless q, k, v are the problem's global tensors, in its dtype, on ``device``.

    Each is [tokens, heads, head_dim], or a batch [B, L, heads, head_dim] where its sequences all have length L.
    """
    for name, x, lengths, heads in (
        ("q", q, problem.q_lengths, problem.num_heads_q),
        ("k", k, problem.kv_lengths_array, problem.num_heads_kv),
        ("v", v, problem.kv_lengths_array, problem.num_heads_kv),
    ):
        check_kind(name, x, problem.dtype.torch, device)
        _check_global_shape(name, x, lengths, heads, problem.head_dim)


def check_local(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = CPU) -> None:
    """Raise TensorError unless ``x`` is a rank's tensor of this shape and dtype, on ``device``."""
    check_kind(name, x, dtype, device)
    if tuple(x.shape) != shape:
        raise TensorError(name, "shape", tuple(x.shape), f"{shape}, {LAYOUT} of this rank", _mixup(x.shape, shape))


def check_kind(name: str, x: Any, dtype: torch.dtype, device: torch.device = CPU) -> None:
    """Raise TensorError unless ``x`` is a dense tensor of this dtype on ``device``."""
    if not isinstance(x, Tensor):
        raise TensorError(name, "type", type(x).__name__, "a torch tensor")
    if x.device != device:
        where = "move it with .cpu(), or use a world on the GPU" if device == CPU else "all tensors lie on the world's"
        raise TensorError(name, "device", x.device, device, where)
    if x.layout != torch.strided:
        raise TensorError(name, "layout", x.layout, torch.strided, "make it dense with .to_dense()")
    if x.dtype != dtype:
        raise TensorError(name, "dtype", x.dtype, dtype, "the problem's dtype")


def check_sinks(problem: Problem, sinks: Tensor | None, device: torch.device = CPU) -> None:
    """Raise TensorError unless sinks are given exactly where the problem has them, one a query head."""
    if problem.sinks != (sinks is not None):
        expected = "a tensor [num_heads_q]" if problem.sinks else "None, as the problem has no sinks"
        raise TensorError("sinks", "value", None if sinks is None else "a tensor", expected)
    if sinks is None:
        return
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point() or sinks.device != device:
        raise TensorError("sinks", "type", _kind(sinks), f"floating point, on {device}")
    if tuple(sinks.shape) != (problem.num_heads_q,):
        raise TensorError("sinks", "shape", tuple(sinks.shape), f"({problem.num_heads_q},), one a query head")


def check_results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    out: Tensor | None,
    lse: Tensor | None,
    lse_shape: tuple[int, ...],
    device: torch.device = CPU,
) -> None:
    """Raise TensorError unless given result tensors can take the results of inputs that passed their checks.

    ``out`` must be like q and ``lse`` fp32 of ``lse_shape``, each element with a place of its own, and both apart from
    each other and from all inputs.
    """
    check_result("out", out, tuple(q.shape), q.dtype, device)
    check_result("lse", lse, lse_shape, torch.float32, device)
    others = {"q": q, "k": k, "v": v, "sinks": sinks}
    for name, result in (("out", out), ("lse", lse)):
        if result is None:
            continue
        for other_name, other in others.items():
            if other is not None and overlap(result, other):
                got, hint = f"shared with {other_name}", "pass a tensor that is no view of another one"
                raise TensorError(name, "memory", got, "memory of its own", hint)
        others[name] = result


def check_result(
    name: str, x: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = CPU
) -> None:
    """Raise TensorError unless a result tensor, where one is given, can take the result."""
    if x is None:
        return
    check_kind(name, x, dtype, device)
    if tuple(x.shape) != shape:
        raise TensorError(name, "shape", tuple(x.shape), shape)
    _check_own_places(name, x)


def row_strides(name: str, x: Tensor, *, output: bool = False) -> tuple[int, int]:
    """(token_stride, head_stride) in elements of [tokens, heads, head_dim] or [B, L, heads, head_dim].

    Element (t, h, d) lies t * token_stride + h * head_stride + d elements after the first; a batch counts as B * L
    tokens. A dimension of length 0 or 1 has the stride of a contiguous tensor, since torch allows any number there.
    Inputs may be expanded (stride 0) or overlap; ``output`` wants a place of its own for each element.

    Raises TensorError where elements of a row do not follow each other, where the tokens of a batch have no common
    stride, and for an output with places in common.
    """
    if x.dim() not in (3, 4):
        raise TensorError(name, "shape", tuple(x.shape), f"{LAYOUT}, or [B, L, heads, head_dim]")
    *tokens, heads, head_dim = x.shape
    if x.numel() == 0:
        return heads * head_dim, head_dim
    if head_dim > 1 and x.stride(-1) != 1:
        raise TensorError(name, "strides", x.stride(), "1 in the last dimension", "pass .contiguous()")
    if output:
        _check_own_places(name, x)
    long = [(size, stride) for size, stride in zip(tokens, x.stride(), strict=False) if size > 1]
    if len(long) == 2 and long[0][1] != long[1][0] * long[1][1]:
        hint = "tokens of all sequences must be one stride apart; pass .contiguous()"
        raise TensorError(name, "strides", x.stride(), f"{long[1][0] * long[1][1]} in the first dimension", hint)
    return long[-1][1] if long else heads * head_dim, x.stride(-2) if heads > 1 else head_dim


def check_aligned(name: str, x: Tensor) -> None:
    """Raise TensorError unless each row begins at a multiple of 16 bytes, for kernels (takes what `row_strides` takes).

    So the address of the first element and the two strides of :func:`row_strides` must be such multiples.
    """
    if x.is_neg():
        raise TensorError(name, "value", "a negation yet to be done", "plain memory", "pass .resolve_neg()")
    if x.data_ptr() % KERNEL_ALIGNMENT:
        got, hint = f"{x.data_ptr():#x}", "pass .clone()"
        raise TensorError(name, "address", got, f"a multiple of {KERNEL_ALIGNMENT} bytes", hint)
    unit = KERNEL_ALIGNMENT // x.element_size()
    if any(stride % unit for stride in row_strides(name, x)):
        hint = "each row must begin at a multiple of 16 bytes; pass .contiguous()"
        raise TensorError(name, "strides", x.stride(), f"multiples of {unit} elements before the last", hint)


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors have a byte in common. Interleaved columns of one buffer have none."""
    if not a.numel() or not b.numel() or a.device != b.device:
        return False
    (a_first, a_end), (b_first, b_end) = reach(a), reach(b)
    if a_end <= b_first or b_end <= a_first:
        return False
    return np.shares_memory(np.asarray(_Places(a)), np.asarray(_Places(b)))


class _Places:
    """Where a tensor's elements lie, as numpy describes it; numpy compares addresses and reads nothing."""

    def __init__(self, x: Tensor) -> None:
        size = x.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(x.shape),
            "strides": tuple(stride * size for stride in x.stride()),
            "data": (x.data_ptr(), True),
        }


def reach(x: Tensor) -> tuple[int, int]:
    """Of a tensor with elements: address of the first byte, and of the first one behind the last."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _check_own_places(name: str, x: Tensor) -> None:
    """Raise TensorError unless each element has a place of its own.

    From the smallest stride up, a dimension must step over all that the ones before it reach. Slices and permutations
    of a contiguous tensor pass.
    """
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)) if x.numel() else ():
        if size > 1 and stride <= reach:
            hint = "an expanded or overlapping tensor has one place for several results; pass .contiguous()"
            raise TensorError(name, "strides", x.stride(), "a place of its own for each element", hint)
        reach += (size - 1) * stride


def _check_global_shape(name: str, x: Tensor, lengths: np.ndarray, heads: int, head_dim: int) -> None:
    shape = (int(lengths.sum()), heads, head_dim)
    if tuple(x.shape) == shape:
        return
    same = len(lengths) > 0 and bool((lengths == lengths[0]).all())
    batch = (len(lengths), int(lengths[0]), heads, head_dim) if same else None
    if batch is not None and tuple(x.shape) == batch:
        return
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
