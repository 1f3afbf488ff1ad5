"""The shape of the project itself: layers, sizes, light imports, packaging, golden files."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("numba", "matplotlib", "networkx", "jinja2", "typer", "rich", "cuda")

WRONG_IMPORTS = [
    ("liquidcp_compiler/ir/a.py", "import liquidcp_compiler.passes"),
    ("liquidcp_compiler/ir/a.py", "from liquidcp_compiler import passes"),
    ("liquidcp_compiler/ir/a.py", "from liquidcp_compiler.codegen.emit import emit"),
    ("liquidcp_compiler/ir/a.py", "def f():\n    import liquidcp_runtime.nvrtc"),
    ("liquidcp_compiler/ir/a.py", "import liquidcp_compiler.driver"),
    ("liquidcp_compiler/passes/a.py", "from liquidcp_compiler import codegen"),
    ("liquidcp_compiler/passes/a.py", "from liquidcp_compiler.driver import plan"),
    ("liquidcp_compiler/passes/a.py", "from liquidcp_runtime import nvrtc"),
    ("liquidcp_compiler/codegen/a.py", "from liquidcp_compiler.driver import plan"),
    ("liquidcp_compiler/codegen/a.py", "import liquidcp_runtime"),
    ("liquidcp_compiler/errors.py", "from liquidcp_compiler.ir import tiles"),
    ("runtime/a.py", "from liquidcp_compiler.passes import lower"),
    ("runtime/a.py", "from liquidcp_compiler.codegen import emit"),
    ("runtime/deep/a.py", "import liquidcp_compiler"),
]
RIGHT_IMPORTS = [
    ("liquidcp_compiler/ir/a.py", "from liquidcp_compiler.errors import GraphError"),
    (
        "liquidcp_compiler/passes/a.py",
        "from liquidcp_compiler.ir import tiles\nimport liquidcp_compiler.options",
    ),
    ("liquidcp_compiler/codegen/a.py", "from liquidcp_compiler.passes.lower import lower"),
    ("liquidcp_compiler/driver.py", "import liquidcp_runtime\nfrom liquidcp_compiler import codegen, passes"),
    ("runtime/a.py", "from liquidcp_compiler.ir.plan import Plan\nfrom liquidcp_runtime import nvrtc"),
]


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_imports_follow_the_arrows() -> None:
    assert list(load_tool("import_check").violations(ROOT)) == []


@pytest.mark.parametrize(("path", "text"), WRONG_IMPORTS)
def test_import_check_finds_a_wrong_import(tmp_path: Path, path: str, text: str) -> None:
    write(tmp_path, path, text)
    (found,) = load_tool("import_check").violations(tmp_path)
    assert found.startswith(f"{path}:{len(text.splitlines())}: ")
    assert load_tool("import_check").main(tmp_path) == 1


@pytest.mark.parametrize(("path", "text"), RIGHT_IMPORTS)
def test_import_check_allows_the_arrows(tmp_path: Path, path: str, text: str) -> None:
    write(tmp_path, path, text)
    assert load_tool("import_check").main(tmp_path) == 0


def test_files_are_short() -> None:
    tool = load_tool("size_check")
    assert [entry for entry in tool.measure(ROOT) if entry[0] > tool.LIMIT] == []


@pytest.mark.parametrize("suffix", ["py", "cuh", "cu", "j2"])
def test_size_check_finds_a_long_file(tmp_path: Path, suffix: str) -> None:
    tool = load_tool("size_check")
    write(tmp_path, f"runtime/a.{suffix}", "\n" * tool.LIMIT)
    assert tool.main(tmp_path) == 0
    write(tmp_path, f"runtime/a.{suffix}", "\n" * (tool.LIMIT + 1))
    assert tool.main(tmp_path) == 1


def test_importing_the_packages_loads_nothing_heavy() -> None:
    # torch may load some of these itself, and that is not ours to judge.
    code = """
import json, sys
import torch
before = set(sys.modules)
import liquidcp_compiler, liquidcp_runtime
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert {"liquidcp_compiler", "liquidcp_runtime"} <= loaded
    assert loaded & set(HEAVY) == set()


def test_each_package_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {"liquidcp_compiler": ROOT / "liquidcp_compiler", "liquidcp_runtime": ROOT / "runtime"}
    found = {
        ".".join((package, *path.parent.relative_to(folder).parts))
        for package, folder in folders.items()
        for path in folder.rglob("__init__.py")
    }
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(found)


def test_each_folder_with_sources_is_a_package() -> None:
    for folder in (ROOT / "liquidcp_compiler", ROOT / "runtime"):
        assert [path for path in folder.rglob("*.py") if not (path.parent / "__init__.py").exists()] == []


def literal_patterns(source: str) -> list[str]:
    """Regular expressions for the string literals of a file; what an f-string fills in matches anything."""
    patterns = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            patterns.append(re.escape(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".+" for p in node.values]
            patterns.append("".join(parts))
    return [pattern for pattern in patterns if pattern.strip(".+")]


def test_each_golden_file_is_read_by_a_test() -> None:
    patterns: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        patterns.setdefault(path.stem, []).extend(literal_patterns(path.read_text()))
    golden = ROOT / "tests" / "golden"
    orphans = []
    for path in (path for path in golden.rglob("*") if path.is_file()):
        stem, *rest = path.relative_to(golden).parts
        if not any(re.fullmatch(pattern, "/".join(rest)) for pattern in patterns.get(stem, [])):
            orphans.append(path.relative_to(ROOT).as_posix())
    assert orphans == []
