"""Which plans kernels run today; the CPU world runs them all."""

from __future__ import annotations

from weakref import WeakSet

import numpy as np

from liquidcp_compiler.errors import UnsupportedError
from liquidcp_compiler.ir.launch import MAX_RANKS
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.plan import Plan

_SUPPORTED: WeakSet[Plan] = WeakSet()


def check_supported(plan: Plan) -> None:
    """Raise UnsupportedError, naming the field, for a plan that kernels do not run yet."""
    if plan in _SUPPORTED:
        return
    hint = "The CPU world runs every plan"
    if plan.world > MAX_RANKS:
        raise UnsupportedError("ranks of one launch", plan.world, f"1 to {MAX_RANKS}", hint)
    spaces = np.unique(plan.tables["transfers"]["space"]).tolist()
    if set(spaces) - {Space.NONE, Space.KV}:
        raise UnsupportedError("transfers of", [Space(s).name.lower() for s in spaces], "KV tiles", hint)
    if (plan.tables["transfers"]["wait_signal"] >= 0).any():  # the peer has pulled the tile itself: it stages own ones
        raise UnsupportedError("transfers of KV tiles", "relayed", "pulled from the rank that owns them", hint)
    if (plan.tables["rows"]["target_space"] == Space.STATE).any() or len(plan.tables["reductions"]):
        raise UnsupportedError("rows that write", "partial states", "finished outputs", hint)
    if (plan.tables["kv_tiles"]["group"] > 1).any():
        raise UnsupportedError("KV tiles", "token-interleaved", "contiguous ones", hint)
    heads = plan.problem.num_heads_q
    if (plan.tables["q_tiles"]["num_heads"] != heads).any():
        raise UnsupportedError("heads of a query tile", "some", f"all {heads}", hint)
    _SUPPORTED.add(plan)
