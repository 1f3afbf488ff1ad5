"""Launches that were checked and written before: the same plan, tensors and memory need neither again."""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.module import LoadedKernel
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.workspace import Workspace

#: Launches of one plan that are kept, on other tensors each.
LAUNCHES_A_PLAN = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedLaunch:
    """What a launch needs, but for the stream.

    Fields: ``num_ctas`` of the whole launch; ``params`` one element of ``KERNEL_PARAMS.dtype``; ``maps`` of
    ``TENSOR_MAPS.dtype`` where the kernel takes them; ``arguments`` made of both; the memory that both name:
    ``workspace`` and ``stage``.
    """

    kernel: LoadedKernel
    num_ctas: int
    arguments: ctypes.Array
    params: np.ndarray
    maps: np.ndarray | None
    workspace: Workspace
    stage: Tensor


class PreparedLaunches:
    """Prepared launches of a world or a slot, by plan for as long as it lives, and by tensors; those used last stay."""

    def __init__(self) -> None:
        self._plans: weakref.WeakKeyDictionary[Plan, OrderedDict[Hashable, PreparedLaunch]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, plan: Plan, key: Hashable) -> PreparedLaunch | None:
        """What was put there; None if nothing was, or not lately."""
        launches = self._plans.get(plan)
        found = None if launches is None else launches.get(key)
        if launches is not None and found is not None:
            launches.move_to_end(key)
        return found

    def clear(self) -> None:
        """Forget all, since the memory that they name goes."""
        self._plans.clear()

    def put(self, plan: Plan, key: Hashable, launch: PreparedLaunch) -> None:
        """Keep ``launch``."""
        launches = self._plans.setdefault(plan, OrderedDict())
        launches[key] = launch
        launches.move_to_end(key)
        if len(launches) > LAUNCHES_A_PLAN:
            launches.popitem(last=False)


def launch_key(tensors: Sequence[RankTensors]) -> Hashable:
    """Everything about tensors that checks and parameters follow from."""
    facts: list[Hashable] = []
    for local in tensors:
        for x in (local.q, local.k, local.v, local.out, local.lse, local.sinks):
            facts.append(None if x is None else (x.data_ptr(), x.shape, x.stride(), x.dtype, x.device, x.is_neg()))
    return tuple(facts)
