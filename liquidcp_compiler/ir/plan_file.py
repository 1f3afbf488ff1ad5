"""Plan files: the packed tables as one .npz without pickle, beside a JSON header that says what they are.

The header holds the format number, the layout hash and the version of the library that wrote it, so that a plan of
another version is refused by name instead of being misread; the fingerprint and a digest of what the fingerprint does
not cover (offsets, headers) are computed again on loading.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from liquidcp_compiler.errors import LiquidCPError, PlanError
from liquidcp_compiler.ir.atomic_file import write_file
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.layout import HEADER, LAYOUT_HASH, TABLE_NAMES
from liquidcp_compiler.ir.plan import TABLE_DTYPES, Plan, plan_digest
from liquidcp_compiler.ir.problem import Problem
from liquidcp_compiler.version import __version__

FORMAT = 1
HEADER_NAME = "header.json"
#: Keys of the JSON header behind ``format``, ``layout`` and ``version``, with their types.
_KEYS = {"problem": dict, "world": int, "tile": int, "spec": dict, "pipeline": str, "fingerprint": str, "digest": str}
_TORN = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, OSError, NotImplementedError)


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> Path:
    """Write a plan; the file appears whole or not at all, and equal plans give equal bytes. Raises OSError."""
    header = {
        "format": FORMAT,
        "layout": f"{LAYOUT_HASH:016x}",
        "version": __version__,
        "problem": plan.problem.to_json(),
        "world": plan.world,
        "tile": plan.tile,
        "spec": plan.spec.to_json(),
        "pipeline": plan.pipeline,
        "fingerprint": f"{plan.fingerprint:016x}",
        "digest": _digest(plan.offsets, plan.headers),
    }
    arrays = {f"table.{name}": plan.tables[name] for name in TABLE_NAMES}
    arrays |= {f"offsets.{name}": plan.offsets[name] for name in TABLE_NAMES}
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{HEADER_NAME: text, "headers": plan.headers}, **arrays)
    return write_file(path, buffer.getvalue())


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file.

    Raises PlanError for a file that is missing, torn, no plan, of another format or layout, or changed after it was
    written.
    """
    name = os.fspath(path)
    if not Path(path).is_file():
        raise PlanError(f"{name}: there is no such plan file")
    if not is_plan_file(path):
        raise PlanError(f"{name} is torn or not a plan file; save the plan again")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return _plan(name, _header(name, archive), archive)
    except PlanError:
        raise
    except _TORN as error:
        raise PlanError(f"{name} is torn or not a plan file ({error}); save the plan again") from error


def is_plan_file(path: str | os.PathLike[str]) -> bool:
    """Does the file start like an .npz archive? A problem file is text and never does."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _header(name: str, archive: Mapping[str, np.ndarray]) -> dict[str, Any]:
    if HEADER_NAME not in archive:
        raise PlanError(f"{name} is an .npz archive without {HEADER_NAME}, so no plan file")
    header = json.loads(archive[HEADER_NAME].tobytes().decode())
    if not isinstance(header, dict):
        raise PlanError(f"{name}: {HEADER_NAME} is no object")
    if header.get("format") != FORMAT:
        raise PlanError(
            f"{name} is a plan of format {header.get('format')!r}, written by version {header.get('version')!r}; "
            f"this version ({__version__}) reads format {FORMAT}. Plan again"
        )
    if header.get("layout") != f"{LAYOUT_HASH:016x}":
        raise PlanError(
            f"{name} has the layout {header.get('layout')!r}, written by version {header.get('version')!r}; this "
            f"version ({__version__}) has the layout '{LAYOUT_HASH:016x}'. Plan again"
        )
    for key, kind in _KEYS.items():
        if not isinstance(header.get(key), kind):
            raise PlanError(f"{name}: {HEADER_NAME} has no valid {key}")
    return header


def _plan(name: str, header: dict[str, Any], archive: Mapping[str, np.ndarray]) -> Plan:
    try:
        problem, spec = Problem.from_json(header["problem"]), KernelSpec.from_json(header["spec"])
    except (LiquidCPError, KeyError, TypeError) as error:
        raise PlanError(f"{name}: problem or kernel specification cannot be read: {error}") from error
    tables = {t: archive[f"table.{t}"] for t in TABLE_NAMES}
    offsets = {t: archive[f"offsets.{t}"] for t in TABLE_NAMES}
    headers = archive["headers"]
    for table, rows in tables.items():
        if rows.dtype != TABLE_DTYPES[table] or rows.ndim != 1 or offsets[table].dtype != np.int64:
            raise PlanError(f"{name}: table {table} is torn: {rows.dtype} of shape {rows.shape}")
    if headers.dtype != HEADER.dtype or headers.shape != (header["world"],):
        raise PlanError(f"{name}: {headers.shape} rank headers for {header['world']} ranks")
    fingerprint = plan_digest(problem, spec, header["tile"], tables)
    stored = {f"{x:016x}" for x in headers["fingerprint"].tolist()}
    if f"{fingerprint:016x}" != header["fingerprint"] or stored != {header["fingerprint"]}:
        raise PlanError(
            f"{name}: its tables have the fingerprint {fingerprint:016x}, but the file says {header['fingerprint']}: "
            "it was changed after it was written. Plan again"
        )
    if _digest(offsets, headers) != header["digest"]:
        raise PlanError(f"{name}: its offsets or rank headers were changed after it was written. Plan again")
    return Plan(
        problem=problem,
        world=header["world"],
        tile=header["tile"],
        spec=spec,
        pipeline=header["pipeline"],
        tables=tables,
        offsets=offsets,
        headers=headers,
    )


def _digest(offsets: Mapping[str, np.ndarray], headers: np.ndarray) -> str:
    """sha256 over what the fingerprint leaves out: where each rank's rows start, and the rank headers."""
    h = hashlib.sha256()
    for name in TABLE_NAMES:
        h.update(np.ascontiguousarray(offsets[name]).tobytes())
    h.update(np.ascontiguousarray(headers).tobytes())
    return h.hexdigest()
