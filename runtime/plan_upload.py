"""Packed plans in device memory: one copy for all ranks, into buffers that are used again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.memory_sizes import aligned


@dataclass(frozen=True, kw_only=True, eq=False)
class UploadedPlan:
    """Blobs of all ranks of a plan: rank ``r``'s begins at byte ``offsets[r]`` of ``blobs`` (uint8, on the device)."""

    blobs: Tensor
    offsets: tuple[int, ...]

    def address(self, rank: int) -> int:
        """Where a rank's packed plan begins."""
        return self.blobs.data_ptr() + self.offsets[rank]

    def blob(self, plan: Plan, rank: int) -> Tensor:
        """A view of one rank's packed plan."""
        return self.blobs[self.offsets[rank] : self.offsets[rank] + plan.blob_bytes(rank)]


def upload(plan: Plan, device: torch.device, into: Tensor | None = None, stride: int | None = None) -> UploadedPlan:
    """Copy all ranks' blobs to ``device``, on its current stream.

    ``into`` is a buffer to fill (uint8, large enough), None makes one; ``stride``: bytes from a rank's blob to the
    next, None packs them. The copy comes from pinned memory, so it does not wait; torch keeps that memory until the
    copy is done.
    """
    sizes = [plan.blob_bytes(r) for r in range(plan.world)]
    steps = [aligned(size) if stride is None else stride for size in sizes]
    offsets = [int(x) for x in np.cumsum([0, *steps])]
    host = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for rank, size in enumerate(sizes):
        host.numpy()[offsets[rank] : offsets[rank] + size] = np.frombuffer(plan.blob(rank), np.uint8)
    blobs = torch.empty(offsets[-1], dtype=torch.uint8, device=device) if into is None else into
    blobs[: len(host)].copy_(host, non_blocking=True)
    return UploadedPlan(blobs=blobs, offsets=tuple(offsets[:-1]))


class PlanUploads:
    """The uploaded plans of one world. A plan stays as long as it lives; its buffer then serves a later one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._plans: weakref.WeakKeyDictionary[Plan, UploadedPlan] = weakref.WeakKeyDictionary()
        self._buffers: dict[int, Tensor] = {}  # by address, of the plans that live
        self._free: dict[int, list[Tensor]] = {}

    def get(self, plan: Plan) -> UploadedPlan:
        """The plan on the device, copied there on first use."""
        found = self._plans.get(plan)
        if found is None:
            size = _bucket(sum(aligned(plan.blob_bytes(r)) for r in range(plan.world)))
            spare = self._free.get(size)
            buffer = spare.pop() if spare else torch.empty(size, dtype=torch.uint8, device=self._device)
            found = self._plans[plan] = upload(plan, self._device, buffer)
            self._buffers[buffer.data_ptr()] = buffer
            # Holds neither this nor the buffer: both go with their world, however long the plan lives.
            weakref.finalize(plan, _give_back, weakref.ref(self), buffer.data_ptr()).atexit = False
        return found

    def _give_back(self, address: int) -> None:
        buffer = self._buffers.pop(address)
        self._free.setdefault(len(buffer), []).append(buffer)


def _give_back(uploads: weakref.ref[PlanUploads], address: int) -> None:
    living = uploads()
    if living is not None:
        living._give_back(address)


def _bucket(size: int) -> int:
    """The next power of two, from 4 KiB on, so that buffers fit again."""
    return max(1 << max(size - 1, 0).bit_length(), 4096)
