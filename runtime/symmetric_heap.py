"""What ranks show to each other: a page of protocol words each, and slots in which keys and values are staged."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import OutOfResources
from liquidcp_compiler.ir.launch import PAGE_DONE, PAGE_WORDS
from liquidcp_runtime.memory_sizes import aligned


class SymmetricHeap:
    """The heaps of all ranks that this process sees, alike in size and layout.

    Args:
        num_pages: ranks with a page of their own; num_stages: ranks with staging slots.
        heap_bytes: size of a rank's heap, fixed from the start; None: slots grow with the plans, which only ranks in
            one process can agree on.

    Attributes: ``pages`` int64 [num_pages, PAGE_WORDS], which never move: READYs and DONEs; ``stage`` uint8
    [num_stages, 2 (k, v), 2 (slots by parity of the epoch), bytes].
    """

    def __init__(self, num_pages: int, num_stages: int, device: torch.device, heap_bytes: int | None) -> None:
        self.pages = torch.zeros(num_pages, PAGE_WORDS, dtype=torch.int64, device=device)
        self._fixed, self._device = heap_bytes, device
        slot = 0 if heap_bytes is None else (heap_bytes - 8 * PAGE_WORDS) // 4
        self.stage = self._allocate(num_stages, slot - slot % aligned(1) if slot > 0 else 0)

    def fits(self, stage_bytes: int) -> bool:
        """Do keys of ``stage_bytes`` fit a slot?"""
        return stage_bytes <= self.stage.shape[-1]

    def grow(self, stage_bytes: int) -> None:
        """Larger slots; only when nothing runs. Raises OutOfResources for a heap of fixed size."""
        if self._fixed is not None:
            hint = "Give the world a larger heap_bytes, or plan smaller batches"
            raise OutOfResources("heap_bytes", 4 * aligned(stage_bytes) + 8 * PAGE_WORDS, self._fixed, hint)
        self.stage = self._allocate(self.stage.shape[0], aligned(stage_bytes))

    def recover(self, epoch: int) -> None:
        """Make every reader done with all launches before ``epoch``, and nobody ready."""
        self.pages[:, :2] = 0
        self.pages[:, PAGE_DONE:] = (epoch - 1) << 32 | 1

    def _allocate(self, num_stages: int, slot_bytes: int) -> Tensor:
        return torch.empty(num_stages, 2, 2, slot_bytes, dtype=torch.uint8, device=self._device)


def write_stage(params: np.ndarray, stage: Tensor) -> None:
    """Put the addresses of one rank's slots (``stage`` uint8 [2, 2, bytes]) in ``params``, one ``PeerParams``."""
    for slot in range(2):
        params["stage_k"][0, slot] = stage[0, slot].data_ptr()
        params["stage_v"][0, slot] = stage[1, slot].data_ptr()
