"""The tensors of one rank in a launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.tensor_check import row_strides


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
        """Raise TensorError unless these are the tensors of ``rank``; not ``exact``: they may have more tokens."""
        p, header = plan.problem, plan.header(rank)
        q_tokens, kv_tokens = int(header["num_local_q_tokens"]), int(header["num_local_kv_tokens"])
        for name, tokens, heads in (
            ("q", q_tokens, p.num_heads_q),
            ("k", kv_tokens, p.num_heads_kv),
            ("v", kv_tokens, p.num_heads_kv),
            ("out", q_tokens, p.num_heads_q),
        ):
            check_device_tensor(name, getattr(self, name), (tokens, heads, p.head_dim), p.dtype.torch, device, exact)
        lse = self.lse
        check_device_tensor("lse", lse, (p.num_heads_q, q_tokens), torch.float32, device, exact)
        if not lse.is_contiguous():
            raise TensorError("lse", "strides", lse.stride(), "contiguous [num_heads_q, tokens]")


def check_device_tensor(
    name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, exact: bool = True
) -> None:
    """Raise TensorError unless ``x`` is a tensor of this kind; not ``exact``: it may hold more tokens."""
    if x.dtype != dtype:
        raise TensorError(name, "dtype", x.dtype, dtype)
    if x.device != device:
        raise TensorError(name, "device", x.device, device)
    enough = tuple(x.shape) == shape if exact else x.dim() == len(shape) and x.numel() >= _size(shape)
    if not enough:
        raise TensorError(name, "shape", tuple(x.shape), shape if exact else f"at least {shape}")


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
