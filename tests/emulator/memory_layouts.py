"""Tensors of the same numbers in other places of memory."""

from __future__ import annotations

import mmap
import tempfile

import torch


def heads_first(tensor: torch.Tensor) -> torch.Tensor:
    """The same [tokens, heads, head_dim] over memory [heads, tokens, head_dim + 8] whose gaps are NaN."""
    tokens, heads, head_dim = tensor.shape
    memory = torch.full((heads, tokens, head_dim + 8), float("nan"), dtype=tensor.dtype)
    return memory[..., :head_dim].transpose(0, 1).copy_(tensor)


def far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same with 2 ** 25 elements from a token to the next, in a file of holes: only what is touched exists."""
    tokens, heads, head_dim = tensor.shape
    stride = 2**25
    with tempfile.TemporaryFile() as file:
        file.truncate(tokens * stride * tensor.element_size())
        memory = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=tensor.dtype)
    return memory.as_strided((tokens, heads, head_dim), (stride, head_dim, 1)).copy_(tensor)
