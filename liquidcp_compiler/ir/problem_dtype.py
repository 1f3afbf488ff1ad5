"""Element types of tensors."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class DType(StrEnum):
    """Element type of Q, K, V and of the output."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FP32 else 2

    @property
    def rounding_unit(self) -> float:
        """Largest relative error of rounding one number to this type: half the distance from 1 to the next
        number.
        """
        return {DType.BF16: 2.0**-8, DType.FP16: 2.0**-11, DType.FP32: 2.0**-24}[self]

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype."""
        import torch

        return {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.FP32: torch.float32}[self]
