"""Attention of a few query rows over a few keys, in fp32: the arithmetic that all CPU worlds share."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def partial_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    first_head: int,
    group: int,
    scale: float,
    softcap: float | None,
    hidden: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of query heads ``first_head ..`` over some keys.

    Shapes: q fp32 [num_heads, rows, head_dim]; k, v fp32 [num_heads_kv, keys, head_dim] (all KV heads); ``group`` query
    heads share a KV head, by their number in the problem; ``hidden`` bool [rows, keys], True where a pair is masked.
    Returns out fp32 [num_heads, rows, head_dim] and lse fp32 [num_heads, rows] (natural log); rows that see nothing get
    (0, -inf).
    """
    num_heads, rows, head_dim = q.shape
    if not k.shape[1]:
        return torch.zeros_like(q), q.new_full((num_heads, rows), -math.inf)
    k, v = _heads_of(k, v, first_head, num_heads, group)
    scores = torch.matmul((q * scale).reshape(len(k), -1, head_dim), k.transpose(1, 2)).view(num_heads, rows, -1)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if hidden is not None:
        scores.masked_fill_(hidden, -math.inf)
    row_max = scores.amax(-1, keepdim=True)
    if hidden is not None:
        row_max.masked_fill_(row_max == -math.inf, 0.0)
    weights = scores.sub_(row_max).exp_()
    row_sum = weights.sum(-1, keepdim=True)
    out = torch.matmul(weights.view(len(k), -1, weights.shape[-1]), v).view(num_heads, rows, head_dim)
    out.div_(row_sum if hidden is None else row_sum.masked_fill(row_sum == 0, 1.0))
    return out, (row_max + row_sum.log()).squeeze(-1)


def _heads_of(k: Tensor, v: Tensor, first_head: int, num_heads: int, group: int) -> tuple[Tensor, Tensor]:
    """The KV heads of consecutive query heads: one a group where whole groups are asked for, else one a query head."""
    if first_head % group == 0 and num_heads % group == 0:
        heads = slice(first_head // group, (first_head + num_heads) // group)
        return k[heads], v[heads]
    index = torch.arange(first_head, first_head + num_heads, device=k.device) // group
    return k[index], v[index]
