"""Dense forward, as a plan of one rank, against FlashAttention-3 in the same process.

python -m benchmarks.forward_dense --peer DIR [--sizes 16384,32768,65536] [--rounds 9] [--output FILE]

DIR holds the unpacked wheel fa3-fwd 0.0.3. bf16, 32 query and 8 KV heads of 128; steady state (``timing.py``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.environment import describe, describe_gpu
from benchmarks.peers.fa3 import Attention, load_fa3
from benchmarks.timing import steady_state
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import LiquidCPError
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_runtime.solo_world import SoloWorld, solo

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
#: What is compared with the peer: name -> options of the world.
VARIANTS: dict[str, dict] = {
    "ours": {},
    "ours, no clusters": {"clusters": False},
    "ours, portable": {"path": "portable"},
}
#: Largest relative Frobenius distance of two bf16 results that are both right.
AGREEMENT = 6e-3


class Case:
    """Inputs of one size and mask, and what runs on them."""

    def __init__(self, size: int, causal: bool, peer: Attention, worlds: dict[str, SoloWorld]) -> None:
        shapes = ((size, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        self.q, self.k, self.v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
        self.size, self.causal, self._peer, self._worlds = size, causal, peer, worlds
        self._plan = make_plan(_problem(size, "causal" if causal else "full"), 1)
        self._results = {name: self._poisoned() for name in worlds}

    @property
    def flops(self) -> float:
        """4 d a query, key and head; half of that under a causal mask."""
        return 4.0 * self.size**2 * HEADS * HEAD_DIM * (0.5 if self.causal else 1.0)

    def runs(self) -> dict[str, Callable[[], object]]:
        """What is timed, by name."""
        runs: dict[str, Callable[[], object]] = {"FA3": lambda: self._peer(self.q, self.k, self.v, self.causal)}
        for name, world in self._worlds.items():
            out, lse = self._results[name]
            runs[name] = lambda w=world, o=out, s=lse: w.run(self._plan, self.q, self.k, self.v, out=o, lse=s)
        return runs

    def check(self) -> None:
        """Raise LiquidCPError where a result is not the peer's; every element was written."""
        expected, expected_lse = self._peer(self.q, self.k, self.v, self.causal)
        for name, run in self.runs().items():
            if name not in self._results:
                continue
            run()
            self._worlds[name].wait()
            out, lse = self._results[name]
            distance = ((out.float() - expected.float()).norm() / expected.float().norm()).item()
            lse_distance = (lse - expected_lse).abs().max().item()
            if not (distance < AGREEMENT and lse_distance < 1e-3):
                raise LiquidCPError(f"{name}, {self.size}: out differs by {distance:.1e}, lse by {lse_distance:.1e}")

    def _poisoned(self) -> tuple[torch.Tensor, torch.Tensor]:
        nan = float("nan")
        return torch.full_like(self.q, nan), torch.full((HEADS, self.size), nan, device="cuda")


def _problem(size: int, mask: str) -> PrefillProblem:
    return PrefillProblem(
        lengths=(size,), num_heads_q=HEADS, num_heads_kv=KV_HEADS, head_dim=HEAD_DIM, mask={"type": mask}, dtype="bf16"
    )


def table(sizes: list[int], rounds: int, peer: Attention) -> list[str]:
    """One row a size and mask: TFLOP/s of the peer, and of ours with the ratio."""
    worlds = {name: solo(0, 1, link=None, **options) for name, options in VARIANTS.items()}
    lines = [f"| tokens | mask | FA3 | {' | '.join(VARIANTS)} |", "|---" * (3 + len(VARIANTS)) + "|"]
    for size in sizes:
        for causal in (True, False):
            case = Case(size, causal, peer, worlds)
            case.check()
            rate = {name: case.flops / ms * 1e-9 for name, ms in steady_state(case.runs(), rounds).items()}
            ours = (f"{rate[name]:.0f} ({rate[name] / rate['FA3']:.3f})" for name in VARIANTS)
            lines.append(f"| {size} | {'causal' if causal else 'full'} | {rate['FA3']:.0f} | {' | '.join(ours)} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Entry of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sizes", default="16384,32768,65536")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = table([int(size) for size in options.sizes.split(",")], options.rounds, load_fa3(options.peer))
    text = "\n".join(["# Dense forward, TFLOP/s (ratio to FA3)", "", *describe(), *describe_gpu(), "", *lines, ""])
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
