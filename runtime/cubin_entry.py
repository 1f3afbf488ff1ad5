"""One cubin on disk: a folder ``<digest>`` with ``kernel.cubin`` and ``meta.json``, there whole or not at all.

It is written under another name, flushed, and renamed. The digest of the cubin in ``meta.json`` finds damage.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from liquidcp_runtime.cubin_key import CubinKey

FORMAT = 1
CUBIN, META = "kernel.cubin", "meta.json"

# A writer needs milliseconds; what is older was left by one that was killed.
_STALE_SECONDS = 3600.0
_ENTRY_NAME = re.compile(r"[0-9a-f]{64}")
_IN_THE_WAY = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@dataclass(frozen=True, kw_only=True)
class CubinEntry:
    """An entry as it lies there; ``key`` and ``cubin`` are None if it is damaged."""

    path: Path
    key: CubinKey | None
    cubin: bytes | None


def entries(root: Path) -> Iterator[CubinEntry]:
    """Every entry in ``root``, sorted by digest; none where the folder does not exist. Raises OSError."""
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        if _ENTRY_NAME.fullmatch(path.name):
            yield _read(path)


def read_entry(root: Path, digest: str) -> bytes | None:
    """The cubin of that digest; None if there is none, or if it is damaged or unreadable."""
    return _read(root / digest).cubin


def write_entry(root: Path, key: CubinKey, cubin: bytes) -> bytes:
    """Put ``cubin`` in place; returns what lies there afterwards, which is another writer's if that was faster.

    An entry that is damaged is replaced. Raises OSError.
    """
    root.mkdir(parents=True, exist_ok=True)
    _remove_stale(root)
    temporary = root / f".{key.digest}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    temporary.mkdir()
    try:
        _write_synced(temporary / CUBIN, cubin)
        _write_synced(temporary / META, json.dumps(_meta(key, cubin), indent=1).encode())
        _sync_folder(temporary)
        _move(temporary, root / key.digest)
        _sync_folder(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return read_entry(root, key.digest) or cubin


def _meta(key: CubinKey, cubin: bytes) -> dict[str, object]:
    return {
        "format": FORMAT,
        "digest": key.digest,
        **asdict(key),
        "size": len(cubin),
        "sha256": hashlib.sha256(cubin).hexdigest(),
    }


def _read(path: Path) -> CubinEntry:
    damaged = CubinEntry(path=path, key=None, cubin=None)
    try:
        meta = json.loads((path / META).read_bytes())
        cubin = (path / CUBIN).read_bytes()
        key = CubinKey(**{field.name: str(meta[field.name]) for field in fields(CubinKey)})
    except (OSError, ValueError, KeyError, TypeError):
        return damaged
    if key.digest != path.name or meta != _meta(key, cubin):
        return damaged
    return CubinEntry(path=path, key=key, cubin=cubin)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Flush the folder's own entry; some file systems have nothing to flush there and say so."""
    file = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(file)
    finally:
        os.close(file)


def _move(temporary: Path, entry: Path) -> None:
    """Rename into place. Where a whole entry lies already, it stays; where a damaged one does, it goes."""
    try:
        temporary.rename(entry)
        return
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
    if _read(entry).cubin is None:
        _remove_damaged(entry)
        with suppress(OSError):  # another writer was faster
            temporary.rename(entry)


def _remove_damaged(entry: Path) -> None:
    """Out of the way under another name first, so that nobody finds half of it."""
    aside = entry.with_name(f".{entry.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    with suppress(FileNotFoundError):  # another writer was faster
        entry.rename(aside)
        _remove(aside)


def _remove_stale(root: Path) -> None:
    """Remove what writers that were killed have left."""
    for path in root.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
