"""Faults of other systems (docs/faults.md) on the GPU: the kernel's own part of them. Docstrings name the rows."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from liquidcp_compiler.errors import UnsupportedError
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_runtime.loopback_world import loopback
from liquidcp_runtime.rank_tensors import RankTensors
from tests.gpu.support import check, expected, inputs, problem, run, world, zigzag

pytestmark = pytest.mark.gpu


def test_parts_that_saw_nothing_merge_to_nothing() -> None:
    """fault A1, A13: rows before the first key are empty in every part of their tile."""
    p = problem((4,), kv_lengths=(2,))
    out, lse = check(world(1), zigzag(p, 1))
    assert out[:2].abs().max() == 0
    assert (lse[:, :2] == -math.inf).all()
    check(world(4), zigzag(problem((2100,), kv_lengths=(1900,)), 4))


def test_one_key_and_three_empty_ranks() -> None:
    """fault A3, L10: what lies in the empty ranks' buffers is NaN, and stays there."""
    p = problem((1,))
    out, _ = check(world(4), zigzag(p, 4))
    v = expected(p, 0)[0][2].cpu()
    assert torch.equal(out, v.repeat_interleave(p.group_size, 1))


def test_sequences_without_keys() -> None:
    """fault A5"""
    out, lse = check(world(2), zigzag(problem((3, 3), mask="full", kv_lengths=(0, 5)), 2))
    assert out[:3].abs().max() == 0
    assert (lse[:, :3] == -math.inf).all()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_scores_below_any_finite_sentinel(world_size: int) -> None:
    """fault A7: all scores are about -6e4; the answer is the mean of the values."""
    p = problem((448,), mask="full", kv_lengths=(1880,))
    q, k, v, _ = inputs(p)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], k[..., 0] = -math.sqrt(6e4 * math.sqrt(128)), math.sqrt(6e4 * math.sqrt(128))
    out, lse = run(world(world_size), zigzag(p, world_size), (q, k, v, None))
    mean = v.double().mean(0).repeat_interleave(p.group_size, 0).cpu()
    assert (out.double() - mean).abs().max() < 2e-3
    score = float(q[0, 0, 0].double() * k[0, 0, 0].double() / math.sqrt(128))
    assert (lse.double() - (score + math.log(1880))).abs().max() < 0.05  # fp32 steps of 0.004 at 6e4


def test_the_error_does_not_grow_with_the_number_of_ranks() -> None:
    """fault A9"""
    p = problem((8192,))
    reference = expected(p, 0)[1][0]
    errors = []
    for world_size in (1, 2, 4, 8):
        out, _ = check(world(world_size), zigzag(p, world_size))
        errors.append(float(torch.linalg.norm(out.double() - reference) / torch.linalg.norm(reference)))
    assert max(errors) <= 1.25 * errors[0]


def test_a_sink_counts_once() -> None:
    """fault A11"""
    p = problem((256,), sinks=True)
    q, k, v, _ = inputs(p)
    plain_out, plain_lse = run(world(2), zigzag(problem((256,)), 2), (q, k, v, None))
    out, lse = run(world(2), zigzag(p, 2), (q, k, v, torch.full((8,), 2.0, device="cuda")))
    expected_lse = torch.logaddexp(plain_lse, torch.tensor(2.0))
    torch.testing.assert_close(lse, expected_lse, atol=1e-5, rtol=0)
    scaled = plain_out.float() * torch.exp(plain_lse - expected_lse).T[..., None]
    assert (out.float() - scaled).abs().max() < 2e-2


@pytest.mark.parametrize(("lengths", "kv_lengths"), [((129,), None), ((64,), (0,))])
def test_nothing_is_written_beside_the_results(lengths: tuple[int, ...], kv_lengths: tuple[int, ...] | None) -> None:
    """fault A12, B13: rows of a last tile that do not exist touch no memory."""
    p = problem(lengths, mask="full", kv_lengths=kv_lengths)
    q, k, v, _ = inputs(p)
    pad, rows = 64, p.total_q
    out = torch.full((rows + 2 * pad, 8, 128), 7.0, dtype=torch.bfloat16, device="cuda")
    lse = torch.full((8 * rows + 2 * pad,), 7.0, device="cuda")
    tensors = RankTensors(q=q, k=k, v=v, out=out[pad : pad + rows], lse=lse[pad:-pad].view(8, rows))
    world(1).run_local(zigzag(p, 1), [tensors])
    world(1).wait()
    for canaries in (out[:pad], out[-pad:], lse[:pad], lse[-pad:]):
        assert (canaries == 7).all()
    assert torch.isfinite(tensors.out).all()


def test_lse_stays_fp32_over_many_near_ties() -> None:
    """fault A15"""
    p = problem((100,), heads=(2, 1), mask="full", kv_lengths=(65536,))
    q, k, v, _ = inputs(p)
    q *= 0.01
    _, lse = run(world(8), zigzag(p, 8), (q, k, v, None))
    scores = torch.einsum("qhd,kd->hqk", q.double(), k[:, 0].double()) / math.sqrt(128)
    assert (lse.double() - torch.logsumexp(scores, -1).cpu()).abs().max() < 1e-5


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_length(world_size: int) -> None:
    """fault B1, B24"""
    for length in range(1, 261):
        check(world(world_size), zigzag(problem((length,), heads=(2, 1)), world_size))


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_lengths_that_divide_by_nothing(mask: str) -> None:
    """fault B6, B24"""
    check(world(8), zigzag(problem((1, 1023, 512, 16, 500), mask=mask), 8))
    check(world(3), zigzag(problem((100, 193, 64 * 3 + 1), mask=mask), 3))


