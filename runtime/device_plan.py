"""A plan on a device: its blobs, the workspace of every rank, and the launch parameters that point to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import UnsupportedError
from liquidcp_compiler.ir.launch import ERROR_BLOCK, KERNEL_PARAMS, MAX_RANKS, NUM_TICKETS, PAGE_WORDS
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.plan import Plan


def check_supported(plan: Plan) -> None:
    """Raise UnsupportedError, naming the field, for a plan that kernels do not run yet (the CPU world does)."""
    hint = "The CPU world runs every plan"
    if plan.world > MAX_RANKS:
        raise UnsupportedError("ranks of one launch", plan.world, f"1 to {MAX_RANKS}", hint)
    spaces = np.unique(plan.tables["transfers"]["space"]).tolist()
    if set(spaces) - {Space.NONE, Space.KV}:
        raise UnsupportedError("transfers of", [Space(s).name.lower() for s in spaces], "KV tiles", hint)
    if (plan.tables["rows"]["target_space"] == Space.STATE).any() or len(plan.tables["reductions"]):
        raise UnsupportedError("rows that write", "partial states", "finished outputs", hint)
    if (plan.tables["kv_tiles"]["group"] > 1).any():
        raise UnsupportedError("KV tiles", "token-interleaved", "contiguous ones", hint)
    heads = plan.problem.num_heads_q
    if (plan.tables["q_tiles"]["num_heads"] != heads).any():
        raise UnsupportedError("heads of a query tile", "some", f"all {heads}", hint)


@dataclass(frozen=True, kw_only=True, eq=False)
class RankWorkspace:
    """Device memory of one rank that lives as long as the plan is in use.

    Fields: ``blob`` uint8, the packed plan; ``words`` int64, all protocol words, zero before the first launch and never
    cleared after; ``kv_k``, ``kv_v`` pulled tiles [tokens, num_heads_kv, head_dim]; ``state_out``, ``state_lse`` fp32
    running states, in the kernel's order.
    """

    blob: Tensor
    words: Tensor
    kv_k: Tensor
    kv_v: Tensor
    state_out: Tensor
    state_lse: Tensor
    page: Tensor
    stage: Tensor

    def poison(self) -> None:
        """Fill every buffer with NaN, so that a read of what nobody wrote is seen."""
        for buffer in (self.kv_k, self.kv_v, self.state_out, self.state_lse, self.stage):
            buffer.fill_(float("nan"))


@dataclass(frozen=True, kw_only=True, eq=False)
class DevicePlan:
    """The workspaces of all ranks in one launch.

    Fields: ``control`` int64 [3], epoch (from 1), abort word and exit count; ``error``, an ``ErrorBlock`` (pinned);
    ``params``, the launch parameters without tensors and grid.
    """

    ranks: tuple[RankWorkspace, ...]
    control: Tensor
    error: Tensor
    params: np.ndarray

    def error_block(self) -> np.ndarray:
        """The host's view of ``error``: one element of ``ERROR_BLOCK.dtype``. Valid after a synchronisation."""
        return self.error.numpy().view(ERROR_BLOCK.dtype)

    def launch_params(
        self,
        q: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        out: Sequence[Tensor],
        lse: Sequence[Tensor],
    ) -> np.ndarray:
        """A copy of ``params`` that points to the local tensors of every rank (all contiguous)."""
        params = self.params.copy()
        for name, tensors in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", lse)):
            for rank, tensor in enumerate(tensors):
                params["ranks"][name][0, rank] = tensor.data_ptr()
                if name != "lse":
                    params["ranks"][f"{name}_token_stride"][0, rank] = tensor.stride(0)
                    params["ranks"][f"{name}_head_stride"][0, rank] = tensor.stride(1)
        return params


def make_device_plan(plan: Plan, device: torch.device) -> DevicePlan:
    """Upload every rank's blob and allocate its workspace. Raises UnsupportedError (:func:`check_supported`)."""
    check_supported(plan)
    p = plan.problem
    units = int(plan.headers["units_per_row"][0])
    control = torch.zeros(3, dtype=torch.int64)
    control[0] = 1  # a word that was never written belongs to epoch 0
    control = control.to(device)
    error = torch.zeros(ERROR_BLOCK.size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    params = np.zeros(1, KERNEL_PARAMS.dtype)
    workspaces = []
    for rank in range(plan.world):
        workspace = _workspace(plan, rank, units, device, params["ranks"][0, rank : rank + 1])
        peer = params["peers"][0, rank : rank + 1]
        peer["page"] = workspace.page.data_ptr()
        for slot in range(2):
            peer["stage_k"][0, slot] = workspace.stage[0, slot].data_ptr()
            peer["stage_v"][0, slot] = workspace.stage[1, slot].data_ptr()
        workspaces.append(workspace)
    epoch = control.data_ptr()
    params["epoch"], params["abort"], params["exits"] = epoch, epoch + 8, epoch + 16
    params["error"] = error.data_ptr()
    params["world"] = plan.world
    params["num_heads_q"], params["num_heads_kv"] = p.num_heads_q, p.num_heads_kv
    params["qheads_per_kvhead"], params["softmax_scale"] = p.group_size, p.scale
    params["softcap"] = p.softcap or 0.0
    return DevicePlan(ranks=tuple(workspaces), control=control, error=error, params=params)


def _workspace(plan: Plan, rank: int, units: int, device: torch.device, params: np.ndarray) -> RankWorkspace:
    """One rank's memory; writes its addresses to ``params`` (one element of ``RankParams``)."""
    p, header = plan.problem, plan.header(rank)
    kv_shape = (int(header["num_pulled_kv_tokens"]), p.num_heads_kv, p.head_dim)
    slots = int(header["num_local_q_tiles"]) * p.num_heads_q
    nan = float("nan")
    counts = {
        "signals": len(plan.table("signals", rank)),
        "prefixes": len(plan.table("sequences", rank)),
        "arrivals": int(header["num_arrivals"]),
        "claims": len(plan.table("rows", rank)) * units,
        "merged": slots,
        "tickets": NUM_TICKETS,
    }
    blob = np.frombuffer(plan.blob(rank), np.uint8).copy()
    workspace = RankWorkspace(
        blob=torch.from_numpy(blob).to(device),
        words=torch.zeros(sum(counts.values()), dtype=torch.int64, device=device),
        kv_k=torch.full(kv_shape, nan, dtype=p.dtype.torch, device=device),
        kv_v=torch.full(kv_shape, nan, dtype=p.dtype.torch, device=device),
        state_out=torch.full((slots * plan.spec.block_q * p.head_dim,), nan, device=device),
        state_lse=torch.full((slots * plan.spec.block_q,), nan, device=device),
        page=torch.zeros(PAGE_WORDS, dtype=torch.int64, device=device),
        stage=torch.full((2, 2, int(header["num_local_kv_tokens"]), *kv_shape[1:]), nan, dtype=p.dtype.torch, device=device),
    )
    address = workspace.words.data_ptr()
    for name, count in counts.items():
        params[name] = address
        address += 8 * count
    params["plan"] = workspace.blob.data_ptr()
    params["kv_buffer_k"], params["kv_buffer_v"] = workspace.kv_k.data_ptr(), workspace.kv_v.data_ptr()
    params["state_out"], params["state_lse"] = workspace.state_out.data_ptr(), workspace.state_lse.data_ptr()
    return workspace
