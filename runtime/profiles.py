"""Durations for the event core: hostile ones that sample interleavings from a seed, and a cost model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.layout import Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem_fields import one_of, positive_float, whole_number
from liquidcp_runtime.event_core import Durations
from liquidcp_runtime.event_tables import core_tables, row_q_tiles

#: name -> what it provokes
PROFILES: dict[str, str] = {
    "random": "all durations drawn independently",
    "slow-cta": "one CTA a rank is fifty times slower than the others",
    "starved-comm": "copies take far longer than computation",
    "burst": "nothing arrives for long, then everything at once",
    "late-rank": "one rank stages its inputs, and so becomes readable, late",
    "lifo": "copies in flight complete in the reverse of queue order",
}


MAX_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """What work costs, in microseconds: a first model of one GPU of eight.

    Fields:
        link_bytes_per_us: what one comm CTA pulls from a peer in a microsecond.
        link_latency_us: from asking for a tile to its first byte, signal included.
        tile_us: one 128 x 128 block of scores of one query head of width 128 on one compute CTA.
        task_us: fixed cost of a compute task (query load, merge of its state).
        reduction_us: fixed cost of a reduction.
        state_us: combining 128 rows of one head of one state.

    Raises InvalidField for a time below 0, a bandwidth of 0, and what is not finite.
    """

    link_bytes_per_us: float = 45_000.0
    link_latency_us: float = 2.0
    tile_us: float = 1.6
    task_us: float = 3.0
    reduction_us: float = 1.0
    state_us: float = 0.1

    def __post_init__(self) -> None:
        positive_float("link_bytes_per_us", self.link_bytes_per_us)
        for name in ("link_latency_us", "tile_us", "task_us", "reduction_us", "state_us"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InvalidField(name, value, "microseconds, a finite number >= 0")


def hostile_durations(plan: Plan, profile: str, seed: int, num_comm: int, num_compute: int) -> Durations:
    """Durations of a profile (see :data:`PROFILES`), reproducible from ``seed``; the unit is arbitrary.

    Raises InvalidField for an unknown profile, and for a seed that is no whole number from 0 to ``MAX_SEED``.
    """
    one_of("profile", profile, PROFILES)
    seed = whole_number("seed", seed, 0, MAX_SEED)
    rng = np.random.default_rng(seed)
    num_transfers, num_ctas = len(plan.tables["transfers"]), num_comm + num_compute
    transfer = rng.exponential(1.0, num_transfers)
    not_before = np.zeros(num_transfers)
    slowdown = np.ones(plan.world * num_ctas)
    rank_ready = rng.uniform(0.0, 2.0, plan.world)
    if profile == "slow-cta":
        slowdown[np.arange(plan.world) * num_ctas + rng.integers(num_ctas, size=plan.world)] = 50.0
    elif profile == "starved-comm":
        transfer *= 100.0
    elif profile == "burst":
        transfer *= 1e-3
        not_before[:] = 1e3
    elif profile == "late-rank" and plan.world:
        rank_ready[rng.integers(plan.world)] = 1e3
    elif profile == "lifo":
        transfer = 0.1 * transfer + (num_comm - 1 - _queue_index(plan) % num_comm) * 3.0
    return Durations(
        transfer=transfer,
        transfer_not_before=not_before,
        row_per_tile=rng.uniform(0.1, 1.0, len(plan.tables["rows"])),
        row_overhead=rng.exponential(0.5, len(plan.tables["rows"])),
        reduction=rng.exponential(0.5, len(plan.tables["reductions"])),
        cta_start=rng.uniform(0.0, 3.0, len(slowdown)),
        cta_slowdown=slowdown * rng.uniform(0.5, 2.0, len(slowdown)),
        rank_ready=rank_ready,
    )


def model_durations(plan: Plan, cost: CostModel, num_comm: int, num_compute: int) -> Durations:
    """Durations in microseconds under a cost model."""
    p = plan.problem
    q_rows = _rows_by_heads(plan)
    head_blocks = q_rows / 128.0 * (p.head_dim / 128.0)
    tables = core_tables(plan)
    row, _, q = row_q_tiles(tables)
    rows, reductions = plan.tables["rows"], plan.tables["reductions"]
    work = np.bincount(row, head_blocks[q], minlength=len(rows))
    rows_reduced = head_blocks[tables.reduction_q_tile]
    num_ctas = plan.world * (num_comm + num_compute)
    return Durations(
        transfer=cost.link_latency_us + transfer_bytes(plan) / cost.link_bytes_per_us,
        transfer_not_before=np.zeros(len(plan.tables["transfers"])),
        row_per_tile=work * cost.tile_us * (plan.tile / 128.0),
        row_overhead=np.full(len(rows), cost.task_us),
        reduction=cost.reduction_us + cost.state_us * rows_reduced * reductions["num_states"],
        cta_start=np.zeros(num_ctas),
        cta_slowdown=np.ones(num_ctas),
        rank_ready=np.zeros(plan.world),
    )


def transfer_bytes(plan: Plan) -> np.ndarray:
    """float64 [transfers]: bytes that each transfer moves."""
    p, transfers = plan.problem, plan.tables["transfers"]
    rank = np.repeat(np.arange(plan.world), np.diff(plan.offsets["transfers"]))
    size = np.zeros(len(transfers))
    kv = transfers["space"] == Space.KV
    kv_tile = plan.offsets["kv_tiles"][rank[kv]] + transfers["target"][kv]
    size[kv] = plan.tables["kv_tiles"]["rows"][kv_tile] * (2.0 * p.num_heads_kv * p.head_dim * p.dtype.bytes)
    q_rows = _rows_by_heads(plan)
    q = transfers["space"] == Space.Q
    size[q] = q_rows[plan.offsets["q_tiles"][rank[q]] + transfers["target"][q]] * (p.head_dim * p.dtype.bytes)
    state = transfers["space"] == Space.STATE
    state_row = plan.offsets["states"][rank[state]] + transfers["target"][state]
    q_tile = plan.offsets["q_tiles"][rank[state]] + plan.tables["states"]["q_tile"][state_row]
    element = getattr(p, "exchange_dtype", None)
    size[state] = q_rows[q_tile] * (p.head_dim * (element.bytes if element else 4) + 4.0)
    return size


def _rows_by_heads(plan: Plan) -> np.ndarray:
    q_tiles = plan.tables["q_tiles"]
    return q_tiles["rows"].astype(np.float64) * q_tiles["num_heads"]


def _queue_index(plan: Plan) -> np.ndarray:
    """Place of each transfer in its rank's queue."""
    offsets = plan.offsets["transfers"]
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
