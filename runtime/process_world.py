"""One process a rank over torch.distributed (gloo): tiles and states really travel, in messages of their own."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from liquidcp_compiler.errors import (
    DeadlockError,
    InvalidField,
    LiquidCPError,
    PlanError,
    PlanMismatchError,
    ScheduleError,
)
from liquidcp_compiler.ir.layout import LAYOUT_HASH, Formation, Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_core import claim_end
from liquidcp_runtime.interpreter import check_source
from liquidcp_runtime.plan_check import check_plan
from liquidcp_runtime.plan_view import rank_view
from liquidcp_runtime.rank_buffers import NEVER, RankBuffers
from liquidcp_runtime.sharding import shard_map
from liquidcp_runtime.tensor_check import CPU, check_local, check_results, check_sinks

DEFAULT_TIMEOUT_S = 60.0
_GREETING_BYTES = 1024


class ProcessWorld:
    """This process is one rank of ``group``. All ranks call :meth:`run` together; a rank without tokens too."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if not timeout_s > 0:
            raise InvalidField("timeout_s", timeout_s, "a positive number of seconds")
        backend = dist.get_backend(group)
        if backend != "gloo":
            raise InvalidField("group", backend, "a gloo group", "CPU tensors travel over gloo")
        self.group, self.timeout_s = group, timeout_s
        self.rank, self.world_size = group.rank(), group.size()

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
        """This rank's part of the problem.

        Args:
            q: [local tokens, local heads, head_dim], k, v: [local KV tokens, num_heads_kv, head_dim], in the order of
                ``sharding.shard_q`` and ``shard_kv``, in the problem's dtype.
            sinks: [num_heads_q] (all heads), exactly where the problem has sinks.
            out, lse: tensors that receive the result, of the shapes returned.

        Returns: out [local tokens, local heads, head_dim], lse fp32 [local heads, local tokens].

        Raises PlanMismatchError on every rank, before anything starts, when ranks hold different plans; TensorError on
        the rank with a wrong tensor and PlanError on the others; DeadlockError when a peer's tile does not come in
        time; ScheduleError for a damaged plan.
        """
        error: LiquidCPError | None = None
        try:
            self._check(plan, q, k, v, sinks, out, lse)
        except LiquidCPError as caught:
            error = caught
        self._agree(plan, error)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # autocast would round fp32 partials to bf16
            buffers = RankBuffers(plan, self.rank, q, k, v, None if sinks is None else sinks.float(), set())
            result_out, result_lse = _RankRun(plan, buffers, self.group, self.timeout_s).run()
            return (
                result_out if out is None else out.copy_(result_out),
                result_lse if lse is None else lse.copy_(result_lse),
            )

    def _check(self, plan: Plan, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, out, lse) -> None:
        if plan.world != self.world_size:
            raise PlanError(f"the plan is for {plan.world} ranks, this world has {self.world_size}; plan again")
        check_plan(plan)
        problem, places = plan.problem, shard_map(plan, self.rank)
        heads, tokens = places.heads.stop - places.heads.start, len(places.q_index)
        dtype = problem.dtype.torch
        check_local("q", q, (tokens, heads, problem.head_dim), dtype)
        for name, x in (("k", k), ("v", v)):
            check_local(name, x, (len(places.kv_index), problem.num_heads_kv, problem.head_dim), dtype)
        check_sinks(problem, sinks)
        check_results(q, k, v, sinks, out, lse, (heads, tokens))

    def _agree(self, plan: Plan, error: LiquidCPError | None) -> None:
        """Exchange fingerprints and failed checks; raise on every rank unless all may start."""
        mine = torch.tensor(
            [_signed(plan.fingerprint), _signed(LAYOUT_HASH), plan.world, int(error is not None)], device=CPU
        )
        text = (str(error) if error else _summary(plan)).encode()[:_GREETING_BYTES]
        greeting = torch.zeros(_GREETING_BYTES, dtype=torch.uint8, device=CPU)
        greeting[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        numbers = [torch.zeros_like(mine) for _ in range(self.world_size)]
        texts = [torch.zeros_like(greeting) for _ in range(self.world_size)]
        for gathered, own in ((numbers, mine), (texts, greeting)):
            try:
                dist.all_gather(gathered, own, group=self.group)
            except RuntimeError as failure:  # a peer died, or did not call run() within the group's own timeout
                what = f"the greetings of all ranks ({failure})"
                raise DeadlockError(self.rank, "entry", what, self.world_size, 1) from failure
        described = [bytes(t.tolist()).rstrip(b"\0").decode(errors="replace") for t in texts]
        for rank, other in enumerate(numbers):
            if not torch.equal(other[:3], numbers[0][:3]):
                raise PlanMismatchError(
                    f"ranks hold different plans. rank 0: {_identity(numbers[0])}, {described[0]}; "
                    f"rank {rank}: {_identity(other)}, {described[rank]}. Plan the same problem with the same options "
                    "on every rank"
                )
        if error is not None:
            raise error
        for rank, other in enumerate(numbers):
            if other[3]:
                raise PlanError(f"rank {rank} cannot start: {described[rank]}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _identity(numbers: Tensor) -> str:
    fingerprint, layout, world, _ = numbers.tolist()
    return f"plan {fingerprint % (1 << 64):016x} (layout {layout % (1 << 64):016x}, {world} ranks)"


def _summary(plan: Plan) -> str:
    p = plan.problem
    lengths = ", ".join(map(str, p.q_lengths[:8].tolist())) + (", ..." if p.num_sequences > 8 else "")
    return (
        f"{p.kind} of {p.num_sequences} sequences [{lengths}], {p.num_heads_q}/{p.num_heads_kv} heads of "
        f"{p.head_dim}, {p.dtype.value}, {p.mask.type}"
    )


class _Outgoing(NamedTuple):
    """One transfer of a peer that reads from this rank."""

    reader: int
    tag: int
    task: str


class _RankRun:
    """One run of one rank: posts what it pulls, sends what its peers pull, and works on what is there."""

    def __init__(self, plan: Plan, buffers: RankBuffers, group: dist.ProcessGroup, timeout_s: float) -> None:
        self.plan, self.buffers, self.group, self.timeout_s = plan, buffers, group, timeout_s
        self.rank, self.view = buffers.rank, buffers.view
        self.clock = itertools.count()
        self.landed: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
        self.missing = set(range(len(self.view.transfers)))
        self.held: list[int] = []  # back arrivals that came before the front ones
        self.incoming: dict[int, Tensor] = {}
        self.outgoing: dict[tuple[int, int], list[_Outgoing]] = defaultdict(list)
        self.watchers: list[threading.Thread] = []
        self.sends: list[tuple[Any, Tensor]] = []
        self.claimed = [0] * len(self.view.rows)
        self.open_rows = list(range(len(self.view.rows)))
        self.open_reductions = list(range(len(self.view.reductions)))

    def run(self) -> tuple[Tensor, Tensor]:
        """(out, lse) of this rank, once its own work and all that its peers read from it is done."""
        self._post_receives()
        self._list_outgoing()
        for space, index in list(self.outgoing):
            self._send_if_here(space, index)
        while self.open_rows or self.open_reductions or self.missing or self.outgoing:
            self._take_arrivals(block=False)
            if not self._run_one_task() and (self.open_rows or self.open_reductions or self.missing or self.outgoing):
                self._take_arrivals(block=True)
        for work, _ in self.sends:
            work.wait(timedelta(seconds=self.timeout_s))
        for watcher in self.watchers:
            watcher.join()
        return self.buffers.finish()

    # -- Messages

    def _post_receives(self) -> None:
        base, of_peer = int(self.plan.offsets["transfers"][self.rank]), defaultdict(list)
        for index, transfer in enumerate(self.view.transfers):
            check_source(self.plan, self.rank, index)
            first, second = self._parts(transfer.space, transfer.target)
            message = torch.empty(first.nbytes + second.nbytes, dtype=torch.uint8, device=CPU)
            self.incoming[index] = message
            work = dist.irecv(message, group=self.group, group_src=transfer.peer, tag=base + index)
            of_peer[transfer.peer].append((index, work))
        for works in of_peer.values():
            self.watchers.append(threading.Thread(target=self._watch, args=(works,), daemon=True))
            self.watchers[-1].start()

    def _watch(self, works: list[tuple[int, Any]]) -> None:
        """Report the messages of one peer as they come (gloo's requests can be waited for, not polled)."""
        for index, work in works:
            try:
                work.wait()
            except RuntimeError as error:
                self.landed.put((index, error))
                return
            self.landed.put((index, None))

    def _list_outgoing(self) -> None:
        for reader in range(self.plan.world):
            base = int(self.plan.offsets["transfers"][reader])
            for index, transfer in enumerate(rank_view(self.plan, reader).transfers):
                if transfer.peer == self.rank:
                    task = self.plan.task_name(reader, "transfers", index)
                    self.outgoing[transfer.space, transfer.source].append(_Outgoing(reader, base + index, task))

    def _send_if_here(self, space: int, index: int) -> None:
        """Send an item to all that pull it, if this rank has it and has not sent it yet."""
        times = {Space.KV: self.buffers.kv_time, Space.Q: self.buffers.q_time, Space.STATE: self.buffers.state_time}
        if (space, index) not in self.outgoing or times[Space(space)][index] == NEVER:
            return
        for reader, tag, task in self.outgoing.pop((space, index)):
            parts = self.buffers.payload(space, index, next(self.clock), reader, task)
            dtypes = [part.dtype for part in self._parts(space, index)]
            message = torch.cat([_bytes(p.to(dtype)) for p, dtype in zip(parts, dtypes, strict=True)])
            self.sends.append((dist.isend(message, group=self.group, group_dst=reader, tag=tag), message))

    def _parts(self, space: int, index: int) -> tuple[Tensor, Tensor]:
        """Empty tensors (without memory) of the shapes and dtypes in which an item travels."""
        problem = self.plan.problem
        if space == Space.KV:
            part = _shape(problem.dtype.torch, problem.num_heads_kv, self.view.kv_tiles[index].rows, problem.head_dim)
            return part, part
        tile = self.view.q_tiles[index if space == Space.Q else self.view.states[index].q_tile]
        block = (tile.num_heads, tile.rows, problem.head_dim)
        if space == Space.Q:
            return _shape(problem.dtype.torch, *block), _shape(torch.float32, 0)
        return _shape(self.buffers.exchange_dtype(), *block), _shape(torch.float32, *block[:2])

    def _take_arrivals(self, block: bool) -> None:
        """Land everything that has come; with ``block``, wait for one arrival at least."""
        if block and not self.missing - set(self.held):
            raise self._stuck()
        while True:
            try:
                index, error = self.landed.get(timeout=self.timeout_s) if block else self.landed.get_nowait()
            except Empty:
                if block:
                    raise self._timed_out() from None
                return
            if error is not None:
                name = self.plan.task_name(self.rank, "transfers", index)
                raise ScheduleError(self.rank, name, f"the peer's message did not come: {error}") from error
            block = False
            self.held.append(index)
            self._publish()

    def _publish(self) -> None:
        """Land what was received; back arrivals stay held until all front arrivals of their sequence are in."""
        progress = True
        while progress:
            progress = False
            for index in list(self.held):
                transfer = self.view.transfers[index]
                if transfer.signal < 0 and transfer.arrival_class == 1:
                    sequence = self.view.sequences[transfer.sequence]
                    if len(self.buffers.arrivals[transfer.sequence]) < sequence.num_front_arrivals:
                        continue
                first, second = self._parts(transfer.space, transfer.target)
                message = self.incoming.pop(index)
                a, b = message[: first.nbytes], message[first.nbytes :]
                first, second = a.view(first.dtype).view(first.shape), b.view(second.dtype).view(second.shape)
                self.buffers.land(index, first, second, next(self.clock))
                self.held.remove(index)
                self.missing.discard(index)
                self._send_if_here(transfer.space, transfer.target)
                progress = True

    # -- Work

    def _run_one_task(self) -> bool:
        """Run the first compute task, else the first reduction, whose inputs are here. False if there is none."""
        for row_idx in self.open_rows:
            lo, hi = self.claimed[row_idx], self._claimable(row_idx)
            if hi is None:
                continue
            row, now = self.view.rows[row_idx], next(self.clock)
            self.claimed[row_idx] = hi
            if hi == row.num_kv_tiles:
                self.open_rows.remove(row_idx)
            self.buffers.compute(row_idx, lo, hi, now, now)
            if row.target_space == Space.STATE:
                for state in self.view.target_list[row.target_list :][: row.q_hi - row.q_lo]:
                    self._send_if_here(Space.STATE, state)
            return True
        for index in self.open_reductions:
            reduction, now = self.view.reductions[index], next(self.clock)
            states = self.view.state_list[reduction.state_list :][: reduction.num_states]
            if any(self.buffers.state_time[s] == NEVER for s in states):
                continue
            self.open_reductions.remove(index)
            self.buffers.reduce(index, now, now)
            if reduction.target_space == Space.STATE:
                self._send_if_here(Space.STATE, reduction.target)
            return True
        return False

    def _claimable(self, row_idx: int) -> int | None:
        """End of the interval that the row hands out now; None if its inputs are not here."""
        row, buffers = self.view.rows[row_idx], self.buffers
        if any(buffers.q_time[i] == NEVER for i in self.view.q_list[row.q_lo : row.q_hi]):
            return None
        if row.formation == Formation.READY and row.num_kv_tiles:
            lo, own = self.claimed[row_idx], row.local_hi - row.local_lo
            ready = own + min(len(buffers.arrivals[row.sequence]), row.num_arrivals)
            hi = claim_end(lo, ready, row.num_kv_tiles, row.tau_min, row.tau_max)
            return hi if hi > lo else None
        kv_tiles = self.view.kv_list[row.kv_list :][: row.num_kv_tiles] if row.num_kv_tiles else []
        return None if any(buffers.kv_time[i] == NEVER for i in kv_tiles) else row.num_kv_tiles

    # -- Standstill

    def _timed_out(self) -> DeadlockError:
        index = min(self.missing - set(self.held))
        peer = self.view.transfers[index].peer
        name = self.plan.task_name(self.rank, "transfers", index)
        return DeadlockError(self.rank, name, f"a message of rank {peer} (within {self.timeout_s:g} s)", 1, 0)

    def _stuck(self) -> DeadlockError:
        table, index = (
            ("transfers", self.held[0])
            if self.held
            else ("rows", self.open_rows[0])
            if self.open_rows
            else ("reductions", self.open_reductions[0])
            if self.open_reductions
            else ("", 0)
        )
        name = self.plan.task_name(self.rank, table, index) if table else next(iter(self.outgoing.values()))[0].task
        return DeadlockError(self.rank, name, "inputs that no transfer brings", 1, 0)


def _shape(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)
