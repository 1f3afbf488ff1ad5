"""The generated kernel on one GPU: all ranks in one launch, against float64 and against the CPU interpreter.

python3 -m pytest tests/gpu -m gpu -q -x
"""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import DeviceWaitError, PlanError, PlanMismatchError, TensorError
from liquidcp_compiler.ir.layout import HEADER, TRANSFER, Formation
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import DType, PrefillProblem
from liquidcp_runtime.cpu_world import cpu
from liquidcp_runtime.loopback_world import LoopbackWorld, loopback
from liquidcp_runtime.reference import error_report, reference_attention, sdpa_baseline

pytestmark = pytest.mark.gpu

LENGTHS = [(1,), (100,), (127,), (128,), (129,), (1000,), (4096,), (300, 17, 1025)]
HEADS = [(8, 2), (4, 4), (7, 1)]
LSE_TOLERANCE = 1e-3
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def problem(
    lengths: tuple[int, ...], heads: tuple[int, int] = (8, 2), mask: str = "causal", **fields
) -> PrefillProblem:
    return PrefillProblem(lengths=lengths, num_heads_q=heads[0], num_heads_kv=heads[1], mask={"type": mask}, **fields)


def inputs(p: PrefillProblem, seed: int = 0) -> Tensors:
    """Random q, k, v on the CPU, of the problem's dtype."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (p.total_q, p.num_heads_q), (p.total_kv, p.num_heads_kv), (p.total_kv, p.num_heads_kv)
    q, k, v = (torch.randn(*s, p.head_dim, generator=generator).to(p.dtype.torch) for s in shapes)
    return q, k, v


@cache
def expected(p: PrefillProblem, seed: int) -> tuple[Tensors, tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """(inputs, float64 reference, SDPA's result): the same for any number of ranks."""
    q, k, v = inputs(p, seed)
    return (q, k, v), reference_attention(p, q, k, v), sdpa_baseline(p, q, k, v)


@cache
def world(world_size: int) -> LoopbackWorld:
    return loopback(world_size)


def run(w: LoopbackWorld, plan: Plan, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = w.run(plan, *(x.cuda() for x in tensors))
    return out.cpu(), lse.cpu()


def check(w: LoopbackWorld, plan: Plan, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Run and compare with float64; returns (out, lse)."""
    tensors, reference, baseline = expected(plan.problem, seed)
    out, lse = run(w, plan, tensors)
    report = error_report(plan.problem, out, lse, *tensors, reference=reference, baseline=baseline)
    assert report.ok(LSE_TOLERANCE), report.explain(LSE_TOLERANCE)
    return out, lse


@pytest.mark.parametrize("heads", HEADS, ids=lambda h: f"heads{h[0]}_{h[1]}")
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda x: "_".join(map(str, x)))
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_matches_float64(world_size: int, lengths: tuple[int, ...], mask: str, heads: tuple[int, int]) -> None:
    p = problem(lengths, heads, mask)
    check(world(world_size), make_plan(p, cp_size=world_size, placement="zigzag-all"))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_matches_the_interpreter(world_size: int, mask: str, deterministic: bool) -> None:
    p = problem((300, 17, 1025), mask=mask)
    plan = make_plan(p, cp_size=world_size, placement="zigzag-all", deterministic=deterministic)
    out, lse = check(world(world_size), plan)
    cpu_out, cpu_lse = cpu(world_size).run(plan, *inputs(p))
    distance = torch.linalg.norm((out - cpu_out).double()) / torch.linalg.norm(cpu_out.double())
    assert distance <= p.dtype.rounding_unit
    torch.testing.assert_close(lse, cpu_lse, atol=LSE_TOLERANCE, rtol=0.0)


@pytest.mark.parametrize(
    ("lengths", "kv_lengths", "mask"),
    [
        ((300,), (1000,), "causal"),
        ((128, 77), (4096, 500), "full"),
        ((400, 5), (100, 0), "full"),
        ((0, 130, 0), (0, 130, 0), "causal"),
        ((300,), (200,), "causal"),
    ],
)
def test_keys_and_queries_of_different_lengths(
    lengths: tuple[int, ...], kv_lengths: tuple[int, ...], mask: str
) -> None:
    p = problem(lengths, mask=mask, kv_lengths=kv_lengths)
    check(world(4), make_plan(p, cp_size=4, placement="zigzag-all"))


@pytest.mark.parametrize("fields", [{"dtype": DType.FP16}, {"head_dim": 64}, {"softmax_scale": 0.5}], ids=str)
def test_other_kernels_and_scales(fields: dict) -> None:
    p = problem((1000, 129), **fields)
    check(world(4), make_plan(p, cp_size=4, placement="zigzag-all"))


def test_deterministic_plans_give_the_same_bits() -> None:
    plan = make_plan(problem((1025, 300)), cp_size=4, placement="zigzag-all", deterministic=True)
    assert (plan.tables["rows"]["formation"] == Formation.STATIC).all()
    first, second = check(world(4), plan), check(world(4), plan)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_back_to_back_launches_with_changing_inputs() -> None:
    plan = make_plan(problem((300, 17, 1025)), cp_size=4, placement="zigzag-all")
    for seed in range(20):
        check(world(4), plan, seed)
    epoch, abort, exits = world(4).device_plan(plan).control.tolist()
    assert (epoch, abort, exits) == (21, 0, 0)


@pytest.mark.parametrize("num_comm_ctas", [1, 3, 1000])
def test_any_number_of_comm_ctas(num_comm_ctas: int) -> None:
    plan = make_plan(problem((2048, 129)), cp_size=4, placement="zigzag-all")
    check(loopback(4, num_comm_ctas=num_comm_ctas), plan)


def test_a_transfer_that_never_publishes_is_named() -> None:
    w = loopback(4, wait_budget=0.3)
    plan = make_plan(problem((2048,)), cp_size=4, placement="zigzag-all")
    blob, place = w.device_plan(plan).ranks[1].blob, transfer_field(plan, 1, -1, "space")
    saved = blob[place].clone()
    blob[place] = 0  # nothing: the comm CTA takes it and goes on
    with pytest.raises(DeviceWaitError, match=r"^rank 1, CTA \d+ \((comm|compute)\), %\d+ (compute|transfer) .*prefix"):
        run(w, plan, inputs(plan.problem))
    blob[place] = saved
    for seed in range(3):
        check(w, plan, seed)


def test_a_static_row_that_waits_for_ever_is_named() -> None:
    w = loopback(2, wait_budget=0.3)
    plan = make_plan(problem((1024,)), cp_size=2, placement="zigzag-all", deterministic=True)
    transfers = plan.tables["transfers"].copy()
    transfers["space"][0] = 0
    broken = dataclasses.replace(plan, tables={**plan.tables, "transfers": transfers})
    tile = plan.table("kv_tiles", 0)["tile"][transfers["target"][0]]
    with pytest.raises(
        DeviceWaitError,
        match=rf"^rank 0, CTA \d+ \(compute\), %\d+ compute @0 .*TILE kv {tile}\) of rank 0: expected 1",
    ):
        run(w, broken, inputs(plan.problem))
    check(w, plan)


@pytest.mark.parametrize(("field", "error"), [("layout_hash", PlanError), ("fingerprint", PlanMismatchError)])
def test_a_plan_of_another_kind_is_refused(field: str, error: type[Exception]) -> None:
    w = loopback(2)
    plan = make_plan(problem((1024,)), cp_size=2, placement="zigzag-all")
    blob, place = w.device_plan(plan).ranks[1].blob, header_field(field)
    blob[place] ^= 1
    with pytest.raises(error, match="^rank 1"):
        run(w, plan, inputs(plan.problem))
    blob[place] ^= 1
    check(w, plan)


def test_tensors_that_do_not_fit_are_refused() -> None:
    plan = make_plan(problem((128,)), cp_size=2, placement="zigzag-all")
    q, k, v = (x.cuda() for x in inputs(plan.problem))
    for bad in ((q[:-1], k, v), (q, k.half(), v), (q, k, v.cpu())):
        with pytest.raises(TensorError):
            world(2).run(plan, *bad)


def transfer_field(plan: Plan, rank: int, index: int, field: str) -> slice:
    """Bytes of one transfer's field in a rank's blob."""
    header = np.frombuffer(plan.blob(rank)[: HEADER.size], HEADER.dtype)
    row = int(header["transfers_offset"][0]) + range(len(plan.table("transfers", rank)))[index] * TRANSFER.size
    kind, offset = TRANSFER.dtype.fields[field][:2]
    return slice(row + offset, row + offset + kind.itemsize)


def header_field(field: str) -> slice:
    """Bytes of a header's field in a rank's blob."""
    kind, offset = HEADER.dtype.fields[field][:2]
    return slice(offset, offset + kind.itemsize)
