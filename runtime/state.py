"""Partial attention states and the one function that combines them (paper equation 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from liquidcp_compiler.errors import LseBaseError, TensorError

NATURAL = "e"
LOG2 = "2"


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionState:
    """Attention of some queries over some of their keys.

    Fields:
        out: fp32 [..., head_dim], softmax-normalised over those keys.
        lse: fp32 [...], log of the sum of exponentials of the scaled scores; -inf where no key was visible.
        base: base of that logarithm: ``"e"`` everywhere in LiquidCP; ``"2"`` for imported states, which
            :func:`from_log2` converts. Combining different bases raises ``LseBaseError``.
    """

    out: Tensor
    lse: Tensor
    base: str = NATURAL

    def __post_init__(self) -> None:
        if self.base not in (NATURAL, LOG2):
            raise LseBaseError(f"an lse of base {self.base!r}; known bases: 'e' and '2'")
        for name, tensor in (("out", self.out), ("lse", self.lse)):
            if tensor.dtype != torch.float32:
                raise TensorError(f"state {name}", "dtype", tensor.dtype, torch.float32, "partial states are fp32")
        if self.out.shape[:-1] != self.lse.shape:
            raise TensorError("state lse", "shape", tuple(self.lse.shape), tuple(self.out.shape[:-1]))


def empty_state(*shape: int, head_dim: int) -> AttentionState:
    """The state over no keys: out 0, lse -inf. It merges to the other side unchanged."""
    out = torch.zeros(*shape, head_dim, dtype=torch.float32)
    return AttentionState(out=out, lse=out.new_full(shape, -math.inf))


def from_log2(out: Tensor, lse_log2: Tensor) -> AttentionState:
    """A state of a library that keeps log2 of the sum, converted to natural log. Inputs may be of any float dtype."""
    return AttentionState(out=out.float(), lse=lse_log2.float() * math.log(2.0))


def combine(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) over the keys of both sides. Shapes [..., head_dim] and [...]; natural log; fp32.

    The weights select: what lies in ``out`` of an empty side (lse -inf) never reaches the result, NaN included.
    """
    lse_max = torch.maximum(lse_a, lse_b)
    shift = torch.where(lse_max == -math.inf, 0.0, lse_max)
    weight_a, weight_b = torch.exp(lse_a - shift), torch.exp(lse_b - shift)
    total = weight_a + weight_b
    inverse = torch.where(total == 0, 0.0, 1.0 / total)
    share_a, share_b = (weight_a * inverse).unsqueeze(-1), (weight_b * inverse).unsqueeze(-1)
    out = torch.where(share_a == 0, 0.0, out_a * share_a) + torch.where(share_b == 0, 0.0, out_b * share_b)
    return out, shift + torch.log(total)


def merge(a: AttentionState, b: AttentionState) -> AttentionState:
    """The state over the keys of ``a`` and ``b``. Raises ``LseBaseError`` when their bases differ."""
    _same_base(a, b)
    if a.base == LOG2:
        natural = math.log(2.0)
        out, lse = combine(a.out, a.lse * natural, b.out, b.lse * natural)
        return AttentionState(out=out, lse=lse / natural, base=LOG2)
    out, lse = combine(a.out, a.lse, b.out, b.lse)
    return AttentionState(out=out, lse=lse)


def merge_into(target: AttentionState, other: AttentionState) -> None:
    """``target`` becomes ``merge(target, other)`` in place."""
    merged = merge(target, other)
    target.out.copy_(merged.out)
    target.lse.copy_(merged.lse)


def apply_sink(out: Tensor, lse: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Count one more key of score ``sink`` and value 0. ``sink`` broadcasts to ``lse``; to be applied exactly once."""
    with_sink = torch.logaddexp(lse, sink.expand_as(lse))
    share = torch.exp(lse - with_sink).unsqueeze(-1)
    return torch.where(share == 0, 0.0, out * share), with_sink


def _same_base(a: AttentionState, b: AttentionState) -> None:
    if a.base != b.base:
        raise LseBaseError(
            f"cannot combine an lse of base {a.base!r} with one of base {b.base!r}; convert first, as from_log2() does"
        )
