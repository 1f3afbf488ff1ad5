"""The generated kernel on one GPU: all ranks in one launch, against float64 and against the CPU interpreter.

python3 -m pytest tests/gpu -m "gpu and not long" -q -x
"""

from __future__ import annotations

import pytest
import torch

from liquidcp_compiler.errors import TensorError
from liquidcp_compiler.ir.layout import Formation
from liquidcp_compiler.ir.problem import DType
from liquidcp_runtime.cpu_world import cpu
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from tests.gpu.support import (
    LSE_TOLERANCE,
    MASKS,
    WORLD_SIZES,
    check,
    expected,
    hold,
    inputs,
    problem,
    run,
    world,
    zigzag,
)

pytestmark = pytest.mark.gpu

LENGTHS = [(0,), (1,), (100,), (127,), (128,), (129,), (1000,), (4096,), (300, 0, 17, 1025)]
#: GQA ratios 1, 4, 5, 7, 8, 16.
HEADS = [(4, 4), (8, 2), (5, 1), (7, 1), (8, 1), (16, 1)]
MIXED = (300, 0, 17, 1025)


@pytest.mark.parametrize("heads", HEADS, ids=lambda h: f"heads{h[0]}_{h[1]}")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda x: "_".join(map(str, x)))
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_matches_float64(world_size: int, lengths: tuple[int, ...], mask: str, heads: tuple[int, int]) -> None:
    if mask == "shared_prefix" and lengths == (0,):
        lengths = (2,)  # a prefix is at least one token of the first document
    check(world(world_size), zigzag(problem(lengths, heads, mask), world_size))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_matches_the_interpreter(world_size: int, mask: str, deterministic: bool) -> None:
    p = problem(MIXED, mask=mask)
    plan = zigzag(p, world_size, deterministic=deterministic)
    out, lse = check(world(world_size), plan)
    cpu_out, cpu_lse = cpu(world_size).run(plan, *(x.cpu() for x in inputs(p)[:3]))
    distance = torch.linalg.norm((out - cpu_out).double()) / torch.linalg.norm(cpu_out.double())
    assert distance <= p.dtype.rounding_unit
    torch.testing.assert_close(lse, cpu_lse, atol=LSE_TOLERANCE, rtol=0.0)


@pytest.mark.parametrize(
    ("lengths", "kv_lengths", "mask"),
    [
        ((300,), (1000,), "causal"),
        ((128, 77), (4096, 500), "full"),
        ((400, 5), (100, 0), "full"),
        ((300,), (1000,), "sliding_window"),
        ((0, 130, 0), (0, 130, 0), "causal"),
        ((300,), (200,), "causal"),
    ],
)
def test_keys_and_queries_of_different_lengths(
    lengths: tuple[int, ...], kv_lengths: tuple[int, ...], mask: str
) -> None:
    check(world(4), zigzag(problem(lengths, mask=mask, kv_lengths=kv_lengths), 4))


@pytest.mark.parametrize("head_dim", range(64, 257, 16))
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
@pytest.mark.parametrize("mask", ["causal", "document"])
def test_every_head_dim(mask: str, dtype: DType, head_dim: int) -> None:
    check(world(3), zigzag(problem((1000, 129), mask=mask, dtype=dtype, head_dim=head_dim), 3))


@pytest.mark.parametrize("fields", [{"softcap": 2.0}, {"sinks": True}, {"softcap": 30.0, "sinks": True}], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_softcap_and_sinks(mask: str, fields: dict) -> None:
    check(world(4), zigzag(problem(MIXED, mask=mask, **fields), 4))


def test_other_scales() -> None:
    check(world(4), zigzag(problem((1000, 129), softmax_scale=0.5), 4))


@pytest.mark.parametrize("mask", ["causal", "shared_prefix"])
def test_deterministic_plans_give_the_same_bits(mask: str) -> None:
    plan = zigzag(problem((1025, 300), mask=mask), 4, deterministic=True)
    assert (plan.tables["rows"]["formation"] == Formation.STATIC).all()
    first, second = check(world(4), plan), check(world(4), plan)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("num_comm_ctas", [1, 3, 1000])
def test_any_number_of_comm_ctas(num_comm_ctas: int) -> None:
    check(world(4, num_comm_ctas=num_comm_ctas), zigzag(problem((2048, 129)), 4))


def strided(x: torch.Tensor, how: str) -> torch.Tensor:
    """The same numbers in another order in memory."""
    if how == "heads first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.full((x.shape[0], x.shape[1] + 1, x.shape[2] + 8), float("nan"), dtype=x.dtype, device=x.device)
    view = wide[:, : x.shape[1], : x.shape[2]]
    return view.copy_(x)


@pytest.mark.parametrize("how", ["heads first", "padded"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_local_tensors_of_any_strides(world_size: int, how: str) -> None:
    p = problem((700, 129))
    plan = zigzag(p, world_size)
    q, k, v, _ = expected(p, 0)[0]
    tensors = []
    for rank in range(world_size):
        local = shard_q(plan, rank, q)
        tensors.append(
            RankTensors(
                q=strided(local, how),
                k=strided(shard_kv(plan, rank, k), how),
                v=strided(shard_kv(plan, rank, v), how),
                out=strided(torch.full_like(local, float("nan")), how),
                lse=local.new_full(local.shape[1::-1], float("nan"), dtype=torch.float32),
            )
        )
    w = world(world_size)
    w.run_local(plan, tensors)
    w.wait()
    out, lse = unshard(plan, [x.out for x in tensors]), unshard_lse(plan, [x.lse for x in tensors])
    hold(p, 0, out.cpu(), lse.cpu())


def test_tensors_that_do_not_fit_are_refused() -> None:
    plan = zigzag(problem((128,)), 2)
    q, k, v, _ = inputs(plan.problem)  # type: ignore[arg-type]
    for bad in ((q[:-1], k, v), (q, k.half(), v), (q, k, v.cpu())):
        with pytest.raises(TensorError):
            world(2).run(plan, *bad)


def test_an_expanded_value_tensor() -> None:
    """One head of values for all of them, with stride 0."""
    p = problem((513,), heads=(4, 4))
    plan = zigzag(p, 1)
    q, k, v, _ = expected(p, 0)[0]
    shared = v[:, :1].expand(-1, 4, -1)
    out, lse = run(world(1), plan, (q, k, shared.contiguous(), None))
    tensors = RankTensors(q=q, k=k, v=shared, out=torch.empty_like(q), lse=q.new_empty(4, 513, dtype=torch.float32))
    world(1).run_local(plan, [tensors])
    world(1).wait()
    assert torch.equal(tensors.out.cpu(), out)
    assert torch.equal(tensors.lse.cpu(), lse)
