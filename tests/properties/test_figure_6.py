"""The moment t* of figure 6 of the paper: what a CTA claims when tiles of two peers have arrived out of order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.event_core import COMPUTE, LAND, REDUCE, Durations
from liquidcp_runtime.interpreter import interpret
from liquidcp_runtime.plan_view import rank_view
from liquidcp_runtime.scheduling import Schedule, schedule_of
from liquidcp_runtime.sharding import shard_kv, shard_q, unshard, unshard_lse
from tests.numerics import compiled, prefill, random_inputs, report

TILE, WORLD, RANK = 32, 4, 1
NUM_COMM, NUM_COMPUTE = 2, 2
#: KV tile -> how long rank 1 copies it. Its comm CTAs take 0, 2, 3, 5, 4 in turn; 2 is on its way for long.
COPY = {0: 1.0, 2: 20.0, 3: 1.0, 5: 8.0, 4: 4.0}
#: query tile -> time for one KV tile. Q_b's own two tiles are done at 6, which is t*.
PER_TILE = {1: 4.0, 6: 3.0}


def figure_6() -> tuple[Plan, Schedule]:
    """Eight KV tiles zigzag over four ranks; rank g owns tiles g and 7 - g. Rank 1 has Q_a = q 1 and Q_b = q 6."""
    plan = compiled(prefill(8 * TILE), WORLD, tile=TILE).plan
    num_ctas = WORLD * (NUM_COMM + NUM_COMPUTE)
    durations = Durations(
        transfer=np.ones(len(plan.tables["transfers"])),
        transfer_not_before=np.zeros(len(plan.tables["transfers"])),
        row_per_tile=np.ones(len(plan.tables["rows"])),
        row_overhead=np.zeros(len(plan.tables["rows"])),
        reduction=np.zeros(len(plan.tables["reductions"])),
        cta_start=np.zeros(num_ctas),
        cta_slowdown=np.ones(num_ctas),
        rank_ready=np.zeros(WORLD),
    )
    view = rank_view(plan, RANK)
    for i, transfer in enumerate(view.transfers):
        durations.transfer[plan.offsets["transfers"][RANK] + i] = COPY[view.kv_tiles[transfer.target].tile]
    for i, row in enumerate(view.rows):
        q = view.q_tiles[view.q_list[row.q_lo]].tile
        durations.row_per_tile[plan.offsets["rows"][RANK] + i] = PER_TILE[q]
    return plan, schedule_of(plan, durations, NUM_COMM, NUM_COMPUTE)


def logical_order(plan: Plan, events: Schedule, row_idx: int) -> list[int]:
    """KV tiles of a row in its logical order: own ones, then arrivals as they were published."""
    view = rank_view(plan, RANK)
    row = view.rows[row_idx]
    arrived = [view.transfers[i].target for i in events.of(LAND, RANK)["index"]]
    order = [*range(row.local_lo, row.local_hi), *arrived[: row.num_arrivals]]
    return [view.kv_tiles[i].tile for i in order]


def timeline(plan: Plan, events: Schedule) -> str:
    """Rank 1's events in order of completion, one a line."""
    lines = [f"rank {RANK}, figure 6: cta, begin to end, task"]
    for e in events.events[events.events["rank"] == RANK]:
        table = {LAND: "transfers", COMPUTE: "rows", REDUCE: "reductions"}[int(e["kind"])]
        task = plan.task_name(RANK, table, int(e["index"]))
        lo, hi = int(e["lo"]), int(e["hi"])
        if e["kind"] == COMPUTE:
            tiles = ", ".join(f"kv {t}" for t in logical_order(plan, events, int(e["index"]))[lo:hi])
            task += f" [{lo}, {hi}) = {tiles}"
        else:
            task += f", arrival {lo}"
        lines.append(f"{e['cta']}  {e['begin']:4g} to {e['time']:4g}  {task}")
    return "\n".join(lines) + "\n"


def test_the_claim_at_t_star(golden: Callable[[str, str], None]) -> None:
    plan, events = figure_6()
    row_b = next(i for i, r in enumerate(rank_view(plan, RANK).rows) if r.num_kv_tiles == 7)
    row = rank_view(plan, RANK).rows[row_b]
    assert (row.tau_min, row.tau_max) == (1, 4)
    claims = events.of(COMPUTE, RANK)
    claims = claims[claims["index"] == row_b]
    first, second = np.sort(claims, order="lo")[:2]
    assert (first["lo"], first["hi"]) == (0, 2), "own tiles 1 and 6 first: C = 2"
    assert second["claim"] == 6.0
    arrived = events.of(LAND, RANK)
    assert (arrived["time"] <= second["claim"]).sum() == 2, "R = 4 at t*"
    assert (second["lo"], second["hi"]) == (2, 4)
    assert logical_order(plan, events, row_b)[:4] == [1, 6, 0, 3], "kv 0 of rank 0 and kv 3 of rank 3 in one task"
    golden("rank-1.txt", timeline(plan, events))


def test_the_numbers_of_this_schedule_are_right() -> None:
    plan, events = figure_6()
    given = random_inputs(plan.problem)
    q = [shard_q(plan, r, given.q) for r in range(WORLD)]
    k, v = ([shard_kv(plan, r, x) for r in range(WORLD)] for x in (given.k, given.v))
    results = interpret(plan, events, q, k, v)
    out, lse = unshard(plan, [o for o, _ in results]), unshard_lse(plan, [x for _, x in results])
    assert report(plan.problem, given, out, lse).ok()


@pytest.mark.parametrize("field", ["transfer", "cta_start", "rank_ready"])
@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: x - 2, lambda x: x * np.inf])
def test_durations_that_do_not_fit_the_plan(field: str, change) -> None:
    plan, _ = figure_6()
    sizes = [len(plan.tables[n]) for n in ("transfers", "transfers", "rows", "rows", "reductions")]
    durations = Durations(*(np.ones(n) for n in (*sizes, 16, 16, 4)))
    with pytest.raises(InvalidField, match=f"durations.{field}"):
        schedule_of(plan, durations._replace(**{field: change(getattr(durations, field))}), NUM_COMM, NUM_COMPUTE)
