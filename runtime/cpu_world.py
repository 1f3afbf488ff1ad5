"""The world without a GPU: all ranks of a plan in this process, on CPU tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from liquidcp_compiler.errors import InvalidField, PlanError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem_fields import whole_number
from liquidcp_runtime.interpreter import interpret
from liquidcp_runtime.plan_check import check_is_plan, check_plan
from liquidcp_runtime.scheduling import schedule
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from liquidcp_runtime.tensor_check import check_results, check_sinks, packed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from liquidcp_runtime.process_world import ProcessWorld


def cpu(
    world_size: int | None = None, group: ProcessGroup | None = None, timeout_s: float | None = None
) -> CpuWorld | ProcessWorld:
    """A world on CPU tensors.

    Without ``group``: all ranks in this process, over global tensors; ``world_size`` None takes plans of any size.
    With ``group`` (a gloo group of torch.distributed): this process is one rank, over its local tensors; ``timeout_s``
    is how long it waits for a peer's tile.

    Raises InvalidField for a size below 1, and for options that do not go together.
    """
    if group is not None:
        from liquidcp_runtime.process_world import DEFAULT_TIMEOUT_S, ProcessWorld

        if world_size is not None and world_size != group.size():
            raise InvalidField("world_size", world_size, f"{group.size()}, the size of the group, or None")
        return ProcessWorld(group, DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)
    if timeout_s is not None:
        raise InvalidField("timeout_s", timeout_s, "None without a process group: nothing waits for another process")
    return CpuWorld(None if world_size is None else whole_number("world_size", world_size, 1))


class CpuWorld:
    """All ranks of a plan in one process. Keeps nothing between runs and can be used for any number of plans."""

    def __init__(self, world_size: int | None) -> None:
        self.world_size = world_size

    def run(
        self,
        plan: Plan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        sinks: Tensor | None = None,
        seed: int = 0,
        profile: str = "random",
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of the whole problem, through every transfer, task and reduction of the plan.

        Args:
            q: [total_q, num_heads_q, head_dim]; k, v: [total_kv, num_heads_kv, head_dim], in the problem's dtype, of
                any strides; or [B, L, heads, head_dim] where all sequences have length L.
            sinks: [num_heads_q], exactly where the problem has sinks.
            seed, profile: which interleaving is sampled (profiles: ``liquidcp_runtime.profiles.PROFILES``).
            out, lse: tensors that receive the result, of the shapes returned.

        Returns: out like q (dtype too), lse fp32 [num_heads_q, total_q], natural log, sinks included.

        Raises TensorError, PlanError (another world size), ScheduleError or DeadlockError (a damaged plan).
        """
        check_is_plan(plan)
        if self.world_size not in (None, plan.world):
            raise PlanError(f"the plan is for {plan.world} ranks, this world has {self.world_size}; plan again")
        problem = plan.problem
        flat_q, flat_k, flat_v = packed(problem, q, k, v)
        check_sinks(problem, sinks)
        check_results(q, k, v, sinks, out, lse, (problem.num_heads_q, problem.total_q))
        if not problem.total_q:
            out = torch.empty(q.shape, dtype=q.dtype) if out is None else out
            return out, torch.empty(problem.num_heads_q, 0, dtype=torch.float32) if lse is None else lse
        check_plan(plan)
        ranks = range(plan.world)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # autocast would round fp32 partials to bf16
            results = interpret(
                plan,
                schedule(plan, profile, seed),
                [shard_q(plan, r, flat_q) for r in ranks],
                [shard_kv(plan, r, flat_k) for r in ranks],
                [shard_kv(plan, r, flat_v) for r in ranks],
                sinks,
            )
            flat_out = unshard(plan, [o for o, _ in results])
            lse = unshard_lse(plan, [x for _, x in results], out=lse)
            if out is None:
                return flat_out.view(q.shape), lse
            return out.copy_(flat_out.view(q.shape)), lse
