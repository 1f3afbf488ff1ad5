"""How long BuddyRing takes to place a batch, as batches and worlds grow, and how often small batches get the optimum.

python -m benchmarks.placement_time [--repeats N] [--optimum N] [--output FILE]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.environment import describe
from liquidcp_compiler.passes.buddy_ring import BuddyRing, warmup
from liquidcp_compiler.workloads import sample_batch

#: (tokens, ranks) of the batches from datasets' stand-ins.
BUDGETS = ((131_072, 8), (262_144, 16))
DATASETS = ("arxiv", "freelaw", "github", "pile-cc", "prolong")
#: (documents, ranks) of the growth table.
GROWTH = ((10, 8), (100, 8), (200, 16), (500, 32), (1_000, 64), (2_000, 128), (5_000, 256), (10_000, 512))


def documents(num: int, seed: int) -> list[int]:
    """Log-normal lengths of mean 1.5K and sigma 1.3, 128K at most."""
    lengths = np.exp(np.random.default_rng(seed).normal(6.5, 1.3, num)).astype(int) + 1
    return np.minimum(lengths, 1 << 17).tolist()


def milliseconds(batches: list[list[int]], world: int, placer: BuddyRing) -> np.ndarray:
    """[batch, 2]: wall time and processor time, which others on the machine disturb less. One thread does the work."""
    times = []
    for lengths in batches:
        start, used = time.perf_counter(), time.process_time()
        placer.place(lengths, world)
        times.append(((time.perf_counter() - start) * 1e3, (time.process_time() - used) * 1e3))
    return np.array(times)


def violation(lengths: list[int], world: int, placer: BuddyRing) -> float:
    """How far the loads are beyond the tolerances, as a share of the mean."""
    load = np.zeros((2, world))
    for s in placer.place(lengths, world).sequences:
        load[:, list(s.ranks)] += np.array([[s.length], [s.length * (s.length + 1) / 2]]) / max(s.degree, 1)
    deviation = np.abs(load / load.mean(1, keepdims=True) - 1).max(1)
    return max(0.0, deviation[0] - placer.token_tolerance, deviation[1] - placer.work_tolerance)


def row(label: str, batches: list[list[int]], world: int) -> list[str]:
    """A row a search: label, mean number of sequences, ranks, times, infeasible batches."""
    rows = []
    for search in ("full", "paper"):
        placer = BuddyRing(search=search)
        (p50, _), (p95, cpu) = np.percentile(milliseconds(batches, world, placer), (50, 95), axis=0)
        infeasible = sum(violation(b, world, placer) > 1e-9 for b in batches)
        num = round(np.mean([len(b) for b in batches]))
        times = f"{p50:.1f} | {p95:.1f} | {cpu:.1f}"
        rows.append(f"| {label} | {num} | {world} | {search} | {times} | {infeasible} of {len(batches)} |")
    return rows


def time_tables(repeats: int) -> list[str]:
    """Growth, then datasets, as Markdown."""
    names = ("lengths", "sequences", "ranks", "search", "p50 ms", "p95 ms", "processor p95 ms", "infeasible")
    head = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines = [*head]
    for num, world in GROWTH:
        batches = [documents(num, seed) for seed in range(max(5, min(repeats, 20_000 // num)))]
        lines += row("log-normal documents", batches, world)
    lines += ["", *head]
    for budget, world in BUDGETS:
        for name in DATASETS:
            batches = [sample_batch(name, budget, seed) for seed in range(repeats)]
            lines += row(f"{name}, {budget // 1024}K tokens", batches, world)
    return lines


def optimum_table(num: int) -> list[str]:
    """Small batches whose key is not that of the best of all legal placements (found by trying all)."""
    from tests.passes.test_buddy_ring_optimum import misses

    lines = ["| search | batches | key not the optimum | infeasible where one is feasible |", "|---|---|---|---|"]
    listed = []
    for search in ("full", "paper"):
        worse, infeasible = misses(num, seed=0, search=search)
        lines.append(f"| {search} | {num} | {len(worse)} | {len(infeasible)} |")
        listed += [f"- {search}{', infeasible' * (b in infeasible)}: {b}" for b in worse]
    return [*lines, "", *listed]


def main() -> None:
    """Prints the tables, and writes them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="batches a row (fewer where they are large)")
    parser.add_argument("--optimum", type=int, default=2000, help="small batches compared with the optimum")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    start = time.perf_counter()
    warmup()
    first = time.perf_counter() - start
    lines = ["# Placement time", "", *describe(), "", f"first placement (compiling or loading): {first:.1f} s", ""]
    lines += [*time_tables(options.repeats), "", "# Small batches against the optimum", ""]
    lines += optimum_table(options.optimum) if options.optimum else []
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
