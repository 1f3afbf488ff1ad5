"""The examples run, are short, and check themselves against the reference."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
IN_PROCESS = [path for path in EXAMPLES if not path.name.startswith("09")]


def names(path: Path) -> str:
    return path.stem


def test_examples_are_numbered_without_gaps() -> None:
    assert [int(path.name[:2]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))


def test_the_readme_names_every_example() -> None:
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"examples/(\d\d_\w+\.py)", readme)) == {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=names)
def test_examples_are_short_and_check_themselves(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 80
    assert ast.get_docstring(tree)
    assert "main" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert "error_report(" in text
    assert ".ok()" in text


@pytest.mark.slow
@pytest.mark.parametrize("path", IN_PROCESS, ids=names)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_readme_program_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(program, names)
    assert names["out"].shape == names["q"].shape
    assert names["lse"].shape == (8, 1078)


@pytest.mark.slow
def test_the_program_of_the_torch_page_runs() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "torch.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(program, names)
    assert names["out"].shape == names["q"].shape
    assert names["lse"].shape == (4, 377)


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_four_processes_run() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command.append(str(ROOT / "examples" / "09_four_processes.py"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d):", done.stdout)) == ["0", "1", "2", "3"]
    assert "pass  worst tile" in done.stdout
