"""The torch op and the worlds' promises on a GPU: current stream, no allocation, no wait of the host."""

from __future__ import annotations

import pytest
import torch

from liquidcp_compiler.errors import InvalidField, OutOfResources, TensorError, UnsupportedError
from liquidcp_runtime.handles import handle_of
from liquidcp_runtime.loopback_world import loopback
from liquidcp_runtime.ops import attention
from liquidcp_runtime.rank_tensors import RankTensors
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from tests.gpu.support import expected, hold, problem, run, world, zigzag

pytestmark = pytest.mark.gpu


def test_the_op_gives_the_worlds_result() -> None:
    p = problem((700, 129), sinks=True)
    plan, w = zigzag(p, 3, deterministic=True), world(3)
    q, k, v, sinks = expected(p, 0)[0]
    right = run(w, plan, (q, k, v, sinks))
    out, lse = torch.empty_like(q), torch.empty(8, 829, device="cuda")
    attention(w, plan, q, k, v, sinks=sinks, out=out, lse=lse)
    again = torch.ops.liquidcp.forward(q, k, v, sinks, handle_of(w), handle_of(plan))
    w.wait()
    for mine, other in ((out, lse), again):
        assert torch.equal(mine.cpu(), right[0])
        assert torch.equal(other.cpu(), right[1])
    torch.library.opcheck(torch.ops.liquidcp.forward.default, (q, k, v, sinks, handle_of(w), handle_of(plan)))
    with pytest.raises(UnsupportedError, match="gradient|backward"):
        attention(w, plan, q.clone().requires_grad_(), k, v, sinks=sinks)


def test_a_compiled_program_gives_the_same() -> None:
    p = problem((700, 129))
    plan, w = zigzag(p, 3, deterministic=True), world(3)
    q, k, v, _ = expected(p, 0)[0]
    world_handle, plan_handle = handle_of(w), handle_of(plan)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = attention(world_handle, plan_handle, q * 1.0, k, v)
        return out.float() + lse.T[..., None]

    out, lse = run(w, plan, (q, k, v, None))
    assert torch.equal(layer(q, k, v).cpu(), out.float() + lse.T[..., None])


def test_it_runs_on_the_current_stream_behind_what_is_there() -> None:
    """The inputs are written late, by work that is in the stream before the launch."""
    p = problem((2048,))
    plan, w = zigzag(p, 4), world(4)
    given = expected(p, 0)[0]
    q, k, v = (torch.full_like(x, float("nan")) for x in given[:3])
    w.warmup([plan])
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for late, x in zip((q, k, v), given[:3], strict=True):
            late.copy_(x)
        out, lse = w.run(plan, q, k, v)
    w.wait()
    hold(p, 0, out.cpu(), lse.cpu())


def local_tensors(plan, world_size: int, seed: int = 0) -> list[RankTensors]:
    q, k, v, _ = expected(plan.problem, seed)[0]
    made = []
    for rank in range(world_size):
        local = shard_q(plan, rank, q)
        lse = local.new_empty(local.shape[1::-1], dtype=torch.float32)
        made.append(
            RankTensors(
                q=local, k=shard_kv(plan, rank, k), v=shard_kv(plan, rank, v), out=torch.empty_like(local), lse=lse
            )
        )
    return made


def test_a_warm_launch_allocates_nothing_and_waits_for_nothing() -> None:
    p = problem((4096, 300))
    plan, w = zigzag(p, 4), loopback(4)
    tensors = local_tensors(plan, 4)
    w.warmup([plan])
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            w.run_local(plan, tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    w.wait()
    out, lse = unshard(plan, [x.out for x in tensors]), unshard_lse(plan, [x.lse for x in tensors])
    hold(p, 0, out.cpu(), lse.cpu())


def test_warmup_counts_kernels_once() -> None:
    w = loopback(2)
    plans = [zigzag(problem((n,)), 2) for n in (1, 100, 5000)]
    w.warmup(plans)
    counts = w.kernels.counts
    assert counts.compiled + counts.from_disk + counts.from_bundle == 1


def test_a_heap_of_fixed_size() -> None:
    small, large = zigzag(problem((1000,)), 2), zigzag(problem((100_000,)), 2)
    w = loopback(2, heap_bytes=4 << 20)
    q, k, v, _ = expected(small.problem, 0)[0]  # type: ignore[arg-type]
    hold(small.problem, 0, *run(w, small, (q, k, v, None)))  # type: ignore[arg-type]
    with pytest.raises(OutOfResources, match="^heap_bytes: "):
        w.warmup([large])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda x: x[:, :, ::2], "q: strides"),
        (lambda x: torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape), "q: address"),
        (lambda x: x.cpu(), "q: device"),
        (lambda x: x.float(), "q: dtype"),
        (lambda x: x[:-1], "q: shape"),
    ],
)
def test_local_tensors_that_kernels_cannot_read_are_refused(change, named: str) -> None:
    plan = zigzag(problem((300,), head_dim=128), 1)
    (tensors,) = local_tensors(plan, 1)
    wide = torch.empty(300, 8, 256, dtype=torch.bfloat16, device="cuda") if "strides" in named else tensors.q
    bad = RankTensors(q=change(wide), k=tensors.k, v=tensors.v, out=tensors.out, lse=tensors.lse)
    with pytest.raises(TensorError, match=f"^{named}"):
        world(1).run_local(plan, [bad])


def test_options_that_make_no_sense_are_refused() -> None:
    for options in ({"num_comm_ctas": 0}, {"wait_budget": 0}, {"sm_margin": -1}):
        with pytest.raises(InvalidField):
            loopback(2, **options)
    with pytest.raises(InvalidField, match="world_size"):
        loopback(9)
    with pytest.raises(InvalidField, match="device"):
        loopback(2, device="cpu")
