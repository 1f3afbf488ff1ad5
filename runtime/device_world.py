"""Launching plans on one device: what the worlds with a GPU have in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import GraphCaptureError, InvalidField, LiquidCPError, OutOfResources, PlanError
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.launch import KERNEL_PARAMS, MAX_RANKS, TRACE_RECORD
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem_fields import whole_number
from liquidcp_runtime.cache import Emit, KernelCache, default_emit
from liquidcp_runtime.control import Control
from liquidcp_runtime.device_options import DeviceOptions
from liquidcp_runtime.launch_error import launch_error
from liquidcp_runtime.memory_sizes import MemorySizes
from liquidcp_runtime.module import LoadedKernel, kernel_arguments
from liquidcp_runtime.plan_check import check_is_plan
from liquidcp_runtime.plan_slot import PlanSlot
from liquidcp_runtime.plan_support import check_supported
from liquidcp_runtime.plan_upload import PlanUploads, UploadedPlan
from liquidcp_runtime.prepared_launch import PreparedLaunch, PreparedLaunches, launch_key
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.stream_order import StreamOrder
from liquidcp_runtime.symmetric_heap import SymmetricHeap, write_stage
from liquidcp_runtime.tensor_maps import TensorMapCache
from liquidcp_runtime.workspace import Workspace, make_workspace

if TYPE_CHECKING:
    from liquidcp_runtime.timeline import Timeline


_CAPTURE_HINT = (
    "a plan cannot be captured into a CUDA graph: its memory serves other plans later. Capture a slot: "
    "slot = world.reserve(plan), in the place of the plan in world.run_local (loopback) or run (solo)"
)


class DeviceWorld:
    """Ranks ``first_rank`` to ``first_rank + num_ranks`` of ``world_size``, all in launches on one device."""

    def __init__(
        self,
        world_size: int,
        device: torch.device,
        options: DeviceOptions,
        *,
        first_rank: int = 0,
        num_ranks: int | None = None,
        emit: Emit | None = None,
        order: StreamOrder | None = None,
    ) -> None:
        self.world_size, self.device, self.options = world_size, device, options
        self.first_rank, self.num_ranks = first_rank, world_size if num_ranks is None else num_ranks
        self.kernels = KernelCache(self._emit(emit), bundles=options.bundles)
        self._order = StreamOrder(device) if order is None else order
        with self._order.turn():
            self.control = Control(self.num_ranks, device)
            self.heap = SymmetricHeap(self.num_ranks, world_size, device, options.heap_bytes)
            self._workspace = make_workspace(MemorySizes(), self.num_ranks, device)
            self._faults = None if options.faults is None else _to_device(options.faults.struct(), device)
        self._uploads = PlanUploads(device)
        self._maps = TensorMapCache()
        self._prepared = PreparedLaunches()
        self._seen: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()
        self._slots: weakref.WeakSet[PlanSlot] = weakref.WeakSet()
        self._failure: LiquidCPError | None = None
        self._finish_before_going(self)
        self._trace: tuple[Tensor, Tensor] | None = None
        self._traced: int | None = None  # fingerprint of what the last launch ran; None: whatever a slot held
        self._grid: dict[KernelSpec, tuple[int, int]] = {}

    @property
    def mirror(self) -> bool:
        """Do peers exist only as images of the one rank that is launched?"""
        return self.num_ranks < self.world_size

    def kernel(self, spec: KernelSpec) -> LoadedKernel:
        """The kernel for a specification, compiled and loaded on first use."""
        return self.kernels.get(spec if self.options.clusters else replace(spec, head_pairs=False), self.device)

    def warmup(self, plans: Plan | Sequence[Plan]) -> None:
        """Compile and load the kernels of ``plans``, copy them to the device and make room for the largest.

        After it, a launch with one of them allocates nothing.
        """
        for plan in [plans] if isinstance(plans, Plan) else plans:
            self._check_plan(plan)
            self.kernel(plan.spec)
            with self._order.turn():
                self._uploads.get(plan)
                self._room(MemorySizes.of(plan))

    def reserve(self, plans: Plan | Sequence[Plan]) -> PlanSlot:
        """A slot for CUDA graphs that takes each of ``plans``, with the first one in it, and its kernel loaded.

        Keep the slot and this world for as long as graphs that have captured it: they hold its addresses, not it.
        Raises what ``PlanSlot.load`` raises for plans that no slot can hold in turn.
        """
        every = [plans] if isinstance(plans, Plan) else list(plans)
        if not every:
            raise InvalidField("plans", plans, "at least one plan")
        for plan in every:
            self._check_plan(plan)
        self.kernel(every[0].spec)
        with self._order.turn():
            self._room(MemorySizes(stage=max(MemorySizes.of(p).stage for p in every)))
            slot = PlanSlot(every, self.num_ranks, self.heap.stage, self.device, self._order)
        self._finish_before_going(slot)
        self._slots.add(slot)
        return slot

    def grid(self, spec: KernelSpec) -> tuple[int, int]:
        """(CTAs a rank, comm CTAs of them): an equal, even share of what can run at once; comm at most half of it.

        Raises OutOfResources where the CTAs that were asked for cannot all run at once: some would wait for ever for
        others that never start.
        """
        if spec not in self._grid:
            margin = min(self.options.sm_margin, self.kernel(spec).num_sms - 1)
            with torch.cuda.device(self.device):
                most = self.kernel(spec).co_resident_ctas(margin) // self.num_ranks
            self._grid[spec] = self._share(most)
        return self._grid[spec]

    def _share(self, most: int) -> tuple[int, int]:
        o = self.options
        wanted = max(most - most % 2, 1) if o.ctas_per_rank is None else o.ctas_per_rank
        if most < wanted:
            hint = "Take fewer ranks or fewer CTAs; all must run at the same time"
            raise OutOfResources("CTAs of a rank at once", wanted, most, hint)
        comm = max(1, wanted // 8) if o.num_comm_ctas is None else o.num_comm_ctas
        return wanted, min(comm, max(1, wanted // 2))

    def launch(
        self,
        plan: Plan | PlanSlot,
        tensors: Sequence[RankTensors],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Put one launch on the current stream; ``tensors``: of the ranks in it, in order. Does not wait.

        ``check`` raises for tensors that the plan cannot run on; it is asked once for the same ones.

        Raises what an earlier launch ended with, until :meth:`recover`; GraphCaptureError for a plan while the stream
        is being captured.
        """
        self.raise_failure()
        held = plan.plan if isinstance(plan, PlanSlot) else plan
        prepared = plan.prepared if isinstance(plan, PlanSlot) else self._prepared
        key = launch_key(tensors)
        known = prepared.get(held, key)
        if known is None:
            self._check_launch(plan, held)
            if check is not None:
                check()
            self.kernel(held.spec)  # compiled outside of the turn, in which other threads would wait
        with self._order.turn() as stream:
            if self._order.in_capture and not isinstance(plan, PlanSlot):
                raise GraphCaptureError(_CAPTURE_HINT)
            if known is None:
                known = self._prepare(plan, held, tensors)
                if not self.options.trace:  # whose buffer may grow
                    prepared.put(held, key, known)
            if self.options.poison:
                known.workspace.poison()
                known.stage[self.first_rank : self.first_rank + self.num_ranks].fill_(0xFF)
            self._launch_kernel(known, stream)
            self._traced = None if isinstance(plan, PlanSlot) else held.fingerprint

    def _check_launch(self, plan: Plan | PlanSlot, held: Plan) -> None:
        self._check_plan(held)
        if isinstance(plan, PlanSlot) and plan not in self._slots:
            raise PlanError("the slot was reserved by another world; reserve one with this world's reserve()")

    def _prepare(self, plan: Plan | PlanSlot, held: Plan, tensors: Sequence[RankTensors]) -> PreparedLaunch:
        kernel = self.kernel(held.spec)
        uploaded, workspace, stage = self._memory(plan)
        self._seen[held.fingerprint] = held
        params = self._params(held, uploaded, workspace, stage)
        for index, local in enumerate(tensors):
            local.write(params["ranks"][0, index : index + 1])
        boxes = kernel.boxes
        maps = None if boxes is None else self._maps.of_launch(boxes, tensors, workspace, self.first_rank)
        return PreparedLaunch(
            kernel=kernel,
            num_ctas=int(params["ctas_per_rank"][0]) * self.num_ranks,
            arguments=kernel_arguments(params, maps),
            params=params,
            maps=maps,
            workspace=workspace,
            stage=stage,
        )

    def wait(self) -> None:
        """Until everything on the device is done. Raises what a launch ended with."""
        self._order.wait()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what a launch has ended with, if the host knows of one already; nothing runs until :meth:`recover`."""
        block = self.control.error_block()
        if self._failure is None and int(block["code"][0]):
            self._failure = launch_error(self._plan_of(int(block["fingerprint"][0])), block)
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it would keep all frames, and their tensors, that it saw

    def recover(self) -> None:
        """Wait for the device, and make the world usable again after a launch that was given up."""
        self._order.wait()
        with self._order.turn():
            self.heap.recover(self.control.recover())
        self._failure = None

    def timeline(self, plan: Plan) -> Timeline:
        """Records of the last launch, which ran ``plan``.

        Raises InvalidField for a world without ``trace`` and before its first launch, PlanError for another plan.
        """
        from liquidcp_runtime.timeline import Timeline

        if self._trace is None:
            raise InvalidField("trace", self.options.trace, "True for a timeline, and a launch")
        if self._traced not in (None, plan.fingerprint):
            raise PlanError("the last launch ran another plan; take its timeline, or run this one first")
        self.wait()
        per_rank = self.grid(plan.spec)[0]
        records, counts = (x.cpu().numpy() for x in self._trace)
        used = per_rank * self.num_ranks
        return Timeline.from_records(
            plan,
            records.view(TRACE_RECORD.dtype)[:used],
            counts[:used],
            ctas_per_rank=per_rank,
            first_rank=self.first_rank,
        )

    def _emit(self, emit: Emit | None) -> Emit | None:
        o = self.options
        asked: dict[str, bool | str] = {name: True for name in ("faults", "trace") if getattr(o, name)}
        if o.path is not None:
            asked["path"] = o.path
        return partial(default_emit() if emit is None else emit, **asked) if asked else emit

    def _finish_before_going(self, thing: DeviceWorld | PlanSlot) -> None:
        """Launches end before memory of ``thing`` goes: torch would give it to others, who know nothing of them."""
        weakref.finalize(thing, self._order.finish).atexit = False

    def _check_plan(self, plan: Plan) -> None:
        check_is_plan(plan)
        if plan.world != self.world_size:
            raise PlanError(f"the plan is for {plan.world} ranks, this world has {self.world_size}")
        check_supported(plan)

    def _plan_of(self, fingerprint: int) -> Plan | None:
        """The plan that a launch ran; None if it is gone."""
        held = {slot.plan.fingerprint: slot.plan for slot in self._slots}
        return held.get(fingerprint) or self._seen.get(fingerprint)

    def _memory(self, plan: Plan | PlanSlot) -> tuple[UploadedPlan, Workspace, Tensor]:
        """Where the packed plan is, where it works, and the staging slots of all ranks."""
        if isinstance(plan, PlanSlot):
            return plan.uploaded, plan.workspace, plan.stage
        return self._uploads.get(plan), self._room(MemorySizes.of(plan)), self.heap.stage

    def _room(self, sizes: MemorySizes) -> Workspace:
        """The workspace, it and the heap grown where ``sizes`` do not fit: then the device is awaited, which may use
        the old ones."""
        working = replace(sizes, blob=0, stage=0)
        if not working.fits(self._workspace.sizes):
            self._order.wait()
            both = MemorySizes.largest((working, self._workspace.sizes))
            self._workspace = make_workspace(both, self.num_ranks, self.device)
            self._prepared.clear()
        if not self.heap.fits(sizes.stage):
            self._order.wait()
            self.heap.grow(sizes.stage)
            self._prepared.clear()
        return self._workspace

    def _params(self, plan: Plan, uploaded: UploadedPlan, workspace: Workspace, stage: Tensor) -> np.ndarray:
        """Launch parameters without tensors: one element of ``KERNEL_PARAMS.dtype``."""
        p, o = plan.problem, self.options
        params = np.zeros(1, KERNEL_PARAMS.dtype)
        for index in range(self.num_ranks):
            rank = params["ranks"][0, index : index + 1]
            workspace.write_rank(rank, index)
            rank["plan"] = uploaded.address(self.first_rank + index)
        for peer in range(self.world_size):
            shown = params["peers"][0, peer : peer + 1]
            shown["page"] = self.heap.pages[0 if self.mirror else peer].data_ptr()
            write_stage(shown, stage[peer])
        self.control.write(params)
        params["budget_ns"], params["entry_budget_ns"] = int(o.wait_budget * 1e9), int(o.entry_budget * 1e9)
        params["world"], params["first_rank"], params["mirror"] = self.world_size, self.first_rank, self.mirror
        params["ctas_per_rank"], params["num_comm_ctas"] = self.grid(plan.spec)
        params["num_heads_q"], params["num_heads_kv"] = p.num_heads_q, p.num_heads_kv
        params["qheads_per_kvhead"], params["softmax_scale"] = p.group_size, p.scale
        params["softcap"] = p.softcap or 0.0
        if o.link is not None:
            params["link_bytes_per_ns"], params["link_latency_ns"] = o.link.bytes_per_s * 1e-9, o.link.latency_s * 1e9
        if self._faults is not None:
            params["faults"] = self._faults.data_ptr()
        if o.trace:
            self._write_trace(params)
        return params

    def _write_trace(self, params: np.ndarray) -> None:
        num_ctas, capacity = int(params["ctas_per_rank"][0]) * self.num_ranks, self.options.trace_capacity
        if self._trace is None or len(self._trace[1]) < num_ctas:
            self._order.wait()  # for launches that write the old one
            records = torch.zeros(num_ctas, capacity * TRACE_RECORD.size, dtype=torch.uint8, device=self.device)
            self._trace = records, torch.zeros(num_ctas, dtype=torch.int32, device=self.device)
        params["trace"], params["trace_counts"] = self._trace[0].data_ptr(), self._trace[1].data_ptr()
        params["trace_capacity"] = capacity

    def _launch_kernel(self, launch: PreparedLaunch, stream: int) -> None:
        if torch.cuda.current_device() == self.device.index:
            launch.kernel.launch_cooperative(launch.num_ctas, launch.arguments, stream)
            return
        with torch.cuda.device(self.device):
            launch.kernel.launch_cooperative(launch.num_ctas, launch.arguments, stream)


def cuda_device(device: torch.device | str | int | None) -> torch.device:
    """A CUDA device with its index; None is torch's current one. Raises InvalidField."""
    if not torch.cuda.is_available():
        raise InvalidField("device", device, "a CUDA device; torch sees none", "The CPU world needs no GPU")
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda" or (chosen.index or 0) >= torch.cuda.device_count():
        raise InvalidField("device", str(chosen), f"a CUDA device, cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)


def check_world_size(world_size: object) -> int:
    """Raises InvalidField for a number of ranks that one launch's tables cannot hold."""
    return whole_number("world_size", world_size, 1, MAX_RANKS)


def _to_device(block: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(block.view(np.uint8).copy()).to(device)
