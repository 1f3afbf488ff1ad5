"""One rank of eight of a causal sequence, against rings and all-gathers on FlashAttention-3 in the same process.

python -m benchmarks.forward_rank --peer DIR [--sizes 65536,131072,262144] [--ranks 0,7] [--rounds 9] [--output FILE]

The peers' keys lie in this GPU's memory; every system copies them as it would pull them. Peers run eager and as CUDA
graphs; the best one counts. bf16, 32 query and 8 KV heads of 128; steady state (``timing.py``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.environment import describe, describe_gpu
from benchmarks.forward_dense import AGREEMENT, HEAD_DIM, HEADS, KV_HEADS
from benchmarks.peers.fa3 import Attention, load_fa3
from benchmarks.peers.zigzag import AllGather, RankShards, Ring
from benchmarks.timing import captured, steady_state
from liquidcp_compiler.driver import passes_for
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import LiquidCPError
from liquidcp_compiler.ir.author import author
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_runtime.link_model import LinkModel
from liquidcp_runtime.solo_world import solo

WORLD = 8
#: Ours: name -> (tau_max in units of H, link model or none).
VARIANTS: dict[str, tuple[float, LinkModel | None]] = {
    "ours": (16.0, None),
    "ours, tau_max 4 H": (4.0, None),
    "ours, link model": (16.0, LinkModel()),
}


def plan_of(size: int, max_factor: float) -> Plan:
    """Zigzag over eight ranks."""
    problem = PrefillProblem(
        lengths=(size,),
        num_heads_q=HEADS,
        num_heads_kv=KV_HEADS,
        head_dim=HEAD_DIM,
        mask={"type": "causal"},
        dtype="bf16",
    )
    chain = passes_for(author(problem), "zigzag-all")
    chosen = tuple(replace(p, max_factor=max_factor) if isinstance(p, Coalesce) else p for p in chain)
    return make_plan(problem, WORLD, passes=chosen)


def ours(
    shards: RankShards, size: int, k: torch.Tensor, v: torch.Tensor
) -> dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    """Our variants on the rank's own shards. k, v: of the whole sequence."""
    runs = {}
    for name, (max_factor, link) in VARIANTS.items():
        plan, world = plan_of(size, max_factor), solo(shards.rank, WORLD, link=link)
        world.warmup(plan)
        world.load_peers(plan, k, v)
        local = shards.q, shards.k[shards.rank].clone(), shards.v[shards.rank].clone()
        out, lse = (
            torch.full_like(shards.q, float("nan")),
            shards.q.new_empty(HEADS, len(shards.q), dtype=torch.float32),
        )
        runs[name] = lambda w=world, p=plan, t=local, o=out, s=lse: w.run(p, *t, out=o, lse=s)
    return runs


def check(name: str, result: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Raise LiquidCPError where a result is not that of the all-gather."""
    out, reference = result[0].float(), expected[0].float()
    distance = ((out - reference).norm() / reference.norm()).item()
    lse_distance = (result[1] - expected[1]).abs().max().item()
    if not (distance < AGREEMENT and lse_distance < 1e-3):
        raise LiquidCPError(f"{name}: out differs by {distance:.1e}, lse by {lse_distance:.1e}")


def row(size: int, rank: int, rounds: int, peer: Attention) -> list[str]:
    """TFLOP/s of each system, and ours over the best peer."""
    q, k, v = (
        torch.randn(size, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    shards = RankShards.cut(q, k, v, rank, WORLD)
    peers = {"ring": Ring(shards, peer), "all-gather": AllGather(shards, peer)}
    mine, expected = ours(shards, size, k, v), AllGather(shards, peer)()
    for name, run in (peers | mine).items():
        check(name, run(), expected)
    graphs = {f"{name}, graph": captured(run) for name, run in peers.items()}
    rate = {n: shards.flops / ms * 1e-9 for n, ms in steady_state(peers | graphs | mine, rounds).items()}
    best = max(rate[name] for name in (*peers, *graphs))
    cells = [f"{rate[name]:.0f}" for name in (*peers, *graphs)]
    return [str(size), str(rank), *cells, *(f"{rate[name]:.0f} ({rate[name] / best:.3f})" for name in mine)]


def main() -> None:
    """Entry of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sizes", default="65536,131072,262144")
    parser.add_argument("--ranks", default="0,7")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    peer = load_fa3(options.peer)
    heading = ["tokens", "rank", "ring", "all-gather", "ring, graph", "all-gather, graph", *VARIANTS]
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    for size in (int(x) for x in options.sizes.split(",")):
        for rank in (int(x) for x in options.ranks.split(",")):
            lines.append(f"| {' | '.join(row(size, rank, options.rounds, peer))} |")
            print(lines[-1], flush=True)
            torch.cuda.empty_cache()
    title = "# One rank of eight, one causal sequence, TFLOP/s (ratio to the best peer)"
    if options.output is not None:
        text = "\n".join([title, "", *describe(), *describe_gpu(), "", *lines, ""])
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
