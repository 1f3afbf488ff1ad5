"""The command line ``liquidcp``."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 (a check failed), 2 (bad input), 130 (interrupted)."""
    from liquidcp_compiler.cli.app import run

    return run(arguments)
