"""The compute regions of a plan: which query tiles meet which KV tiles, read off the packed tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.ir.layout import Formation, Role, Space
from liquidcp_compiler.ir.plan import Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """One compute row: ``q_tiles`` x ``kv_tiles`` (tile numbers of the graph, int64), computed by ``rank``.

    The KV tiles of a ready-formed row are all that it may claim: its own, then arrivals in queue order.
    """

    rank: int
    role: Role
    ready: bool
    q_tiles: NDArray[np.int64]
    kv_tiles: NDArray[np.int64]


def regions(plan: Plan) -> Iterator[Region]:
    """Every compute row of every rank, in queue order."""
    arrivals = _Arrivals(plan)
    for rank in range(plan.world):
        q_tile, kv_tile = plan.table("q_tiles", rank)["tile"], plan.table("kv_tiles", rank)["tile"]
        q_list, kv_list = plan.table("q_list", rank), plan.table("kv_list", rank)
        for row in plan.table("rows", rank):
            ready = row["formation"] == Formation.READY
            if ready:
                own = np.arange(row["local_lo"], row["local_hi"])
                local = np.concatenate((own, arrivals.of(rank, int(row["sequence"]), int(row["num_arrivals"]))))
            else:
                local = kv_list[row["kv_list"] :][: row["num_kv_tiles"]]
            yield Region(
                rank=rank,
                role=Role(int(row["role"])),
                ready=bool(ready),
                q_tiles=q_tile[q_list[row["q_lo"] : row["q_hi"]]].astype(np.int64),
                kv_tiles=kv_tile[local.astype(np.int64)].astype(np.int64),
            )


def scores_per_rank(plan: Plan) -> NDArray[np.float64]:
    """float64 [world]: query-key scores, times query heads, in the tiles that each rank's rows meet.

    Scores of touched tiles that the mask hides count, since the engine works on whole tiles.
    """
    rows, rank = plan.tables["rows"], _rank_of_rows(plan, "rows")
    kv_rows = plan.tables["kv_tiles"]["rows"].astype(np.float64)
    first_kv = plan.offsets["kv_tiles"][rank]
    own = _running(kv_rows)
    keys = own[first_kv + rows["local_hi"]] - own[first_kv + rows["local_lo"]]
    keys += _Arrivals(plan).rows_of(rank, rows["sequence"], rows["num_arrivals"])
    listed = plan.tables["kv_list"] + plan.offsets["kv_tiles"][_rank_of_rows(plan, "kv_list")]
    total, start = _running(kv_rows[listed]), plan.offsets["kv_list"][rank] + rows["kv_list"]
    static = rows["formation"] == Formation.STATIC
    start, count = np.where(static, start, 0), np.where(static, rows["num_kv_tiles"], 0)
    keys = np.where(static, total[start + count] - total[start], keys)
    q_tiles = plan.tables["q_tiles"]
    height = q_tiles["rows"].astype(np.float64) * q_tiles["num_heads"]
    listed = plan.tables["q_list"] + plan.offsets["q_tiles"][_rank_of_rows(plan, "q_list")]
    total, first = _running(height[listed]), plan.offsets["q_list"][rank]
    heights = total[first + rows["q_hi"]] - total[first + rows["q_lo"]]
    return np.bincount(rank, heights * keys, minlength=plan.world).astype(np.float64)


class _Arrivals:
    """KV tiles that each rank pulls into the committed prefix of each sequence: front ones, then back ones."""

    def __init__(self, plan: Plan) -> None:
        t, rank = plan.tables["transfers"], _rank_of_rows(plan, "transfers")
        self._base = plan.offsets["sequences"]
        published = np.flatnonzero((t["signal"] < 0) & (t["space"] == Space.KV))
        key = self._base[rank[published]] + t["sequence"][published]
        order = np.lexsort((t["arrival_class"][published], key))
        self._target = t["target"][published][order].astype(np.int64)
        self._start = np.searchsorted(key[order], np.arange(self._base[-1] + 1))
        tile = plan.offsets["kv_tiles"][rank[published][order]] + self._target
        self._total = _running(plan.tables["kv_tiles"]["rows"][tile].astype(np.float64))

    def of(self, rank: int, sequence: int, count: int) -> NDArray[np.int64]:
        """The first ``count`` arrivals, as indices in the rank's ``kv_tiles``."""
        start = self._start[self._base[rank] + sequence]
        return self._target[start : start + count]

    def rows_of(self, rank: NDArray, sequence: NDArray, count: NDArray) -> NDArray[np.float64]:
        """Keys in the first ``count`` arrivals of each (rank, sequence)."""
        start = self._start[self._base[rank] + sequence]
        return self._total[start + count] - self._total[start]


def _rank_of_rows(plan: Plan, table: str) -> NDArray[np.int64]:
    return np.repeat(np.arange(plan.world), np.diff(plan.offsets[table]))


def _running(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of the values before each place: [n + 1]."""
    return np.concatenate(([0.0], np.cumsum(values)))
