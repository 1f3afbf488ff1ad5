"""Fail when a source file is longer than 600 lines; name those above 400, which are a reason to split.

python tools/size_check.py [ROOT]
"""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 600
REASON_TO_SPLIT = 400
SUFFIXES = {".py", ".cu", ".cuh", ".j2"}
FOLDERS = ("liquidcp_compiler", "runtime", "tests", "tools", "examples", "benchmarks")


def measure(root: Path) -> list[tuple[int, str]]:
    """(lines, path) of each source file under ``root``, longest first."""
    files = (path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)
    sizes = [(len(path.read_text().splitlines()), path.relative_to(root).as_posix()) for path in files]
    return sorted(sizes, key=lambda entry: (-entry[0], entry[1]))


def main(root: Path) -> int:
    sizes = measure(root)
    too_long = [(lines, path) for lines, path in sizes if lines > LIMIT]
    for lines, path in sizes:
        if REASON_TO_SPLIT < lines <= LIMIT:
            print(f"{path}: {lines} lines, consider a split")
    for lines, path in too_long:
        print(f"{path}: {lines} lines, the limit is {LIMIT}")
    print(f"size check: {len(sizes)} files, {len(too_long)} over {LIMIT} lines")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
