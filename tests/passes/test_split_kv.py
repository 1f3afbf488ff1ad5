"""Splits of histories, and what FlashAttention-3 would choose."""

from __future__ import annotations

import numpy as np
import pytest

from liquidcp_compiler.driver import compile_plan
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.fa3_heuristic import num_splits_dynamic, num_splits_static
from liquidcp_compiler.passes.insert_sync import InsertSync
from liquidcp_compiler.passes.insert_transfers import InsertTransfers
from liquidcp_compiler.passes.order import Order
from liquidcp_compiler.passes.split_kv import SplitKv
from tests.graphs import decode_problem


def history_widths(split: SplitKv, world: int, requests, **fields) -> list[list[int]]:
    """KV tiles of the parts of each request's history on rank 0."""
    passes = (Dcp(), InsertTransfers(), split, Order(), InsertSync())
    graph = compile_plan(decode_problem(requests, **fields), world, passes=passes, verify="each").graph
    t = graph.tasks
    rows = np.flatnonzero((t.role == Role.HISTORY) & (t.rank == 0))
    row, lo, hi = t.reads.take(rows).of_space(Space.KV)
    parts = np.unique(np.stack((graph.kv_tiles.sequence[lo], lo, hi)), axis=1)
    return [(parts[2] - parts[1])[parts[0] == i].tolist() for i in range(len(requests))]


def test_parts_are_ceil_sized_and_the_last_is_shorter():
    widths = history_widths(SplitKv(policy="fixed", num_splits=3), 1, [(176 * 128, 1), (192 * 128, 1)])
    assert widths == [[59, 59, 58], [64, 64, 64]]


def test_parts_that_would_be_empty_are_not_made():
    widths = history_widths(SplitKv(policy="fixed", num_splits=4), 1, [(5 * 128, 1), (128, 1), (0, 1)])
    assert widths == [[2, 2, 1], [1], []]


def test_none_leaves_every_history_whole():
    assert history_widths(SplitKv(), 2, [(1000, 3)]) == [[4]]


def test_fixed_splits_do_not_depend_on_the_batch():
    """fault I3"""
    alone = history_widths(SplitKv(policy="fixed", num_splits=2), 2, [(4000, 1)])
    among = history_widths(SplitKv(policy="fixed", num_splits=2), 2, [(4000, 1), (90000, 4), (1, 1)])
    assert among[0] == alone[0]


@pytest.mark.parametrize(
    ("blocks", "expected"), [((1, 132, 35), 30), ((1, 132, 4), 1), ((106, 132, 100), 1), ((105, 132, 100), 5)]
)
def test_static_bound_of_fa3(blocks, expected: int):
    """Few query blocks: the fewest splits within 85 % of the best filling; from 0.8 SMs on: none."""
    m, sms, n = blocks
    assert num_splits_static(m, sms, n, 1, 1 << 20, causal=False) == expected


def test_static_bound_of_fa3_for_long_queries_over_a_large_cache():
    assert num_splits_static(300, 132, 1000, 300, 120 << 20, causal=False) == 3
    assert num_splits_static(300, 132, 1000, 300, 120 << 20, causal=True) == 1


@pytest.mark.parametrize(
    ("sms", "expected"), [(3, [2, 2, 1]), (4, [2, 2, 1]), (5, [3, 3, 1]), (6, [3, 3, 1]), (7, [4, 3, 1])]
)
def test_dynamic_splits_of_three_histories(sms: int, expected: list[int]):
    blocks = np.array([192, 176, 2])
    assert num_splits_dynamic(np.ones(3, int), blocks, 1, sms, 128).tolist() == expected


@pytest.mark.parametrize(("world", "eight", "many"), [(2, 12, 4), (4, 6, 2), (8, 3, 1)])
def test_fa3_splits_of_decode_batches(world: int, eight: int, many: int):
    """8 and 34 requests of 12K history, four heads a rank over one KV head, 132 SMs."""
    fields = {"num_heads_q": 4 * world, "num_heads_kv": 1}
    policy = SplitKv(policy="fa3-heuristic")
    for count, expected in ((8, eight), (34, many)):
        widths = history_widths(policy, world, [(12288, 16)] * count, **fields)
        assert {len(w) for w in widths} == {expected}


def test_a_long_chunk_stops_all_splitting():
    fields = {"num_heads_q": 16, "num_heads_kv": 1}
    widths = history_widths(SplitKv(policy="fa3-heuristic"), 4, [(12288, 16), (4096, 2048)], **fields)
    assert len(widths[0]) == 1
    assert len(history_widths(SplitKv(policy="fa3-heuristic"), 4, [(12288, 16)], **fields)[0]) > 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"policy": "best"}, "policy"),
        ({"num_splits": 2}, "num_splits"),
        ({"policy": "fixed", "num_splits": 0}, "num_splits"),
        ({"policy": "fa3-heuristic", "num_sms": 0}, "num_sms"),
    ],
)
def test_options_that_make_no_sense(options: dict, field: str):
    with pytest.raises(InvalidField, match=field):
        SplitKv(**options)
