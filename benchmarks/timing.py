"""Times in steady state: attention at full load is bound by power, so the clock depends on what ran before."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping

import torch

#: Length of a timed block, and of the untimed one of the same kernel before it.
BLOCK_MS = 60.0


def steady_state(runs: Mapping[str, Callable[[], object]], rounds: int, seed: int = 1) -> dict[str, float]:
    """Median milliseconds of each of ``runs``, over ``rounds`` rounds in which they come in shuffled order.

    A run is repeated for a block of some 60 ms that is not timed, then for one that is.
    """
    repeats = {name: _repeats(run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    shuffle = random.Random(seed)
    for _ in range(rounds):
        for name in shuffle.sample(list(runs), len(runs)):
            _block(runs[name], repeats[name])
            times[name].append(_block(runs[name], repeats[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """``run`` as a CUDA graph: calling the result replays it. Side streams must join the current one again."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _repeats(run: Callable[[], object]) -> int:
    run()
    return max(1, round(BLOCK_MS / max(_block(run, 2), 1e-3)))


def _block(run: Callable[[], object], repeats: int) -> float:
    """Milliseconds a run."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats
