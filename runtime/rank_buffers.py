"""What one rank holds while a plan runs, and the three things tasks do to it: land, compute, reduce.

Every access is checked against what has happened so far, so that a wrong plan ends in a ``ScheduleError`` that names
the task rather than in wrong numbers. Buffers start as NaN for the same reason.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import ScheduleError
from liquidcp_compiler.ir.layout import Formation, Space
from liquidcp_compiler.ir.mask import Full
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.plan_view import RankView, rank_view
from liquidcp_runtime.scheduling import output_task
from liquidcp_runtime.state import apply_sink, combine
from liquidcp_runtime.tile_math import partial_attention

NEVER = math.inf
#: From this many pairs on it pays to ask whether a whole block is visible before its mask is made.
_LARGE_BLOCK = 8192


class RankBuffers:
    """Buffers of one rank. Times are of the caller's clock: what is used at ``begin`` must have landed by then.

    Args:
        q: [num_local_q_tokens, local heads, head_dim]; k, v: [num_local_kv_tokens, num_heads_kv, head_dim].
        sinks: fp32 [num_heads_q] or None.
        pairs: (query tile, KV tile) pairs of the graph seen so far; share one set among ranks to check across them.
    """

    def __init__(
        self, plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, pairs: set[tuple[int, int]]
    ) -> None:
        self.plan, self.rank, self.problem, self.sinks, self.pairs = plan, rank, plan.problem, sinks, pairs
        self.view: RankView = rank_view(plan, rank)
        view, head_dim, heads_kv = self.view, plan.problem.head_dim, plan.problem.num_heads_kv
        # new_*: fp32 on the CPU whatever torch's default dtype and device are.
        self.num_heads = q.shape[1]
        self.q, self.k, self.v = (x.detach().to(torch.float32).transpose(0, 1).contiguous() for x in (q, k, v))
        pulled_kv, pulled_q = view.kv_tiles[view.num_local_kv_tiles :], view.q_tiles[view.num_local_q_tiles :]
        kv_tokens = max((t.token + t.rows for t in pulled_kv), default=0)
        self.pulled_k, self.pulled_v = (self.k.new_full((heads_kv, kv_tokens, head_dim), math.nan) for _ in range(2))
        q_tokens = max((t.token + t.rows for t in pulled_q), default=0)
        q_heads = max((t.num_heads for t in pulled_q), default=0)
        self.pulled_q = self.q.new_full((q_heads, q_tokens, head_dim), math.nan)
        self.running_out = self.q.new_zeros((self.num_heads, view.num_local_q_tokens, head_dim))
        self.running_lse = self.q.new_full((self.num_heads, view.num_local_q_tokens), -math.inf)
        self.out = q.new_full((view.num_local_q_tokens, self.num_heads, head_dim), math.nan)
        self.lse = self.q.new_full((self.num_heads, view.num_local_q_tokens), math.nan)
        self.states: list[tuple[Tensor, Tensor] | None] = [None] * len(view.states)
        self.state_time = [NEVER] * len(view.states)
        self.kv_time = [-NEVER] * view.num_local_kv_tiles + [NEVER] * len(pulled_kv)
        self.q_time = [-NEVER] * view.num_local_q_tiles + [NEVER] * len(pulled_q)
        self.arrivals: list[list[int]] = [[] for _ in view.sequences]
        self.merged = [0] * len(view.q_tiles)
        self.done_tiles: list[set[int]] = [set() for _ in view.rows]

    # -- Transfers

    def payload(self, space: int, index: int, begin: float, reader: int, task: str) -> tuple[Tensor, Tensor]:
        """What a peer pulls: (k, v), (q, nothing), or (out, lse) with out in the exchange dtype. Raises if not here."""
        times = {Space.KV: self.kv_time, Space.Q: self.q_time, Space.STATE: self.state_time}[Space(space)]
        if not 0 <= index < len(times) or times[index] > begin:
            raise ScheduleError(reader, task, f"reads item {index} of rank {self.rank} before it is there")
        if space == Space.KV:
            return self._kv(index)
        if space == Space.Q:
            return self._q(index), self.q.new_empty(0)
        state = self.states[index]
        assert state is not None
        return state[0].to(self.exchange_dtype()), state[1]

    def land(self, transfer_idx: int, first: Tensor, second: Tensor, time: float) -> None:
        """Store what a transfer brought, and publish it. Shapes as :meth:`payload` gives them."""
        transfer = self.view.transfers[transfer_idx]
        if transfer.space == Space.STATE:
            self._write_state(transfer.target, first.float(), second, time, "transfers", transfer_idx)
            return
        times, num_local = (
            (self.kv_time, self.view.num_local_kv_tiles)
            if transfer.space == Space.KV
            else (self.q_time, self.view.num_local_q_tiles)
        )
        if transfer.target < num_local or times[transfer.target] != NEVER:
            raise self._error("transfers", transfer_idx, "writes a tile that is here already")
        if transfer.space == Space.KV:
            k, v = self._kv(transfer.target)
            k.copy_(first)
            v.copy_(second)
            if transfer.signal < 0:
                self.arrivals[transfer.sequence].append(transfer.target)
        else:
            self._q(transfer.target).copy_(first)
        times[transfer.target] = time

    # -- Compute and reductions

    def compute(self, row_idx: int, lo: int, hi: int, begin: float, time: float) -> None:
        """Run KV interval [lo, hi) of a row and merge or store the partial state of each of its query tiles."""
        row = self.view.rows[row_idx]
        covered = self.done_tiles[row_idx]
        if any(i in covered for i in range(lo, hi)):
            raise self._error("rows", row_idx, f"double contribution: part of [{lo}, {hi}) was computed already")
        covered.update(range(lo, hi))
        kv_tiles = self._row_tiles(row_idx, row, lo, hi)
        for tile in kv_tiles:
            if self.kv_time[tile] > begin:
                raise self._error("rows", row_idx, f"read before ready: kv {self.view.kv_tiles[tile].tile}")
        k, v = self._gather(kv_tiles)
        for i, q_idx in enumerate(self.view.q_list[row.q_lo : row.q_hi]):
            if self.q_time[q_idx] > begin:
                raise self._error("rows", row_idx, f"read before ready: q {self.view.q_tiles[q_idx].tile}")
            self._count_pairs(row_idx, q_idx, kv_tiles)
            out, lse = self._attend(q_idx, kv_tiles, k, v)
            if row.target_space == Space.OUT:
                self._merge_out(q_idx, out, lse, max(hi - lo, 1), "rows", row_idx)
            else:
                self._write_state(self.view.target_list[row.target_list + i], out, lse, time, "rows", row_idx)

    def reduce(self, reduction_idx: int, begin: float, time: float) -> None:
        """Combine partial states in the plan's order into an output or into another state."""
        reduction = self.view.reductions[reduction_idx]
        merged: tuple[Tensor, Tensor] | None = None
        for state_idx in self.view.state_list[reduction.state_list :][: reduction.num_states]:
            state, described = self.states[state_idx], self.view.states[state_idx]
            if state is None or self.state_time[state_idx] > begin:
                raise self._error("reductions", reduction_idx, f"read before ready: state {described.state}")
            if described.q_tile != reduction.q_tile:
                raise self._error("reductions", reduction_idx, f"state {described.state} is of another query tile")
            merged = state if merged is None else combine(*merged, *state)
        if merged is None:
            raise self._error("reductions", reduction_idx, "combines no state")
        out, lse = merged
        if reduction.target_space == Space.OUT:
            self._merge_out(reduction.q_tile, out, lse, 1, "reductions", reduction_idx)
        else:
            self._write_state(reduction.target, out, lse, time, "reductions", reduction_idx)

    def finish(self) -> tuple[Tensor, Tensor]:
        """(out, lse) of this rank. Raises ``ScheduleError`` when a contribution is missing."""
        for q_idx in range(self.view.num_local_q_tiles):
            expected = self.view.q_tiles[q_idx].merge_count
            if self.merged[q_idx] != expected or not expected:
                message = f"missing contribution: {self.merged[q_idx]} of {expected} merged"
                raise ScheduleError(self.rank, output_task(self.plan, self.rank, q_idx), message)
        return self.out, self.lse

    # -- Parts

    def _row_tiles(self, row_idx: int, row, lo: int, hi: int) -> list[int]:
        """Physical KV tiles of logical interval [lo, hi)."""
        if row.formation == Formation.STATIC:
            return self.view.kv_list[row.kv_list + lo : row.kv_list + hi]
        own = row.local_hi - row.local_lo
        arrived = self.arrivals[row.sequence]
        if hi > own + min(len(arrived), row.num_arrivals):
            message = f"read before ready: [{lo}, {hi}) with {len(arrived)} arrivals committed"
            raise self._error("rows", row_idx, message)
        local = range(row.local_lo + lo, row.local_lo + min(hi, own))
        return [*local, *arrived[max(lo - own, 0) : max(hi - own, 0)]]

    def _attend(self, q_idx: int, kv_tiles: list[int], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        problem, tile = self.problem, self.view.q_tiles[q_idx]
        return partial_attention(
            self._q(q_idx),
            k,
            v,
            first_head=tile.head,
            group=problem.group_size,
            scale=problem.scale,
            softcap=problem.softcap,
            hidden=self._hidden(tile, kv_tiles),
        )

    def _hidden(self, tile, kv_tiles: list[int]) -> Tensor | None:
        """bool [rows, keys], True where masked; None when everything is visible."""
        bound = self.problem.mask_bound
        if isinstance(bound.mask, Full) or not kv_tiles:
            return None
        sequence = self.view.sequences[tile.sequence].sequence
        keys = [self.view.key_positions[i] for i in kv_tiles]
        q_lo, q_hi = tile.position, tile.position + tile.rows
        if tile.rows * sum(map(len, keys)) >= _LARGE_BLOCK:
            first, last = [x[0] for x in keys], [x[-1] + 1 for x in keys]
            if bound.fully_visible(sequence, q_lo, q_hi, first, last).all():
                return None
        positions = keys[0] if len(keys) == 1 else torch.cat([torch.from_numpy(x) for x in keys]).numpy()
        visible = bound.visible(sequence, np.arange(q_lo, q_hi), positions)
        return torch.from_numpy(~visible)

    def _q(self, index: int) -> Tensor:
        """[num_heads, rows, head_dim], a view."""
        tile = self.view.q_tiles[index]
        buffer = self.q if index < self.view.num_local_q_tiles else self.pulled_q
        return buffer[: tile.num_heads, tile.token : tile.token + tile.rows]

    def _kv(self, index: int) -> tuple[Tensor, Tensor]:
        tile = self.view.kv_tiles[index]
        tokens = slice(tile.token, tile.token + tile.rows)
        if index < self.view.num_local_kv_tiles:
            return self.k[:, tokens], self.v[:, tokens]
        return self.pulled_k[:, tokens], self.pulled_v[:, tokens]

    def _gather(self, kv_tiles: list[int]) -> tuple[Tensor, Tensor]:
        """K and V of some tiles one after another, [num_heads_kv, keys, head_dim]; a view where they lie that way."""
        if not kv_tiles:
            return self.k[:, :0], self.v[:, :0]
        first, last = self.view.kv_tiles[kv_tiles[0]], self.view.kv_tiles[kv_tiles[-1]]
        tiles, num_local = self.view.kv_tiles, self.view.num_local_kv_tiles
        one_buffer = all(i < num_local for i in kv_tiles) or all(i >= num_local for i in kv_tiles)
        if one_buffer and all(
            tiles[a].token + tiles[a].rows == tiles[b].token for a, b in zip(kv_tiles, kv_tiles[1:], strict=False)
        ):
            tokens = slice(first.token, last.token + last.rows)
            k, v = (self.k, self.v) if kv_tiles[0] < num_local else (self.pulled_k, self.pulled_v)
            return k[:, tokens], v[:, tokens]
        parts = [self._kv(i) for i in kv_tiles]
        return torch.cat([k for k, _ in parts], 1), torch.cat([v for _, v in parts], 1)

    def _count_pairs(self, row_idx: int, q_idx: int, kv_tiles: list[int]) -> None:
        q_tile = self.view.q_tiles[q_idx].tile
        for i in kv_tiles:
            pair = (q_tile, self.view.kv_tiles[i].tile)
            if pair in self.pairs:
                raise self._error("rows", row_idx, f"double contribution: q {pair[0]} has met kv {pair[1]} before")
            self.pairs.add(pair)

    def _merge_out(self, q_idx: int, out: Tensor, lse: Tensor, count: int, table: str, index: int) -> None:
        tile = self.view.q_tiles[q_idx]
        if q_idx >= self.view.num_local_q_tiles:
            raise self._error(table, index, f"writes the output of q {tile.tile}, which rank {tile.owner} owns")
        first = self.merged[q_idx] == 0
        self.merged[q_idx] += count
        if self.merged[q_idx] > tile.merge_count:
            message = f"double contribution: {self.merged[q_idx]} merged, {tile.merge_count} expected"
            raise self._error(table, index, message)
        tokens = slice(tile.token, tile.token + tile.rows)
        if not first:
            out, lse = combine(self.running_out[:, tokens], self.running_lse[:, tokens], out, lse)
        if self.merged[q_idx] < tile.merge_count:
            self.running_out[:, tokens] = out
            self.running_lse[:, tokens] = lse
            return
        if self.sinks is not None:
            out, lse = apply_sink(out, lse, self.sinks[tile.head : tile.head + tile.num_heads].unsqueeze(-1))
        self.out[tokens] = out.transpose(0, 1).to(self.out.dtype)
        self.lse[:, tokens] = lse

    def _write_state(self, index: int, out: Tensor, lse: Tensor, time: float, table: str, task: int) -> None:
        if self.states[index] is not None:
            message = f"double contribution: state {self.view.states[index].state} is written twice"
            raise self._error(table, task, message)
        self.states[index], self.state_time[index] = (out, lse), time

    def exchange_dtype(self) -> torch.dtype:
        """The type in which partial outputs travel."""
        exchange = getattr(self.problem, "exchange_dtype", None)
        return exchange.torch if exchange else torch.float32

    def _error(self, table: str, index: int, message: str) -> ScheduleError:
        return ScheduleError(self.rank, self.plan.task_name(self.rank, table, index), message)