def test_sequences_of_length_0() -> None:
    """fault B9, B11"""
    check(world(2), zigzag(problem((0, 1, 0, 1), heads=(9, 3), mask="full", kv_lengths=(0, 3, 0, 5)), 2))
    check(world(2), zigzag(problem((0, 5), mask="full", kv_lengths=(7, 5)), 2))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_no_keys_at_all(head_dim: int) -> None:
    """fault B14"""
    check(world(2), zigzag(problem((1,), mask="full", kv_lengths=(0,), head_dim=head_dim), 2))
    out, lse = world(2).run(zigzag(problem((), head_dim=head_dim), 2), *inputs(problem((), head_dim=head_dim))[:3])
    assert out.numel() == lse.numel() == 0


@pytest.mark.parametrize("softmax_scale", [0.05, 1.0])
def test_the_scale_reaches_out_and_lse(softmax_scale: float) -> None:
    """fault C5"""
    check(world(2), zigzag(problem((500,), softmax_scale=softmax_scale), 2))


@pytest.mark.parametrize("heads", [(20, 4), (24, 4), (28, 4), (48, 4), (64, 4), (9, 3), (21, 7), (32, 1)])
def test_every_ratio_of_heads(heads: tuple[int, int]) -> None:
    """fault D1"""
    check(world(2), zigzag(problem((1, 127, 128, 129), heads=heads), 2))


def test_values_of_another_width_are_refused() -> None:
    """fault D5"""
    with pytest.raises(UnsupportedError, match="head_dim_v"):
        PrefillProblem(lengths=(100,), num_heads_q=16, num_heads_kv=4, head_dim=192, head_dim_v=128)


def test_head_dim_192() -> None:
    """fault D6"""
    check(world(2), zigzag(problem((3,), kv_lengths=(7,), head_dim=192), 2))


@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "world_size"),
    [(262145, (32, 1), 256, 1), (262145, (32, 1), 256, 2), (4_000_001, (1, 1), 64, 1), (4_000_001, (1, 1), 64, 4)],
)
def test_offsets_beyond_32_bits(tokens: int, heads: tuple[int, int], head_dim: int, world_size: int) -> None:
    """fault E1, E2, E3: more than 2^31 elements, and millions of tokens; sampled rows against float64."""
    window = {"type": "sliding_window", "left": 200, "right": 0}
    p = PrefillProblem(lengths=(tokens,), num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, mask=window)
    q, k, v, _ = inputs(p)
    w = loopback(world_size)
    out, lse = w.run(zigzag(p, world_size), q, k, v)
    w.wait()
    rows = torch.unique(torch.cat((torch.randint(0, tokens, (200,)), torch.tensor([0, 1, tokens - 1, tokens - 2]))))
    for row in rows.tolist():
        lo = max(row - 200, 0)
        keys, values = (x[lo : row + 1, 0].double() for x in (k, v))
        scores = q[row].double() @ keys.T * p.scale
        right = torch.softmax(scores, -1) @ values
        assert torch.linalg.norm(out[row].double() - right) <= 1.2e-2 * torch.linalg.norm(right)
        assert (lse[:, row].double() - torch.logsumexp(scores, -1)).abs().max() <= 1e-3
    del q, k, v, out, lse, w
    torch.cuda.empty_cache()


def test_new_lengths_need_no_new_kernel() -> None:
    """fault J13, K5"""
    w = loopback(2)
    first = w.kernel(zigzag(problem((1,)), 2).spec)
    for length in range(1, 201, 7):
        plan = zigzag(problem((length, 3 * length)), 2)
        check(w, plan)
        assert w.kernel(plan.spec) is first


_NEIGHBOUR = """
import sys, time, torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("up", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    for _ in range(20):
        y = x @ x
    torch.cuda.synchronize()
"""


def test_beside_another_process_on_the_same_gpu() -> None:
    """fault H8: time slices come and go; the results stay right."""
    neighbour = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR], stdout=subprocess.PIPE, text=True)
    try:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline().strip() == "up"
        plan = zigzag(problem((4096, 300)), 4)
        for seed in range(30):
            check(world(4), plan, seed % 3)
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_launches_on_two_streams_follow_one_another() -> None:
    """fault H10: they share the world's memory, so the second waits for the first."""
    p = problem((2048, 300))
    plan, w = zigzag(p, 4), world(4)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    given = [expected(p, seed)[0] for seed in range(2)]
    alone = [run(w, plan, tensors) for tensors in given]
    torch.cuda.synchronize()
    results = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 2]):
            q, k, v, _ = given[turn % 2]
            results.append(w.run(plan, q, k, v))
    w.wait()
    for turn, (out, lse) in enumerate(results):
        # Ready rows merge in the order of arrivals: equal to rounding, not to the bit.
        assert (out.cpu().float() - alone[turn % 2][0].float()).abs().max() < 0.05
        torch.testing.assert_close(lse.cpu(), alone[turn % 2][1], atol=1e-3, rtol=0)
