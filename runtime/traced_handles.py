"""Handles of worlds and plans that a compiled function meets while it is traced.

Loaded by torch.compile's tracing alone: the mark below loads all of torch._dynamo, which eager programs need not pay
for. A marked function is called once, and its number becomes a constant that is guarded by the identity of the object:
another plan compiles again.
"""

from __future__ import annotations

import torch

from liquidcp_runtime.handles import PLANS, WORLDS


@torch.compiler.assume_constant_result
def traced_world(world: object) -> int:
    """The handle of a world."""
    return WORLDS.handle(world)


@torch.compiler.assume_constant_result
def traced_plan(plan: object) -> int:
    """The handle of a plan."""
    return PLANS.handle(plan)
