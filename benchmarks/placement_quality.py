"""How well placements balance: imbalance, tolerances met, shards and communication on sampled batches.

python -m benchmarks.placement_quality [--output benchmarks/results/placement_quality.md]

The batches come from liquidcp_compiler.workloads. Their mean lengths are published (but for ProLong's); their spreads
are ours, so figures compare placements with each other and not with those of a paper.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.environment import describe
from liquidcp_compiler.driver import PLACEMENTS
from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.passes.placement import Placer
from liquidcp_compiler.placement_report import PlacementReport
from liquidcp_compiler.workloads import DATASETS, sample_batch

SCHEMES = ("buddy-ring", "megatron-hybrid", "zeppelin", "all-local", "magi-chunks")
BUDGETS = (65536, 131072, 262144)
#: What a scheme's batches come to in a cell of the table.
COLUMNS = "D_T / D_W in percent, batches that meet 10 % and 5 %"

NOTES = (
    "Means over the batches of each dataset and size. Nominal loads: L / g tokens and L (L + 1) / 2g pairs a rank.",
    "The samplers' spreads are ours (only mean lengths are published, and ProLong's not even those): the figures",
    "compare placements on equal batches, and are not comparable with published ones to the digit. `zeppelin` is our",
    "reading of its paper.",
    "A batch that a scheme refuses counts as not met and is left out of its means; `refused` says how many.",
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Means of one scheme over batches; ``met`` of ``count`` batches meet both tolerances."""

    token_imbalance: float
    work_imbalance: float
    shards: float
    comm_tokens: float
    seconds: float
    met: int
    refused: int
    count: int


def summarize(scheme: str, batches: Sequence[list[int]], world: int) -> Summary:
    """Places every batch."""
    placer: Placer = PLACEMENTS[scheme]()
    rows, seconds = [], []
    for lengths in batches:
        start = time.perf_counter()
        try:
            report = PlacementReport(placement=placer.place(lengths, world))
        except InvalidField:
            continue
        seconds.append(time.perf_counter() - start)
        loads = (report.token_imbalance, report.work_imbalance)
        rows.append((*loads, report.num_shards, report.comm_tokens, report.violation == 0))
    means = np.mean(rows, axis=0) if rows else np.full(5, np.nan)
    return Summary(
        token_imbalance=means[0],
        work_imbalance=means[1],
        shards=means[2],
        comm_tokens=means[3],
        seconds=float(np.median(seconds)) if seconds else np.nan,
        met=sum(row[4] for row in rows),
        refused=len(batches) - len(rows),
        count=len(batches),
    )


def table(results: dict[tuple[str, int], dict[str, Summary]], schemes: Sequence[str]) -> Iterator[str]:
    """A row a dataset and size, a column a scheme."""
    yield "| dataset | tokens | " + " | ".join(schemes) + " |"
    yield "|---" * (2 + len(schemes)) + "|"
    for (dataset, budget), by_scheme in results.items():
        cells = [imbalance_cell(by_scheme[s]) for s in schemes]
        yield f"| {dataset} | {budget // 1024}K | " + " | ".join(cells) + " |"


def imbalance_cell(s: Summary) -> str:
    """``6.4 / 4.3, 20/20``."""
    refused = f" ({s.refused} refused)" if s.refused else ""
    return f"{s.token_imbalance:.1f} / {s.work_imbalance:.1f}, {s.met}/{s.count}{refused}"


def cost_table(results: dict[tuple[str, int], dict[str, Summary]], schemes: Sequence[str]) -> Iterator[str]:
    """Shards, communication proxy and time to place: means over all datasets of a size."""
    yield "| tokens | " + " | ".join(schemes) + " |"
    yield "|---" * (1 + len(schemes)) + "|"
    for budget in sorted({b for _, b in results}):
        cells = []
        for scheme in schemes:
            found = [by[scheme] for (_, b), by in results.items() if b == budget]
            shards, comm = (np.nanmean([getattr(s, name) for s in found]) for name in ("shards", "comm_tokens"))
            slowest = np.nanmax([s.seconds for s in found])
            cells.append(f"{shards:.0f}, {comm / 1024:.0f}K, {slowest * 1e3:.1f} ms")
        yield f"| {budget // 1024}K | " + " | ".join(cells) + " |"


def run(num_batches: int, world: int, schemes: Sequence[str]) -> list[str]:
    """The result as Markdown."""
    results: dict[tuple[str, int], dict[str, Summary]] = {}
    for scheme in schemes:
        summarize(scheme, [sample_batch("freelaw", BUDGETS[0], 0)], world)  # compiles what is compiled on first use
    for dataset in DATASETS:
        for budget in BUDGETS:
            batches = [sample_batch(dataset, budget, seed) for seed in range(num_batches)]
            results[dataset, budget] = {s: summarize(s, batches, world) for s in schemes}
    met = {s: sum(by[s].met for by in results.values()) for s in schemes}
    total = num_batches * len(results)
    lines = [
        f"# Placement quality: {num_batches} batches of each dataset and size on {world} ranks",
        "",
        *describe(),
        "",
    ]
    lines += [*NOTES, "", f"{COLUMNS}:", "", *table(results, schemes), ""]
    lines += ["Within both tolerances: " + ", ".join(f"{s} {n} of {total}" for s, n in met.items()) + ".", ""]
    lines += ["Shards, communication proxy in tokens, and the median time to place (of the slowest dataset):", ""]
    return [*lines, *cost_table(results, schemes)]


def main() -> None:
    """Prints the tables, and writes them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, choices=list(PLACEMENTS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    text = "\n".join(run(options.batches, options.world, options.schemes)) + "\n"
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text)


if __name__ == "__main__":
    main()
