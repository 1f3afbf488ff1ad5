"""The tensors of one rank in a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.tensor_check import (
    check_aligned,
    check_kind,
    check_local,
    check_results,
    check_sinks,
    overlap,
    reach,
    row_strides,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTensors:
    """Local tensors of one rank, on the device: q, out [tokens, num_heads_q, head_dim]; k, v [tokens, num_heads_kv,
    head_dim]; lse fp32 [num_heads_q, tokens], contiguous; sinks fp32 [num_heads_q] or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    sinks: Tensor | None = None

    def write(self, params: np.ndarray) -> None:
        """Put addresses and strides in ``params`` (one element of ``RankParams``)."""
        for name in ("q", "k", "v", "out"):
            tensor = getattr(self, name)
            params[name] = tensor.data_ptr()
            params[f"{name}_token_stride"], params[f"{name}_head_stride"] = row_strides(name, tensor)
        params["lse"] = self.lse.data_ptr()
        params["sinks"] = 0 if self.sinks is None else self.sinks.data_ptr()

    def check(self, plan: Plan, rank: int, device: torch.device, *, exact: bool = True) -> None:
        """Raise TensorError unless these are tensors of ``rank`` that kernels can address: elements of a head lie side
        by side, and rows begin at multiples of 16 bytes; not ``exact``: they may have more tokens.
        """
        p, header = plan.problem, plan.header(rank)
        rows = (int(header["num_local_q_tokens"]), p.num_heads_q, p.head_dim)
        keys = (int(header["num_local_kv_tokens"]), p.num_heads_kv, p.head_dim)
        for name, shape in (("q", rows), ("k", keys), ("v", keys), ("out", rows)):
            tensor = getattr(self, name)
            check_kind(name, tensor, p.dtype.torch, device)
            check_local(name, tensor if exact else tensor[: shape[0]], shape, p.dtype.torch, device)
            check_aligned(name, tensor)
        check_sinks(p, self.sinks, device)
        if self.sinks is not None:
            check_kind("sinks", self.sinks, torch.float32, device)
        check_kind("lse", self.lse, torch.float32, device)
        shape = (p.num_heads_q, rows[0])
        if not self.lse.is_contiguous() or (
            tuple(self.lse.shape) != shape and (exact or self.lse.numel() < math.prod(shape))
        ):
            raise TensorError("lse", "shape", tuple(self.lse.shape), f"{shape}, contiguous")
        check_results(self.q, self.k, self.v, self.sinks, self.out, self.lse, tuple(self.lse.shape), device)


def check_apart(tensors: Sequence[RankTensors]) -> None:
    """Raise TensorError where a result of one rank lies in memory of another rank's tensors: all are in use at once."""
    spans = sorted(
        (*reach(tensor), rank, name)
        for rank, local in enumerate(tensors)
        for name, tensor in vars(local).items()
        if tensor is not None and tensor.numel()
    )
    for i, (_, end, rank, name) in enumerate(spans):
        for first, _, other_rank, other_name in spans[i + 1 :]:
            if first >= end:
                break
            if rank == other_rank or not {name, other_name} & {"out", "lse"}:
                continue
            if overlap(getattr(tensors[rank], name), getattr(tensors[other_rank], other_name)):
                got, allowed = f"shared with {other_name} of rank {other_rank}", "memory of its own for each result"
                raise TensorError(f"{name} of rank {rank}", "memory", got, allowed)
