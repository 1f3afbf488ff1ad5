"""The frozen, packed plan: what every way of running a batch reads, and nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from liquidcp_compiler.errors import PlanError
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.layout import (
    DESCRIPTORS,
    HEADER,
    INDEX_TABLES,
    LAYOUT_HASH,
    TABLE_NAMES,
    Formation,
    Space,
)
from liquidcp_compiler.ir.problem import Problem

TABLE_DTYPES: dict[str, np.dtype] = {d.table: d.dtype for d in DESCRIPTORS} | {
    name: np.dtype("<i4") for name in INDEX_TABLES
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Packed tables of all ranks for one batch.

    Fields:
        problem: what is computed.
        world: number of ranks.
        tile: tokens of a full KV tile (and of a full prefill query tile).
        spec: the kernel that runs it.
        pipeline: the passes that made it, as text.
        tables: name -> rows of all ranks one after another (dtypes: ``TABLE_DTYPES``), read-only.
        offsets: name -> int64 [world + 1], where each rank's rows start.
        headers: one ``PlanHeader`` row a rank.
    """

    problem: Problem
    world: int
    tile: int
    spec: KernelSpec
    pipeline: str
    tables: Mapping[str, np.ndarray]
    offsets: Mapping[str, np.ndarray]
    headers: np.ndarray

    def __post_init__(self) -> None:
        for name in TABLE_NAMES:
            table, offsets = self.tables[name], self.offsets[name]
            if table.dtype != TABLE_DTYPES[name] or len(offsets) != self.world + 1 or offsets[-1] != len(table):
                raise PlanError(f"table {name} is torn: {len(table)} rows of {table.dtype}, offsets {offsets.tolist()}")
            table.flags.writeable = False
        object.__setattr__(self, "tables", MappingProxyType(dict(self.tables)))
        object.__setattr__(self, "offsets", MappingProxyType(dict(self.offsets)))
        self.headers.flags.writeable = False

    def table(self, name: str, rank: int) -> np.ndarray:
        """The rows of one rank."""
        offsets = self.offsets[name]
        return self.tables[name][offsets[rank] : offsets[rank + 1]]

    def header(self, rank: int) -> np.void:
        """The header of one rank."""
        return self.headers[rank]

    @property
    def fingerprint(self) -> int:
        """64-bit digest of the whole plan; equal on ranks that planned the same batch the same way."""
        return int(self.headers["fingerprint"][0]) if self.world else 0

    def workspace_bytes(self, rank: int | None = None) -> int:
        """Bytes of buffers that one rank needs (the largest rank's if none is named): pulled tiles, states, maps."""
        if rank is None:
            return max((self.workspace_bytes(r) for r in range(self.world)), default=0)
        p, kv, q = self.problem, self.table("kv_tiles", rank), self.table("q_tiles", rank)
        header = self.header(rank)
        pulled_kv = (len(kv) - int(header["num_local_kv_tiles"])) * self.tile * p.num_heads_kv * p.head_dim * 2
        pulled_q = int(self._rows_by_heads(q[header["num_local_q_tiles"] :]).sum()) * p.head_dim
        states = self.table("states", rank)
        state_rows = int(self._rows_by_heads(q[states["q_tile"]]).sum())
        merged = int(self._rows_by_heads(q[: header["num_local_q_tiles"]]).sum())
        words = len(self.table("signals", rank)) * 8 + int(header["num_arrivals"]) * 4
        return (pulled_kv + pulled_q) * p.dtype.bytes + (state_rows + merged) * (p.head_dim + 1) * 4 + words

    @staticmethod
    def _rows_by_heads(q_tiles: np.ndarray) -> np.ndarray:
        return q_tiles["rows"].astype(np.int64) * q_tiles["num_heads"]

    def blob_bytes(self, rank: int) -> int:
        """Size of :meth:`blob`."""
        rows = ((len(self.table(name, rank)), TABLE_DTYPES[name].itemsize) for name in TABLE_NAMES)
        return HEADER.size + sum(-(-count * size // 16) * 16 for count, size in rows)

    def blob(self, rank: int) -> bytes:
        """Header and tables of one rank as one 16-byte aligned block, for upload by a single copy."""
        header = self.headers[rank : rank + 1].copy()
        parts, offset = [], HEADER.size
        for name in TABLE_NAMES:
            data = self.table(name, rank).tobytes()
            header[f"{name}_offset"] = offset
            data += bytes(-len(data) % 16)
            parts.append(data)
            offset += len(data)
        return header.tobytes() + b"".join(parts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan to a file; it appears whole or not at all. Raises OSError."""
        from liquidcp_compiler.ir.plan_file import save_plan

        return save_plan(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Read a plan file. Raises PlanError for one that is torn, changed, or of another version."""
        from liquidcp_compiler.ir.plan_file import load_plan

        return load_plan(path)

    def task_name(self, rank: int, table: str, index: int) -> str:
        """What a transfer, row or reduction is, in words: used by errors and timelines."""
        d = self.table(table, rank)[index]
        if table == "transfers":
            space = Space(int(d["space"]))
            target = self.table(_TABLE_OF[space], rank)[d["target"]]
            item = target["state" if space == Space.STATE else "tile"]
            return f"%{d['task']} transfer {space.name.lower()} {item} from {d['peer']} to {rank}"
        q_tiles = self.table("q_tiles", rank)
        if table == "rows":
            tiles = q_tiles["tile"][self.table("q_list", rank)[d["q_lo"] : d["q_hi"]]]
            last = f":{tiles[-1] + 1}" if len(tiles) > 1 else ""
            return f"%{d['task']} compute @{rank} q {tiles[0]}{last}"
        tile = q_tiles["tile"][d["q_tile"]]
        return f"%{d['task']} reduce @{rank} q {tile} into {Space(int(d['target_space'])).name.lower()}"

    def counts(self) -> dict[str, int]:
        """Number of tasks by kind, over all ranks."""
        rows = self.tables["rows"]
        return {
            "transfers": len(self.tables["transfers"]),
            "compute rows": len(rows),
            "ready rows": int((rows["formation"] == Formation.READY).sum()),
            "reductions": len(self.tables["reductions"]),
            "signals": len(self.tables["signals"]),
        }


_TABLE_OF = {Space.Q: "q_tiles", Space.KV: "kv_tiles", Space.STATE: "states"}


def plan_digest(problem: Problem, spec: KernelSpec, tile: int, tables: Mapping[str, np.ndarray]) -> int:
    """The fingerprint: first 8 bytes of sha256 over layout, problem, spec and every table of every rank."""
    h = hashlib.sha256(f"{LAYOUT_HASH} {problem.to_json()} {spec.to_json()} {tile}".encode())
    for name in TABLE_NAMES:
        h.update(f"{name} {len(tables[name])}".encode())
        h.update(np.ascontiguousarray(tables[name]).view(np.uint8).data if len(tables[name]) else b"")
    return int.from_bytes(h.digest()[:8], "little")
