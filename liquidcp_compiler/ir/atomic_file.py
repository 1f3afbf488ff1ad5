"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_file(path: str | os.PathLike[str], data: bytes | str | Iterable[str]) -> Path:
    """Write ``data`` (text as UTF-8, also in pieces) to a temporary file of the same folder and rename it.

    Returns the path. A reader sees the old file or the new one, never a part. Missing parent folders are made. Raises
    OSError.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file that can be written", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            for piece in [data] if isinstance(data, bytes | str) else data:
                file.write(piece.encode() if isinstance(piece, str) else piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
