"""All ranks of a plan on one GPU: symmetric buffers in one memory, SMs divided, ranks that really signal each other.

One cooperative launch holds every rank, so that all CTAs run at the same time and no rank can wait for one that has not
started. For tests of the protocol and for examples; its speed says nothing of several GPUs.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import InvalidField, OutOfResources, PlanError, TensorError
from liquidcp_compiler.ir.launch import MAX_RANKS
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.cache import Emit, KernelCache
from liquidcp_runtime.device_plan import DevicePlan, make_device_plan
from liquidcp_runtime.launch_error import launch_error
from liquidcp_runtime.module import LoadedKernel
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from liquidcp_runtime.tensor_check import check_result

DEFAULT_WAIT_BUDGET = 5.0


class LoopbackWorld:
    """``world_size`` virtual ranks on one device. Make one with :func:`loopback`."""

    def __init__(
        self, world_size: int, device: torch.device, num_comm_ctas: int | None, wait_budget: float, emit: Emit | None
    ) -> None:
        self.world_size, self.device = world_size, device
        self.num_comm_ctas, self.wait_budget = num_comm_ctas, wait_budget
        self._kernels = KernelCache(emit)
        self._plans: WeakKeyDictionary[Plan, DevicePlan] = WeakKeyDictionary()

    @torch.no_grad()
    def run(
        self, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of the whole batch; waits until it is done.

        Args:
            q: [total_q, num_heads_q, head_dim] of the problem's dtype on this world's device; k, v: [total_kv,
                num_heads_kv, head_dim]. Sharded by the plan's tables on the way in, gathered on the way out.
            out, lse: where to write, if given: like q; fp32 [num_heads_q, total_q], natural log.

        Raises TensorError, PlanError, UnsupportedError, CodegenError, NvrtcError, DriverError, OutOfResources;
        DeviceWaitError if a wait in the kernel ran out of ``wait_budget``.
        """
        self._check(plan, q, k, v)
        check_result("out", out, tuple(q.shape), q.dtype)
        check_result("lse", lse, (plan.problem.num_heads_q, plan.problem.total_q), torch.float32)
        ranks = range(self.world_size)
        local_q = [shard_q(plan, r, q).contiguous() for r in ranks]
        local_k = [shard_kv(plan, r, k).contiguous() for r in ranks]
        local_v = [shard_kv(plan, r, v).contiguous() for r in ranks]
        local_out = [torch.full_like(x, float("nan")) for x in local_q]
        local_lse = [torch.full(x.shape[1::-1], float("nan"), dtype=torch.float32, device=x.device) for x in local_q]
        if plan.problem.total_q:
            self._launch(plan, local_q, local_k, local_v, local_out, local_lse)
        return unshard(plan, local_out, out), unshard_lse(plan, local_lse, lse)

    def device_plan(self, plan: Plan) -> DevicePlan:
        """The plan's blobs and workspaces on the device, made on first use and kept as long as the plan lives."""
        if plan not in self._plans:
            self._plans[plan] = make_device_plan(plan, self.device)
        return self._plans[plan]

    def kernel(self, plan: Plan) -> LoadedKernel:
        """The kernel that runs the plan, compiled on first use."""
        return self._kernels.get(plan.spec, self.device)

    def grid(self, plan: Plan) -> tuple[int, int]:
        """(CTAs a rank, comm CTAs of them): an equal, even share of what can run at once; comm at most half of it."""
        co_resident = self.kernel(plan).co_resident_ctas()
        per_rank = co_resident // self.world_size
        if per_rank < 1:
            raise OutOfResources("CTAs at once", self.world_size, co_resident, "Take fewer ranks")
        per_rank -= per_rank % 2 if per_rank > 1 else 0
        wanted = max(1, per_rank // 8) if self.num_comm_ctas is None else self.num_comm_ctas
        return per_rank, min(wanted, max(1, per_rank // 2))

    def _launch(self, plan: Plan, q: list, k: list, v: list, out: list, lse: list) -> None:
        device_plan = self.device_plan(plan)
        for workspace in device_plan.ranks:
            workspace.poison()
        params = device_plan.launch_params(q, k, v, out, lse)
        params["ctas_per_rank"], params["num_comm_ctas"] = self.grid(plan)
        params["budget_ns"] = params["entry_budget_ns"] = int(self.wait_budget * 1e9)
        device_plan.error.zero_()
        self._run_kernel(plan, params)
        error = launch_error(plan, device_plan.error_block())
        if error is not None:
            raise error

    def _run_kernel(self, plan: Plan, params: np.ndarray) -> None:
        """Run the plan's kernel on ``ctas_per_rank`` CTAs of every rank, and wait for its end."""
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            num_ctas = int(params["ctas_per_rank"][0]) * self.world_size
            self.kernel(plan).launch_cooperative(num_ctas, params, stream.cuda_stream)
            stream.synchronize()

    def _check(self, plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> None:
        if plan.world != self.world_size:
            raise PlanError(f"the plan is for {plan.world} ranks, this world has {self.world_size}")
        p = plan.problem
        shapes = {
            "q": (p.total_q, p.num_heads_q, p.head_dim),
            "k": (p.total_kv, p.num_heads_kv, p.head_dim),
            "v": (p.total_kv, p.num_heads_kv, p.head_dim),
        }
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tuple(tensor.shape) != shapes[name]:
                raise TensorError(name, "shape", tuple(tensor.shape), shapes[name])
            if tensor.dtype != p.dtype.torch:
                raise TensorError(name, "dtype", tensor.dtype, p.dtype.torch)
            if tensor.device != self.device:
                raise TensorError(name, "device", tensor.device, self.device)


def loopback(
    world_size: int,
    *,
    device: torch.device | str | int | None = None,
    num_comm_ctas: int | None = None,
    wait_budget: float = DEFAULT_WAIT_BUDGET,
    emit: Emit | None = None,
) -> LoopbackWorld:
    """A world of ``world_size`` ranks on one GPU.

    Args:
        world_size: 1 to 8.
        device: a CUDA device; None is torch's current one.
        num_comm_ctas: CTAs of each rank that begin by pulling; at least 1, at most half of a rank's. None: an eighth.
        wait_budget: seconds that a wait inside the kernel may last.
        emit: what generates kernels; None is LiquidCP's own generator.

    Raises InvalidField.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or not 1 <= world_size <= MAX_RANKS:
        raise InvalidField("world_size", world_size, f"a whole number of ranks, 1 to {MAX_RANKS}")
    if num_comm_ctas is not None and (not isinstance(num_comm_ctas, int) or num_comm_ctas < 1):
        raise InvalidField("num_comm_ctas", num_comm_ctas, "None or a whole number, at least 1")
    if not 0 < wait_budget < 1e9:
        raise InvalidField("wait_budget", wait_budget, "seconds, more than 0")
    if not torch.cuda.is_available():
        raise InvalidField("device", device, "a CUDA device; torch sees none", "The CPU world needs no GPU")
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        raise InvalidField("device", str(chosen), "a CUDA device")
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    return LoopbackWorld(world_size, torch.device("cuda", index), num_comm_ctas, wait_budget, emit)
