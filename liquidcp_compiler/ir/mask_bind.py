"""Binds a mask to the lengths of a batch, refusing what does not fit."""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.errors import MaskError
from liquidcp_compiler.ir.mask import BlockSparse, Causal, Document, Full, Mask, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.mask_block_sparse import bind_block_sparse
from liquidcp_compiler.ir.mask_bound import (
    UNLIMITED,
    BoundMask,
    DocumentBoundMask,
    Int64Array,
    SharedPrefixBoundMask,
    WindowBoundMask,
)


def bind_mask(mask: Mask, lengths: tuple[int, ...], q_lengths: Int64Array, kv_lengths: Int64Array) -> BoundMask:
    """Bind ``mask`` to a batch. ``lengths``: the user's query lengths (documents of a shared prefix); the
    arrays: per sequence. Raises MaskError where the mask does not fit, or hides every pair.
    """
    bound = _bind(mask, lengths, q_lengths, kv_lengths)
    if np.any((q_lengths > 0) & (kv_lengths > 0)):
        ptr = bound.intervals(np.arange(q_lengths.size), 0, q_lengths)[0]
        if ptr[-1] == 0:
            raise MaskError(f"mask {mask.type} hides every query-key pair of the batch; nothing is left to compute")
    return bound


def _bind(mask: Mask, lengths: tuple[int, ...], q_lengths: Int64Array, kv_lengths: Int64Array) -> BoundMask:
    if isinstance(mask, SlidingWindow):
        return WindowBoundMask(mask=mask, q_lengths=q_lengths, kv_lengths=kv_lengths, left=mask.left, right=mask.right)
    if isinstance(mask, (Causal, Full)):
        right = 0 if isinstance(mask, Causal) else UNLIMITED
        return WindowBoundMask(mask=mask, q_lengths=q_lengths, kv_lengths=kv_lengths, left=UNLIMITED, right=right)
    if isinstance(mask, Document):
        return _bind_document(mask, q_lengths, kv_lengths)
    if isinstance(mask, SharedPrefix):
        return _bind_shared_prefix(mask, lengths, q_lengths, kv_lengths)
    if isinstance(mask, BlockSparse):
        return bind_block_sparse(mask, q_lengths, kv_lengths)
    raise MaskError(f"no binding for mask class {type(mask).__name__}")


def _bind_document(mask: Document, q_lengths: Int64Array, kv_lengths: Int64Array) -> BoundMask:
    if not np.array_equal(q_lengths, kv_lengths):
        raise MaskError("mask document needs as many keys as queries in each sequence: leave kv_lengths out")
    total = int(q_lengths.sum())
    if mask.cu_seqlens[-1] != total:
        raise MaskError(f"mask.cu_seqlens ends at {mask.cu_seqlens[-1]}, but the batch has {total} tokens")
    return DocumentBoundMask(
        mask=mask,
        q_lengths=q_lengths,
        kv_lengths=kv_lengths,
        seq_starts=np.cumsum(q_lengths) - q_lengths,
        doc_starts=np.array(mask.cu_seqlens, np.int64),
    )


def _bind_shared_prefix(
    mask: SharedPrefix, lengths: tuple[int, ...], q_lengths: Int64Array, kv_lengths: Int64Array
) -> BoundMask:
    if not np.array_equal(q_lengths, kv_lengths):
        raise MaskError("mask shared_prefix needs as many keys as queries: leave kv_lengths out")
    first = lengths[0] if lengths else 0
    if mask.prefix > first:
        raise MaskError(f"mask.prefix is {mask.prefix}, but lengths[0], the document that holds it, is {first}")
    ends = np.cumsum(np.array(lengths, np.int64))
    return SharedPrefixBoundMask(
        mask=mask,
        q_lengths=q_lengths,
        kv_lengths=kv_lengths,
        prefix=mask.prefix,
        doc_starts=np.concatenate([np.zeros(1, np.int64), ends[:-1]]),
    )
