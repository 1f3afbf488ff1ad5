"""Offsets and sizes beyond 32 bits."""

from __future__ import annotations

import numpy as np
import pytest

from liquidcp_compiler.driver import compile_plan
from liquidcp_compiler.errors import OutOfResources
from liquidcp_compiler.ir.mask import SlidingWindow
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime.profiles import transfer_bytes
from tests.numerics import decode, passes, prefill

pytestmark = pytest.mark.slow

HEADS = {"num_heads_q": 8, "num_heads_kv": 8, "head_dim": 128, "dtype": "bf16"}


def big_plan(kind: str) -> Plan:
    """Two million tokens a rank: one rank's K alone has more than 2 ** 31 elements."""
    if kind == "prefill":
        problem, place = prefill(2**22, mask=SlidingWindow(left=2**14, right=0), **HEADS), ZigzagAll(tile=2**15)
    else:
        problem, place = decode((2**22 - 1, 1), (5, 1), **HEADS), Dcp(tile=2**15)
    return compile_plan(problem, 2, passes=passes(problem, place=place)).plan


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_plans_of_tensors_with_more_than_2_to_the_31_elements(kind: str) -> None:
    """fault E5: token numbers stay exact, and bytes are counted in 64 bits."""
    plan = big_plan(kind)
    assert plan.problem.total_kv * 8 * 128 > 2**31
    for rank in range(2):
        own = plan.table("kv_tiles", rank)[: plan.header(rank)["num_local_kv_tiles"]]
        starts = np.cumsum(own["rows"].astype(np.int64)) - own["rows"]
        assert np.array_equal(np.sort(own["token"]), starts)
        assert (own["token"].astype(np.int64) * 8 * 128).max() > 2**30
    pulled = plan.table("transfers", 0)
    assert transfer_bytes(plan)[: len(pulled)].sum() <= plan.workspace_bytes(0)
    if kind == "prefill":
        assert transfer_bytes(plan).min() >= 2.0**15 * 8 * 128 * 2 * 2
        assert plan.workspace_bytes() > 2**31


@pytest.mark.parametrize("kind", ["sequence", "rank", "last-tile", "decode"])
def test_positions_that_do_not_fit_their_field_are_refused(kind: str) -> None:
    """fault E5: never wrapped around without a word."""
    mask = SlidingWindow(left=10, right=0)
    if kind == "sequence":
        problem, place = prefill(2**33, mask=mask), ZigzagAll(tile=2**28)
    elif kind == "rank":
        problem, place = prefill(*[2**30] * 6, mask=mask), ZigzagAll(tile=2**28)
    elif kind == "last-tile":
        problem, place = prefill(*[2**30] * 4, mask=mask), ZigzagAll(tile=2**28)
    else:
        problem, place = decode((2**33, 1), mask=mask), Dcp(tile=2**28)
    with pytest.raises(OutOfResources, match="2147483647"):
        compile_plan(problem, 2, passes=passes(problem, place=place))
