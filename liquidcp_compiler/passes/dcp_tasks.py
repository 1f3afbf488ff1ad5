"""The tasks of a decode batch: chunk and history computes, history reductions, final reductions."""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.ir.intervals import AccessTable, IntArray, expand
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.problem import DecodeProblem
from liquidcp_compiler.ir.regions import needed_tiles
from liquidcp_compiler.ir.tasks import TaskKind, TaskTable, concat_tasks
from liquidcp_compiler.ir.tiles import TileTable


class DcpTasks:
    """Builds the tasks of one decode batch.

    States are numbered: chunk partials by query tile; then history partials by (rank, task, query tile); then history
    results by (query tile, rank), so that what a final reduction merges is one interval.
    """

    def __init__(
        self, problem: DecodeProblem, world: int, q_tiles: TileTable, kv_tiles: TileTable, group: IntArray
    ) -> None:
        self.problem, self.world, self.q_tiles, self.kv_tiles = problem, world, q_tiles, kv_tiles
        self.num_q = len(q_tiles)
        self.group = group

    def build(self) -> tuple[TaskTable, IntArray]:
        """(tasks, states). Order: chunk computes, history computes, history reductions, final reductions."""
        chunk_rank, chunk_lo, chunk_hi, chunk_kv = self._chunk_regions()
        hist_rank, hist_lo, hist_hi, hist_kv = self._history_regions()
        hist_q = expand(hist_lo, hist_hi)
        hist_of = np.repeat(np.arange(len(hist_lo)), hist_hi - hist_lo)
        result_order = np.lexsort((hist_rank[hist_of], hist_q))
        num_results = np.bincount(hist_q, minlength=self.num_q)
        chunk_q = expand(chunk_lo, chunk_hi)
        chunked = np.zeros(self.num_q, bool)
        chunked[chunk_q] = True
        direct = chunked & (num_results == 0)
        chunk_state = np.cumsum(chunked & ~direct) - 1
        num_chunk_states = int((chunked & ~direct).sum())
        partial_base, result_base = num_chunk_states, num_chunk_states + len(hist_q)
        states = np.concatenate((np.flatnonzero(chunked & ~direct), hist_q, hist_q[result_order])).astype(np.int64)

        chunk = self._compute(Role.CHUNK, chunk_rank, chunk_lo, chunk_hi, chunk_kv)
        targets = np.where(direct[chunk_q], chunk_q, chunk_state[chunk_q])
        spaces = np.where(direct[chunk_q], Space.OUT, Space.STATE)
        chunk_of = np.repeat(np.arange(len(chunk_lo)), chunk_hi - chunk_lo)
        chunk = chunk.with_columns(writes=AccessTable.from_rows(len(chunk_lo), chunk_of, spaces, targets, targets + 1))
        history = self._compute(Role.HISTORY, hist_rank, hist_lo, hist_hi, hist_kv)
        partial = partial_base + np.arange(len(hist_q))
        first = partial_base + np.concatenate(([0], np.cumsum(hist_hi - hist_lo)))[:-1].astype(np.int64)
        history = history.with_columns(writes=AccessTable.single(Space.STATE, first, first + (hist_hi - hist_lo)))
        result = result_base + np.arange(len(hist_q))
        combine = TaskTable.make(
            TaskKind.REDUCTION,
            hist_rank[hist_of[result_order]],
            AccessTable.single(Space.STATE, partial[result_order], partial[result_order] + 1),
            AccessTable.single(Space.STATE, result, result + 1),
        )
        final = self._final(direct, chunked, chunk_state, result_base, num_results)
        return concat_tasks([chunk, history, combine, final]), states

    def _final(
        self, direct: np.ndarray, chunked: np.ndarray, chunk_state: IntArray, result_base: int, num_results: IntArray
    ) -> TaskTable:
        tiles = np.flatnonzero(~direct)
        start = result_base + np.concatenate(([0], np.cumsum(num_results)))[:-1]
        with_chunk = chunked[tiles]
        row = np.concatenate((np.flatnonzero(with_chunk), np.flatnonzero(num_results[tiles] > 0)))
        chunk = chunk_state[tiles[with_chunk]]
        some = tiles[num_results[tiles] > 0]
        lo = np.concatenate((chunk, start[some]))
        hi = np.concatenate((chunk + 1, start[some] + num_results[some]))
        reads = AccessTable.from_rows(len(tiles), row, np.full(len(row), Space.STATE), lo, hi)
        writes = AccessTable.single(Space.OUT, tiles, tiles + 1)
        return TaskTable.make(TaskKind.REDUCTION, self.q_tiles.rank[tiles], reads, writes)

    def _compute(self, role: Role, rank: IntArray, q_lo: IntArray, q_hi: IntArray, kv) -> TaskTable:
        n = len(rank)
        row, lo, hi = kv
        reads = AccessTable.from_rows(
            n,
            np.concatenate((np.arange(n), row)),
            np.concatenate((np.full(n, Space.Q), np.full(len(row), Space.KV))),
            np.concatenate((q_lo, lo)),
            np.concatenate((q_hi, hi)),
        )
        return TaskTable.make(TaskKind.COMPUTE, rank, reads, AccessTable.empty(n), role=role)

    def _runs(self, by_owner: bool) -> tuple[IntArray, IntArray]:
        """(first, past last) query tile of every task group; within one owner if ``by_owner``."""
        t = self.q_tiles
        new = np.ones(self.num_q, bool)
        new[1:] = (t.sequence[1:] != t.sequence[:-1]) | (self.group[1:] != self.group[:-1])
        if by_owner:
            new[1:] |= t.rank[1:] != t.rank[:-1]
        lo = np.flatnonzero(new)
        return lo, np.append(lo[1:], self.num_q).astype(np.int64)

    def _token_range(self, lo: IntArray) -> tuple[IntArray, IntArray]:
        """First and past-last query token of runs that start at ``lo``."""
        if not len(lo):
            return lo, lo
        t = self.q_tiles
        return np.minimum.reduceat(t.position, lo), np.maximum.reduceat(t.position + t.rows, lo)

    def _chunk_regions(self):
        if self.problem.new_kv != "chunk":
            z = np.zeros(0, np.int64)
            return z, z, z, (z, z, z)
        lo, hi = self._runs(by_owner=True)
        first, last = self._token_range(lo)
        request = self.q_tiles.sequence[lo]
        kv = needed_tiles(
            self.problem,
            request,
            first,
            last,
            self.kv_tiles,
            kv_lo=self.problem.histories[request],
            kv_hi=self.problem.kv_lengths_array[request],
        )
        return self.q_tiles.rank[lo], lo, hi, kv

    def _history_regions(self):
        """Only ranks with history tokens that a query may see get a task."""
        lo, hi = self._runs(by_owner=False)
        first, last = self._token_range(lo)
        count = len(lo)
        run, rank = np.tile(np.arange(count), self.world), np.repeat(np.arange(self.world), count)
        request = self.q_tiles.sequence[lo][run]
        end = self.problem.histories if self.problem.new_kv == "chunk" else self.problem.kv_lengths_array
        row, kv_lo, kv_hi = needed_tiles(
            self.problem,
            request,
            first[run],
            last[run],
            self.kv_tiles,
            rank=rank,
            kv_lo=np.zeros(len(run), np.int64),
            kv_hi=end[request],
        )
        used = np.unique(row)
        place = np.searchsorted(used, row)
        return rank[used], lo[run[used]], hi[run[used]], (place, kv_lo, kv_hi)
