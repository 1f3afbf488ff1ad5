"""One rank of several on the whole GPU gives that rank's part of the result, and the link model slows it."""

from __future__ import annotations

import pytest
import torch

from liquidcp_runtime.link_model import LinkModel
from liquidcp_runtime.sharding import shard_kv, shard_map, shard_q
from liquidcp_runtime.solo_world import SoloWorld, solo
from tests.gpu.support import expected, problem, zigzag

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mask", ["causal", "sliding_window"])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 2), (2, 3), (5, 8)])
def test_matches_float64(rank: int, world_size: int, mask: str) -> None:
    p = problem((3000, 129), mask=mask)
    plan, w = zigzag(p, world_size), solo(rank, world_size, poison=False)
    (q, k, v, _), (reference, lse_reference), baseline = expected(p, 0)
    w.load_peers(plan, k, v)
    places = shard_map(plan, rank).q_index
    for _ in range(3):
        out, lse = w.run(plan, shard_q(plan, rank, q), shard_kv(plan, rank, k), shard_kv(plan, rank, v))
        w.wait()
        right = reference[places]
        error = torch.linalg.norm(out.cpu().double() - right) / torch.linalg.norm(right)
        theirs = torch.linalg.norm(baseline[places].double() - right) / torch.linalg.norm(right)
        assert error <= 1.5 * max(theirs, p.dtype.rounding_unit)
        torch.testing.assert_close(lse.cpu().double(), lse_reference[:, places], atol=1e-3, rtol=0)


def milliseconds(w: SoloWorld, plan, local: list[torch.Tensor]) -> float:
    """Of one launch, on the device, after another one."""
    w.run(plan, *local)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    w.run(plan, *local)
    end.record()
    w.wait()
    return start.elapsed_time(end)


def test_a_slow_link_is_felt() -> None:
    """A launch lasts at least as long as its pulled bytes take on the modelled link."""
    p = problem((16384,))
    plan, (q, k, v, _) = zigzag(p, 4), expected(p, 0)[0]
    local = [shard_q(plan, 1, q), shard_kv(plan, 1, k), shard_kv(plan, 1, v)]
    pulled = 2 * sum(int(plan.table("transfers", 1)["rows"].sum()) * x for x in (2 * 128 * 2,))
    slow = solo(1, 4, link=LinkModel(bytes_per_s=1e9))
    slow.load_peers(plan, k, v)
    assert milliseconds(slow, plan, local) >= pulled / 1e9 * 1e3
