"""Device memory in which launches work: protocol words, pulled tiles and running states of all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from liquidcp_runtime.memory_sizes import MemorySizes, aligned

#: Sections of protocol words, in the order in which a rank has them.
WORD_SECTIONS = ("signals", "prefixes", "arrivals", "claims", "merged", "tickets")


@dataclass(frozen=True, kw_only=True, eq=False)
class Workspace:
    """Memory of ``num_ranks`` ranks; it holds any plan whose sizes fit ``sizes``, one launch at a time.

    Fields: ``words`` int64 [num_ranks, words], zero at first and never cleared after, since each word carries its
    launch's number; uint8 [num_ranks, bytes]: ``kv_k``, ``kv_v``, ``state_out``, ``state_lse``.
    """

    sizes: MemorySizes
    words: Tensor
    kv_k: Tensor
    kv_v: Tensor
    state_out: Tensor
    state_lse: Tensor

    def write_rank(self, params: np.ndarray, rank: int) -> None:
        """Put the addresses of one rank's sections in ``params`` (one element of ``RankParams``)."""
        address = self.words[rank].data_ptr()
        for name in WORD_SECTIONS:
            params[name] = address
            address += 8 * getattr(self.sizes, name)
        params["kv_buffer_k"], params["kv_buffer_v"] = self.kv_k[rank].data_ptr(), self.kv_v[rank].data_ptr()
        params["state_out"], params["state_lse"] = self.state_out[rank].data_ptr(), self.state_lse[rank].data_ptr()

    def kv_views(self, rank: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """One rank's buffers of pulled keys and values, packed [tokens, num_heads_kv, head_dim] of the dtype and rows
        of ``like``, with as many tokens as fit."""
        row_bytes = like.shape[1] * like.shape[2] * like.element_size()
        tokens = self.sizes.kv // row_bytes
        if tokens == 0:
            return like.new_empty(0, *like.shape[1:]), like.new_empty(0, *like.shape[1:])
        first, second = (b[rank, : tokens * row_bytes].view(like.dtype) for b in (self.kv_k, self.kv_v))
        return first.view(tokens, *like.shape[1:]), second.view(tokens, *like.shape[1:])

    def poison(self) -> None:
        """Fill the buffers with NaN of any float type, so that a read of what nobody wrote is seen."""
        for buffer in (self.kv_k, self.kv_v, self.state_out, self.state_lse):
            buffer.fill_(0xFF)


def make_workspace(sizes: MemorySizes, num_ranks: int, device: torch.device) -> Workspace:
    """Memory for ``num_ranks`` ranks of a launch."""

    def section(count: int, size: int) -> Tensor:
        return torch.empty(count, aligned(size), dtype=torch.uint8, device=device)

    return Workspace(
        sizes=sizes,
        words=torch.zeros(num_ranks, aligned(8 * sizes.words) // 8, dtype=torch.int64, device=device),
        kv_k=section(num_ranks, sizes.kv),
        kv_v=section(num_ranks, sizes.kv),
        state_out=section(num_ranks, 4 * sizes.state_out),
        state_lse=section(num_ranks, 4 * sizes.state_lse),
    )
