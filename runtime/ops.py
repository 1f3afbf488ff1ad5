"""Attention as torch ops: ``torch.ops.liquidcp.forward`` and ``forward_out``, and :func:`attention` above them.

Registered through ``torch.library.Library``, since an op of ``torch.library.custom_op`` costs several times as much a
call. The ops do what ``world.run`` does, on the current stream, and read no tensor on the host themselves.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from liquidcp_compiler.errors import TensorError, UnsupportedError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.handles import PLANS, WORLDS


class World(Protocol):
    """What runs a plan: every world of this package, or an object with the same ``run``."""

    def run(
        self,
        plan: Plan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        sinks: Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(out, lse): out like q and contiguous, lse fp32 [heads, tokens]; those given, where they are."""
        ...


def attention(
    world: World | int,
    plan: Plan | int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What ``world.run(plan, q, k, v, ...)`` returns, as an op that torch.compile and torch.export see whole.

    Args:
        world, plan: the objects, or their :func:`liquidcp_runtime.handle_of`. A compiled function compiles again for
            another plan object, and not for another handle. The caller keeps both alive.
        q: [tokens, heads, head_dim], or [B, L, heads, head_dim] where the world takes it; k, v: alike.
        sinks: [num_heads_q], exactly where the problem has sinks.
        out, lse: tensors that receive the result; one that is not given is made.

    Returns: out like q (dtype too), contiguous unless given; lse fp32 [heads, tokens], natural log.

    Raises what ``world.run`` raises, TensorError first; HandleError for a handle of something gone; UnsupportedError
    where a gradient is wanted of any tensor, since there is no backward yet.
    """
    world_handle, plan_handle = _handles(world, plan)
    if out is None and lse is None:
        return _FORWARD(q, k, v, sinks, world_handle, plan_handle)
    made_out, made_lse = _empty_results(q) if out is None or lse is None else (out, lse)
    out, lse = made_out if out is None else out, made_lse if lse is None else lse
    _FORWARD_OUT(q, k, v, sinks, world_handle, plan_handle, out, lse)
    return out, lse


def _handles(world: object, plan: object) -> tuple[int, int]:
    world_handle, plan_handle = WORLDS.handle, PLANS.handle
    if torch.compiler.is_compiling():
        from liquidcp_runtime.traced_handles import traced_plan as plan_handle
        from liquidcp_runtime.traced_handles import traced_world as world_handle
    return (
        world if isinstance(world, int) else world_handle(world),
        plan if isinstance(plan, int) else plan_handle(plan),
    )


def _empty_results(q: Tensor) -> tuple[Tensor, Tensor]:
    """Results of the shapes and dtypes that a run on q gives."""
    if q.dim() not in (3, 4):
        raise TensorError("q", "shape", tuple(q.shape), "[tokens, heads, head_dim] or [B, L, heads, head_dim]")
    *tokens, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, math.prod(tokens)), dtype=torch.float32)


def _run(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, world: int, plan: int) -> tuple[Tensor, Tensor]:
    return WORLDS.get(world).run(PLANS.get(plan), q, k, v, sinks=sinks)


def _run_out(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, world: int, plan: int, out: Tensor, lse: Tensor
) -> None:
    WORLDS.get(world).run(PLANS.get(plan), q, k, v, sinks=sinks, out=out, lse=lse)
    torch.autograd.graph.increment_version((out, lse))  # a kernel writes them without torch's knowledge


def _fake(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, world: int, plan: int) -> tuple[Tensor, Tensor]:
    _check_alike(q, k=k, v=v, sinks=sinks)
    return _empty_results(q)


def _fake_out(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, world: int, plan: int, out: Tensor, lse: Tensor
) -> None:
    _check_alike(q, k=k, v=v, sinks=sinks, out=out, lse=lse)


def _check_alike(q: Tensor, **others: Tensor | None) -> None:
    """What can be told without a plan: one device. torch comes here in eager mode too when any tensor is a meta one."""
    for name, x in others.items():
        if x is not None and x.device != q.device:
            raise TensorError(name, "device", x.device, q.device, "all tensors lie on one device")


def _refuse_gradients(*args: Any) -> None:
    """Raise UnsupportedError where a gradient of any tensor is wanted, in reverse or forward mode."""
    hint = "Call under torch.no_grad(), or pass tensors that need no gradient, such as q.detach()"
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
        raise UnsupportedError("requires_grad", True, "forward without gradients", hint)
    if forward_ad._current_level < 0:
        return
    if any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in args):
        raise UnsupportedError("tangent", "a dual tensor", "forward without tangents", hint)


def _autograd(keyset: Any, *args: Any) -> tuple[Tensor, Tensor]:
    _refuse_gradients(*args)
    return _FORWARD.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def _autograd_out(keyset: Any, *args: Any) -> None:
    _refuse_gradients(*args)
    _FORWARD_OUT.redispatch(keyset & torch._C._after_autograd_keyset, *args)


_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? sinks, SymInt world, SymInt plan"
_LIBRARY = torch.library.Library("liquidcp", "DEF")


def _define(name: str, schema: str, run: Any, fake: Any, autograd: Any) -> Any:
    # Exact strides: what a compiler puts before the op must not give it other strides than eager mode would.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    _LIBRARY.define(f"{name}{schema}", tags=tags)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"liquidcp::{name}", fake, lib=_LIBRARY)
    _LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    return getattr(torch.ops.liquidcp, name).default


_FORWARD = _define("forward", f"({_INPUTS}) -> (Tensor out, Tensor lse)", _run, _fake, _autograd)
_FORWARD_OUT = _define(
    "forward_out", f"({_INPUTS}, Tensor(a!) out, Tensor(b!) lse) -> ()", _run_out, _fake_out, _autograd_out
)
