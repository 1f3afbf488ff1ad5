"""One process a rank over gloo, on local tensors: what several GPUs do, without any.

torchrun --nproc-per-node 4 examples/09_four_processes.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

import liquidcp_runtime
from liquidcp_compiler import PrefillProblem, plan
from liquidcp_runtime.reference import error_report
from liquidcp_runtime.sharding import position_ids, shard_kv, shard_q, unshard, unshard_lse


def main() -> None:
    dist.init_process_group("gloo")
    try:
        run(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def run(rank: int, ranks: int) -> None:
    # Every rank plans the same batch by itself; ranks with different plans get an error, not a hang.
    problem = PrefillProblem(lengths=(900, 77, 1, 300), num_heads_q=4, num_heads_kv=2, head_dim=64)
    batch = plan(problem, ranks)

    # For the check, all ranks make the same global tensors. A model makes its own part alone, at these positions:
    torch.manual_seed(0)
    q = torch.randn(problem.total_q, 4, 64).bfloat16()
    k, v = (torch.randn(problem.total_kv, 2, 64).bfloat16() for _ in "kv")
    print(f"rank {rank}: {len(position_ids(batch, rank))} tokens", flush=True)

    world = liquidcp_runtime.cpu(group=dist.group.WORLD)
    local = world.run(batch, shard_q(batch, rank, q), shard_kv(batch, rank, k), shard_kv(batch, rank, v))

    parts: list = [None] * ranks
    dist.all_gather_object(parts, local)
    out = unshard(batch, [part[0] for part in parts])
    lse = unshard_lse(batch, [part[1] for part in parts])
    report = error_report(problem, out, lse, q, k, v)
    if rank == 0:
        print(report.explain(), flush=True)
    assert report.ok()


if __name__ == "__main__":
    main()
