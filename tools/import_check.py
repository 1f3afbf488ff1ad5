"""Fail when an import goes against the arrows ``ir <- passes <- codegen <- driver``.

    python tools/import_check.py [ROOT]

Imports are read from the syntax tree, so those inside functions count as well. A module of
``liquidcp_compiler`` that is in none of the layers below (the driver, the command line, the package itself)
may import everything.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# What each layer may import of this project, by the longest prefix of the module's name.
BASE = ("liquidcp_compiler.errors", "liquidcp_compiler.version")
SHARED = (*BASE, "liquidcp_compiler.options")
IR = (*SHARED, "liquidcp_compiler.ir")
PASSES = (*IR, "liquidcp_compiler.passes")
CODEGEN = (*PASSES, "liquidcp_compiler.codegen")
ALLOWED = {
    "liquidcp_compiler.errors": (),
    "liquidcp_compiler.options": BASE,
    "liquidcp_compiler.ir": IR,
    "liquidcp_compiler.passes": PASSES,
    "liquidcp_compiler.codegen": CODEGEN,
    "liquidcp_runtime": (*IR, "liquidcp_runtime"),
}
FOLDERS = {"liquidcp_compiler": "liquidcp_compiler", "runtime": "liquidcp_runtime"}


def modules(root: Path) -> Iterator[tuple[Path, str]]:
    """Each source file under ``root`` with the name it is imported by."""
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            yield path, ".".join((package, *(part for part in parts if part != "__init__")))


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; ``from a import b`` gives ``a.b``, since b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module or ''}.{alias.name}") for alias in node.names)


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def violations(root: Path) -> Iterator[str]:
    """One line for each import that goes the wrong way."""
    for path, module in modules(root):
        layer = next((layer for layer in ALLOWED if is_within(module, (layer,))), None)
        if layer is None:
            continue
        for line, name in imported_names(ast.parse(path.read_text(), filename=str(path))):
            if is_within(name, tuple(FOLDERS.values())) and not is_within(name, ALLOWED[layer]):
                yield f"{path.relative_to(root)}:{line}: {layer} must not import {name}"


def main(root: Path) -> int:
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"import check: {len(list(modules(root)))} modules, {len(found)} imports against the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
