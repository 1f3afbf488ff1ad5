"""Running plans: worlds, the interpreter, the simulator, and helpers that shard tensors.

Names are loaded on first use, so that importing the package is quick and needs no GPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liquidcp_runtime.cache import KernelCache as KernelCache
    from liquidcp_runtime.cpu_world import cpu as cpu
    from liquidcp_runtime.handles import handle_of as handle_of
    from liquidcp_runtime.kernel_faults import Faults as Faults
    from liquidcp_runtime.kernel_warmup import warmup as warmup
    from liquidcp_runtime.link_model import LinkModel as LinkModel
    from liquidcp_runtime.loopback_world import loopback as loopback
    from liquidcp_runtime.ops import attention as attention
    from liquidcp_runtime.profiles import PROFILES as PROFILES
    from liquidcp_runtime.profiles import CostModel as CostModel
    from liquidcp_runtime.rank_tensors import RankTensors as RankTensors
    from liquidcp_runtime.reference import reference_attention as reference_attention
    from liquidcp_runtime.scheduling import Schedule as Schedule
    from liquidcp_runtime.scheduling import schedule as schedule
    from liquidcp_runtime.scheduling import schedule_of as schedule_of
    from liquidcp_runtime.scheduling import simulate as simulate
    from liquidcp_runtime.sharding import loss_weights as loss_weights
    from liquidcp_runtime.sharding import position_ids as position_ids
    from liquidcp_runtime.sharding import shard_kv as shard_kv
    from liquidcp_runtime.sharding import shard_q as shard_q
    from liquidcp_runtime.sharding import shard_tokens as shard_tokens
    from liquidcp_runtime.sharding import unshard as unshard
    from liquidcp_runtime.sharding import unshard_lse as unshard_lse
    from liquidcp_runtime.solo_world import solo as solo
    from liquidcp_runtime.state import AttentionState as AttentionState
    from liquidcp_runtime.state import empty_state as empty_state
    from liquidcp_runtime.state import from_log2 as from_log2
    from liquidcp_runtime.state import merge as merge
    from liquidcp_runtime.state import merge_into as merge_into
    from liquidcp_runtime.timeline import Timeline as Timeline

#: public name -> module of this package
_HOME: dict[str, str] = {
    "KernelCache": "cache",
    "cpu": "cpu_world",
    "Faults": "kernel_faults",
    "LinkModel": "link_model",
    "warmup": "kernel_warmup",
    "loopback": "loopback_world",
    "attention": "ops",
    "handle_of": "handles",
    "PROFILES": "profiles",
    "CostModel": "profiles",
    "reference_attention": "reference",
    "Schedule": "scheduling",
    "schedule": "scheduling",
    "schedule_of": "scheduling",
    "simulate": "scheduling",
    "loss_weights": "sharding",
    "position_ids": "sharding",
    "shard_kv": "sharding",
    "shard_q": "sharding",
    "shard_tokens": "sharding",
    "unshard": "sharding",
    "unshard_lse": "sharding",
    "RankTensors": "rank_tensors",
    "solo": "solo_world",
    "AttentionState": "state",
    "empty_state": "state",
    "from_log2": "state",
    "merge": "state",
    "merge_into": "state",
    "Timeline": "timeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
