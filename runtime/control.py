"""What a world keeps for all of its launches, at addresses that never change: epoch, abort word, error block."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.ir.launch import ERROR_BLOCK


class Control:
    """Control words of one process.

    Attributes: ``words`` int64 [3]: epoch (from 1: a word that was never written belongs to epoch 0), abort word, exit
    count; ``error``: an ``ErrorBlock`` in host memory that the device writes; ``link_busy`` int64 [num_ranks].
    """

    def __init__(self, num_ranks: int, device: torch.device) -> None:
        self.words = torch.tensor([1, 0, 0], dtype=torch.int64).to(device)
        self.link_busy = torch.zeros(num_ranks, dtype=torch.int64, device=device)
        self.error = _host_bytes(ERROR_BLOCK.size, device)
        self._error_block = self.error.numpy().view(ERROR_BLOCK.dtype)

    def write(self, params: np.ndarray) -> None:
        """Put the addresses in ``params`` (one element of ``KernelParams``)."""
        address = self.words.data_ptr()
        params["epoch"], params["abort"], params["exits"] = address, address + 8, address + 16
        params["error"], params["link_busy"] = self.error.data_ptr(), self.link_busy.data_ptr()

    def error_block(self) -> np.ndarray:
        """The host's view of the error block: one element of ``ERROR_BLOCK.dtype``."""
        return self._error_block

    def recover(self) -> int:
        """Forget an aborted launch, and return the number of the next one. Only when nothing runs.

        It is two further on: whatever a launch that was given up has left in words and slots is of an epoch that nobody
        looks at again.
        """
        epoch = int(self.words[0]) + 2
        self.words.copy_(torch.tensor([epoch, 0, 0], dtype=torch.int64))
        self.error.zero_()
        return epoch


def _host_bytes(size: int, device: torch.device) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
