"""One rank of several on the whole GPU gives that rank's part of the result."""

from __future__ import annotations

import pytest
import torch

from liquidcp_runtime.sharding import shard_kv, shard_map, shard_q
from liquidcp_runtime.solo_world import solo
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
