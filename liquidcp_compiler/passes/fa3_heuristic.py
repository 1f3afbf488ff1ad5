"""The split counts that FlashAttention-3 (v2.8.3, Hopper) would choose, re-implemented from its rules.

Source: hopper/heuristics.h and the varlen scheduler of flash-attention v2.8.3. A static number bounds the splits of the
whole batch; a per-sequence number follows from the blocks there are.
"""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.ir.graph import TaskGraph
from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.tasks import TaskKind

BLOCK_M = 128
BLOCK_N = 128
MAX_SPLITS = 128
L2_BYTES = 50 * 1024 * 1024


def num_splits_static(
    num_m_blocks: int, num_sms: int, num_n_blocks: int, m_blocks_per_head: int, kv_bytes: int, causal: bool
) -> int:
    """Upper bound for a batch: the fewest splits that fill the device to 85 % of the best filling.

    ``num_m_blocks``: all query blocks of the launch; ``m_blocks_per_head``: those of one (batch, KV head);
    ``kv_bytes``: K and V of one KV head.
    """
    if num_m_blocks >= 0.8 * num_sms:
        if kv_bytes > L2_BYTES and m_blocks_per_head >= 2 * num_sms and not causal:
            return min(-(-kv_bytes // L2_BYTES), MAX_SPLITS)
        return 1
    if num_n_blocks <= 4:
        return 1
    cap = min(MAX_SPLITS, num_sms, num_n_blocks)
    splits = np.arange(1, cap + 1)
    waves = (num_m_blocks * splits / num_sms).astype(np.float32)
    efficiency = waves / np.ceil(waves)
    return int(splits[efficiency >= np.float32(0.85) * efficiency.max()][0])


def num_splits_dynamic(m_blocks: IntArray, n_blocks: IntArray, num_heads: int, num_sms: int, bound: int) -> IntArray:
    """Splits of each sequence: its KV blocks over those one SM should get (10 % margin), at most ``bound``."""
    total = np.float32(1.1) * np.float32(num_heads) * np.float32((m_blocks * n_blocks).sum()) / np.float32(num_sms)
    per_sm = max(int(np.ceil(total)), 1)
    return np.clip(-(-n_blocks // per_sm), 1, bound)


def fa3_num_splits(graph: TaskGraph, num_sms: int) -> IntArray:
    """Splits of every task of the graph: each rank's history computes as one varlen batch; 1 for all else.

    Query rows are GQA-packed over the group's heads of one KV head, as FA3 counts them; the causal flag is that of
    FA3's call: histories are seen whole.
    """
    t, p = graph.tasks, graph.problem
    out = np.ones(len(t), np.int64)
    row, lo, hi = t.reads.of_space(Space.KV)
    keep = (t.kind[row] == TaskKind.COMPUTE) & (t.role[row] == Role.HISTORY)
    row, tiles = row[keep], (hi - lo)[keep]
    if not len(row):
        return out
    request = graph.q_tiles.sequence[t.reads.lo[t.reads.ptr[row]]]
    queries = p.q_lengths
    packed = -(-queries * p.group_size // BLOCK_M)
    for rank in range(graph.world):
        mine = t.rank[row] == rank
        if not mine.any():
            continue
        requests, place = np.unique(request[mine], return_index=True)
        n_blocks = -(-(tiles[mine][place] * graph.tile) // BLOCK_N)
        m_blocks = packed[requests]
        per_head = int(packed.max())
        bytes_kv = int(n_blocks.max()) * BLOCK_N * p.head_dim * 2 * p.dtype.bytes
        bound = num_splits_static(
            p.num_heads_kv * per_head, num_sms, int(n_blocks.max()), per_head, bytes_kv, causal=False
        )
        splits = num_splits_dynamic(m_blocks, n_blocks, p.num_heads_kv, num_sms, bound)
        out[row[mine]] = splits[np.searchsorted(requests, request[mine])]
    return out
