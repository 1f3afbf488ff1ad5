"""What docs/protocol.md says about a model: the tests hold it to that."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "protocol.md"


def documented_states(model: str, sizes: str) -> int:
    """The number of states in the table row of a model and sizes."""
    start = f"| {model} | {sizes} |"
    rows = [line.removeprefix(start) for line in DOCS.read_text().splitlines() if line.startswith(start)]
    if len(rows) != 1:
        raise LookupError(f"{DOCS.name} has {len(rows)} rows that start with {start!r}; one is wanted")
    return int(rows[0].strip(" |").replace(",", ""))
