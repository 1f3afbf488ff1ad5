"""The bound form of a block-sparse mask: runs of visible key blocks per query block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from liquidcp_compiler.errors import MaskError
from liquidcp_compiler.ir.mask import BlockSparse
from liquidcp_compiler.ir.mask_bound import BoolArray, BoundMask, Int64Array, Intervals


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockSparseBoundMask(BoundMask):
    """``run_ptr`` int64 [num_query_blocks + 1]: query block ``b`` sees the key runs [run_lo[j], run_hi[j]) in
    tokens, run_ptr[b] <= j < run_ptr[b + 1]; runs are merged blocks, sorted and apart.
    """

    block: int
    run_ptr: Int64Array
    run_lo: Int64Array
    run_hi: Int64Array

    def visible_per_row(self, seq: int) -> Int64Array:
        keys = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.run_hi - self.run_lo)])
        per_block = keys[self.run_ptr[1:]] - keys[self.run_ptr[:-1]]
        return per_block[np.arange(self.q_lengths[seq], dtype=np.int64) // self.block]

    def _visible(self, seq: int, q: Int64Array, k: Int64Array) -> BoolArray:
        blocks, which = np.unique(q // self.block, return_inverse=True)
        return self._in_one_run(blocks[:, None], k[None, :], k[None, :] + 1)[which.reshape(-1)]

    def _intervals(self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array) -> Intervals:
        num_ranges, reach = q_lo.size, int(self.kv_lengths[0]) + 2
        range_idx, block_idx = self._block_rows(q_lo, q_hi)
        counts = self.run_ptr[block_idx + 1] - self.run_ptr[block_idx]
        runs = _spans(self.run_ptr[block_idx], counts)
        # Ranges are moved apart by more than a sequence, so that one sweep over all of them merges within
        # each alone.
        base = np.repeat(range_idx, counts) * reach
        order = np.argsort(base + self.run_lo[runs], kind="stable")
        base = base[order]
        lo, hi = base + self.run_lo[runs][order], base + self.run_hi[runs][order]
        reached = np.maximum.accumulate(hi)
        starts = np.ones(lo.size, np.bool_)
        starts[1:] = lo[1:] > reached[:-1]
        ends = np.ones(lo.size, np.bool_)
        ends[:-1] = starts[1:]
        owner = base[starts] // reach
        ptr = np.searchsorted(owner, np.arange(num_ranges + 1)).astype(np.int64)
        return ptr, lo[starts] - base[starts], reached[ends] - base[ends]

    def _fully_visible(
        self, seq: Int64Array, q_lo: Int64Array, q_hi: Int64Array, k_lo: Int64Array, k_hi: Int64Array
    ) -> BoolArray:
        range_idx, block_idx = self._block_rows(q_lo, q_hi)
        seen = self._in_one_run(block_idx, k_lo[range_idx], k_hi[range_idx])
        return np.bincount(range_idx, weights=~seen, minlength=q_lo.size) == 0

    def _block_rows(self, q_lo: Int64Array, q_hi: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Every (range, query block) pair of the row ranges, in range order."""
        first = q_lo // self.block
        counts = np.where(q_hi > q_lo, -(-q_hi // self.block) - first, 0)
        return np.repeat(np.arange(q_lo.size, dtype=np.int64), counts), _spans(first, counts)

    def _in_one_run(self, block_idx: Int64Array, k_lo: Int64Array, k_hi: Int64Array) -> BoolArray:
        """Is [k_lo, k_hi) inside one run of the query block? Broadcasts."""
        if self.run_lo.size == 0:
            return np.zeros(np.broadcast_shapes(block_idx.shape, k_lo.shape), np.bool_)
        reach = int(self.kv_lengths[0]) + 2
        block_of_run = np.repeat(np.arange(self.run_ptr.size - 1, dtype=np.int64), np.diff(self.run_ptr))
        keys = block_of_run * reach + self.run_lo
        run = np.searchsorted(keys, block_idx * reach + k_lo, side="right") - 1
        return (run >= self.run_ptr[block_idx]) & (k_hi <= self.run_hi[np.maximum(run, 0)])


def bind_block_sparse(mask: BlockSparse, q_lengths: Int64Array, kv_lengths: Int64Array) -> BlockSparseBoundMask:
    """Bind to the one sequence of a batch. Raises MaskError where rows or indices do not fit it."""
    if q_lengths.size != 1:
        raise MaskError(f"mask block_sparse describes one sequence, but the batch has {q_lengths.size}")
    q_len, kv_len, block = int(q_lengths[0]), int(kv_lengths[0]), mask.block
    num_query_blocks, num_key_blocks = -(-q_len // block), -(-kv_len // block)
    if len(mask.rows) != num_query_blocks:
        raise MaskError(
            f"mask.rows has {len(mask.rows)} rows, but {q_len} queries in blocks of {block} need {num_query_blocks}"
        )
    counts = np.array([len(row) for row in mask.rows], np.int64)
    blocks = np.array([index for row in mask.rows for index in row], np.int64)
    row_of = np.repeat(np.arange(num_query_blocks, dtype=np.int64), counts)
    if blocks.size and blocks.max() >= num_key_blocks:
        at = int(np.argmax(blocks >= num_key_blocks))
        raise MaskError(
            f"mask.rows[{row_of[at]}] names key block {blocks[at]}, but {kv_len} keys in blocks of {block} "
            f"have blocks 0..{num_key_blocks - 1}"
        )
    starts = np.ones(blocks.size, np.bool_)
    starts[1:] = (row_of[1:] != row_of[:-1]) | (blocks[1:] != blocks[:-1] + 1)
    ends = np.ones(blocks.size, np.bool_)
    ends[:-1] = starts[1:]
    return BlockSparseBoundMask(
        mask=mask,
        q_lengths=q_lengths,
        kv_lengths=kv_lengths,
        block=block,
        run_ptr=np.searchsorted(row_of[starts], np.arange(num_query_blocks + 1)).astype(np.int64),
        run_lo=blocks[starts] * block,
        run_hi=np.minimum((blocks[ends] + 1) * block, kv_len),
    )


def _spans(first: Int64Array, counts: Int64Array) -> Int64Array:
    """first[i], first[i] + 1, .. (counts[i] of them) for every i, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if ends.size else 0, dtype=np.int64) + np.repeat(first - (ends - counts), counts)
