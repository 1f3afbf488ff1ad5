"""What a kernel needs to know of a mask, as int32 entries of the plan (``mask_data``), one run a sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.mask import BlockSparse, SlidingWindow
from liquidcp_compiler.ir.mask_bound import BoundMask, DocumentBoundMask, SharedPrefixBoundMask
from liquidcp_compiler.ir.problem_fields import MAX_INT32

Int32Array = NDArray[np.int32]


def mask_data(bound: BoundMask) -> tuple[Int32Array, NDArray[np.int64]]:
    """(entries, ptr): sequence ``i`` has ``entries[ptr[i]:ptr[i + 1]]``.

    Entries by kind: sliding window: left, right; document: first position of each document, ascending from 0; shared
    prefix: the prefix, then the same; block sparse: block, 32-bit words a query block, then a bit a key block for
    each query block, lowest first. Causal and full have none.
    """
    if bound.is_prefix_mask:
        return np.zeros(0, np.int32), np.zeros(len(bound.q_lengths) + 1, np.int64)
    parts = [np.asarray(_of_sequence(bound, s), np.int64) for s in range(len(bound.q_lengths))]
    ptr = np.concatenate(([0], np.cumsum([len(p) for p in parts]))).astype(np.int64)
    entries = np.concatenate([np.zeros(0, np.int64), *parts])
    # The words of a block mask use all 32 bits.
    return entries.astype(np.uint32).view(np.int32), ptr


def _of_sequence(bound: BoundMask, sequence: int) -> NDArray | list[int]:
    mask = bound.mask
    if isinstance(mask, SlidingWindow):
        return [min(mask.left, MAX_INT32), min(mask.right, MAX_INT32)]
    if isinstance(bound, DocumentBoundMask):
        start = bound.seq_starts[sequence]
        inside = bound.doc_starts - start
        return np.unique(np.clip(inside[inside < bound.q_lengths[sequence]], 0, None))
    if isinstance(bound, SharedPrefixBoundMask):
        return np.concatenate(([bound.prefix], np.unique(bound.doc_starts)))
    if isinstance(mask, BlockSparse):
        return _block_bits(mask, int(bound.q_lengths[sequence]), int(bound.kv_lengths[sequence]))
    return []


def _block_bits(mask: BlockSparse, q_length: int, kv_length: int) -> NDArray:
    num_blocks = -(-kv_length // mask.block)
    num_words = max(-(-num_blocks // 32), 1)
    bits = np.zeros((len(mask.rows), num_words * 32), bool)
    for i, row in enumerate(mask.rows):
        bits[i, list(row)] = True
    words = np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.int64)
    # A block longer than the sequence is cut to it, so that kernels may add it to a position in 32 bits.
    return np.concatenate(([min(mask.block, max(q_length, kv_length, 1)), num_words], words.ravel()))
