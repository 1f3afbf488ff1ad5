"""Memory that CUDA graphs may refer to: a plan at fixed addresses, to be replaced by another one between replays."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from liquidcp_compiler.errors import InvalidField, OutOfResources, PlanError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.memory_sizes import MemorySizes, aligned
from liquidcp_runtime.plan_support import check_supported
from liquidcp_runtime.plan_upload import UploadedPlan, upload
from liquidcp_runtime.prepared_launch import PreparedLaunches
from liquidcp_runtime.stream_order import StreamOrder
from liquidcp_runtime.workspace import Workspace, make_workspace

#: What a captured launch has in it besides the plan: problems must agree on it.
_FIXED = ("num_heads_q", "num_heads_kv", "head_dim", "dtype", "scale", "softcap", "sinks")


class PlanSlot:
    """A place for one plan at a time. ``DeviceWorld.reserve`` makes it; ``run`` takes it in the place of a plan.

    Its memory never moves, so a captured launch stays right when :meth:`load` puts another plan in. Attributes:
    ``plan``, the one that is in; ``sizes``, what fits.
    """

    def __init__(
        self, plans: Sequence[Plan], num_ranks: int, stage: torch.Tensor, device: torch.device, order: StreamOrder
    ) -> None:
        self.plan = plans[0]
        for plan in plans:
            self._check(plan)
        self.sizes = MemorySizes.largest(MemorySizes.of(p) for p in plans)
        self.prepared = PreparedLaunches()
        self.workspace: Workspace = make_workspace(self.sizes, num_ranks, device)
        self.stage = stage  # the heap's: its memory stays as it is for this slot, even if the heap grows for others
        self._device, self._order, self._stride = device, order, aligned(self.sizes.blob)
        self._buffer = torch.empty(self._stride * plans[0].world, dtype=torch.uint8, device=device)
        self.uploaded: UploadedPlan = upload(self.plan, device, self._buffer, self._stride)

    def load(self, plan: Plan) -> None:
        """Put ``plan`` in, by one copy on the current stream: launches after it run the new plan, and so do replays
        that are ordered after it.

        Raises PlanError where it needs another kernel or another number of ranks, InvalidField where its problem
        differs in what a captured launch holds (heads, dtype, scale), OutOfResources where it does not fit.
        """
        self._check(plan)
        sizes = MemorySizes.of(plan)
        if not sizes.fits(self.sizes):
            section, need, have = sizes.beyond(self.sizes)
            raise OutOfResources(f"{section} of the slot", need, have, "Reserve the slot with the largest plans")
        with self._order.turn():
            self.uploaded = upload(plan, self._device, self._buffer, self._stride)
        self.plan = plan

    def _check(self, plan: Plan) -> None:
        """Raise unless a launch that was captured with the plan that is in can run ``plan``, given the room."""
        check_supported(plan)
        if plan.world != self.plan.world or plan.spec != self.plan.spec:
            raise PlanError(
                f"the slot holds plans of {self.plan.world} ranks for kernel {self.plan.spec.name}; this one is for "
                f"{plan.world} ranks and {plan.spec.name}"
            )
        for name in _FIXED:
            value, fixed = getattr(plan.problem, name), getattr(self.plan.problem, name)
            if value != fixed:
                raise InvalidField(name, value, f"{fixed}, as when the slot was reserved")
