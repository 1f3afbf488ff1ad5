"""What commands print: text and tables for people, or with ``--json`` one JSON document and nothing else."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: Width of tables in a pipe or a log, where no terminal says how wide it is.
LOG_WIDTH = 120


class Output:
    """Prints lines and tables at once, or only the result as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else LOG_WIDTH
        return Console(width=width, highlight=False, markup=False, emoji=False)

    def line(self, text: str = "") -> None:
        """A line for people."""
        if not self.as_json:
            self._console.print(text, soft_wrap=True)

    def heading(self, text: str) -> None:
        """A line that starts a part."""
        if not self.as_json:
            self._console.print(f"\n{text}", style="bold", soft_wrap=True)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> None:
        """A table for people; columns ``left`` are left-aligned."""
        if self.as_json:
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for i, heading in enumerate(headings):
            table.add_column(heading, justify="left" if i in left else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def result(self, data: dict[str, Any]) -> None:
        """The result as JSON, if that was asked for."""
        if self.as_json:
            print(json.dumps(_plain(data), indent=1, allow_nan=False))

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Shows that something takes a while: a spinner on stderr, where that is a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield


def _plain(value: Any) -> Any:
    """JSON has no infinities and no NaN: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value
