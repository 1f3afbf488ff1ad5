"""Cubins that were compiled before, on disk, shared by all processes that name the same folder.

One process compiles a kernel while others wait for it. Nothing that goes wrong with the folder stops a run: without
locks each process compiles, and without a place to write the cubins go to a folder that lives as long as the process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from liquidcp_compiler import options
from liquidcp_runtime.cubin_entry import CubinEntry, entries, read_entry, write_entry
from liquidcp_runtime.cubin_key import CubinKey
from liquidcp_runtime.file_lock import file_lock
from liquidcp_runtime.warn_once import warn_once

#: A process that holds a lock is alive and compiles; this bounds the wait for one that hangs.
LOCK_WAIT_SECONDS = 300.0


class CubinCache:
    """The cache in ``folder``; None takes ``LIQUIDCP_CACHE_DIR`` or its default, as it is when the cache is used.

    ``lock_wait`` is how many seconds to wait for another process that compiles the same kernel.
    """

    def __init__(self, folder: Path | None = None, *, lock_wait: float = LOCK_WAIT_SECONDS) -> None:
        self._folder, self._lock_wait = folder, lock_wait

    @property
    def root(self) -> Path:
        """The folder that holds the entries; it may not exist yet. Raises InvalidField."""
        return (options.cache_dir() if self._folder is None else self._folder) / "cubins"

    def get(self, key: CubinKey, build: Callable[[], bytes]) -> tuple[bytes, bool]:
        """The cubin of ``key``, and whether ``build`` had to make it. Raises what ``build`` raises, and InvalidField.

        An entry that is damaged counts as missing and is replaced.
        """
        root = self.root
        found = self._find(root, key)
        if found is not None:
            return found, False
        with suppress(OSError):  # told below, if there is something to store
            root.mkdir(parents=True, exist_ok=True)
        with file_lock(root / f"{key.digest}.lock", self._lock_wait):
            found = self._find(root, key)
            if found is not None:
                return found, False
            if os.path.lexists(root / key.digest):
                warn_once(str(root / key.digest), f"kernel cache: {root / key.digest} is damaged; compiling it again")
            return self._store(root, key, build()), True

    def entries(self) -> Iterator[CubinEntry]:
        """Every entry, damaged ones too. Raises OSError, InvalidField."""
        return entries(self.root)

    def _find(self, root: Path, key: CubinKey) -> bytes | None:
        found = read_entry(root, key.digest)
        return read_entry(private_root(), key.digest) if found is None and _has_private_root() else found

    def _store(self, root: Path, key: CubinKey, cubin: bytes) -> bytes:
        try:
            return write_entry(root, key, cubin)
        except OSError as error:
            reason = f"kernel cache: {root} cannot be written ({error.strerror or error})"
            warn_once(str(root), f"{reason}; kernels of this process go to a folder of its own. Set LIQUIDCP_CACHE_DIR")
        try:
            return write_entry(private_root(), key, cubin)
        except OSError as error:
            warn_once("private", f"kernel cache: nothing can be kept on disk ({error.strerror or error})")
            return cubin


@cache
def _private_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="liquidcp-", ignore_cleanup_errors=True)


def private_root() -> Path:
    """A folder that goes when the process ends. Raises OSError."""
    return Path(_private_folder().name)


def _has_private_root() -> bool:
    return _private_folder.cache_info().currsize > 0
