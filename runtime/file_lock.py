"""A lock that the operating system holds for a process, and drops when the process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = (0.005, 0.2)  # the first pause and the longest


@contextmanager
def file_lock(path: Path, wait_seconds: float) -> Iterator[bool]:
    """Hold ``path`` for the length of a ``with`` block; gives whether it is held.

    False after ``wait_seconds``, and at once where the file cannot be made or its file system knows no locks: never
    raises for those. What counts is the lock, not that the file exists, so a file that a killed process left is free.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield False
        return
    try:
        held = _acquire(file, wait_seconds)
        try:
            yield held
        finally:
            if held:  # not by closing alone: a forked child may hold a copy of the descriptor
                fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _acquire(file: int, wait_seconds: float) -> bool:
    deadline = time.monotonic() + wait_seconds
    pause, longest = _POLL_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
