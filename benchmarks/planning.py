"""How long planning takes, and how much memory: build, passes and lowering, without and with verification.

python -m benchmarks.planning [--output FILE]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.environment import describe
from liquidcp_compiler.driver import compile_plan
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem, Request


def prefill_256k() -> Problem:
    """One causal sequence of 256K tokens, 32 query and 8 KV heads of 128."""
    return PrefillProblem(lengths=[262144], num_heads_q=32, num_heads_kv=8)


def mixed_decode(num_requests: int = 64, chunk: int = 2048) -> Problem:
    """Decode requests of 16 query tokens with histories of 1K to 40K, and one prefill chunk on a 4K history."""
    histories = np.random.default_rng(0).integers(1000, 40000, num_requests - 1)
    requests = [Request(history=int(h), query=16) for h in histories] + [Request(history=4096, query=chunk)]
    return DecodeProblem(requests=requests, num_heads_q=32, num_heads_kv=1)


CASES: tuple[tuple[str, Callable[[], Problem], int], ...] = (
    ("prefill 256K causal", prefill_256k, 8),
    ("mixed decode, 64 requests, 2K chunk", mixed_decode, 2),
    ("mixed decode, 64 requests, 2K chunk", mixed_decode, 4),
    ("mixed decode, 64 requests, 2K chunk", mixed_decode, 8),
    ("mixed decode, 64 requests, 512-token chunk", lambda: mixed_decode(chunk=512), 8),
    ("decode, 64 requests", lambda: mixed_decode(chunk=16), 8),
)


def seconds(make: Callable[[], Problem], world: int, verify: str, repeats: int) -> tuple[float, float]:
    """(median, 95th percentile) of planning from the problem's fields to the packed plan."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        compile_plan(make(), world, verify=verify)
        times.append(time.perf_counter() - start)
    return statistics.median(times), sorted(times)[int(0.95 * (len(times) - 1))]


def table(repeats: int) -> list[str]:
    """The result as Markdown rows."""
    rows = ["| batch | ranks | tasks | verify | median ms | p95 ms |", "|---|---|---|---|---|---|"]
    for name, make, world in CASES:
        counts = compile_plan(make(), world, verify="off").plan.counts()
        tasks = counts["transfers"] + counts["compute rows"] + counts["reductions"]
        for verify in ("off", "final", "each"):
            median, p95 = seconds(make, world, verify, repeats)
            rows.append(f"| {name} | {world} | {tasks} | {verify} | {median * 1e3:.1f} | {p95 * 1e3:.1f} |")
    return rows


def main() -> None:
    """Prints the table, and writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    compile_plan(prefill_256k(), 8, verify="each")
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    lines = ["# Planning time", "", *describe(), ""]
    lines += [f"peak memory of planning 256K on 8 ranks, above imports: {memory:.0f} MB", "", *table(options.repeats)]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
