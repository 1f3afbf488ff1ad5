"""Warnings that are said once a process, whatever the filters of the user."""

from __future__ import annotations

import warnings

from liquidcp_compiler.errors import KernelStoreWarning

_said: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Warn (KernelStoreWarning), unless something was said of ``topic`` before."""
    if topic not in _said:
        _said.add(topic)
        warnings.warn(message, KernelStoreWarning, stacklevel=3)
