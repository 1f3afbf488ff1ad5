"""The golden fixture itself: what it compares, refuses and writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project of one test, which compares the text "new" with tests/golden/test_text/a.txt."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(CONFTEST.read_text())
    (tests / "test_text.py").write_text("def test_text(golden):\n    golden('a.txt', 'line\\nnew\\n')\n")
    return tests


def run(suite: Path, *options: str, ci: str = "") -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite), *options]
    env = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # no plugin is needed, and it starts sooner
    done = subprocess.run(command, cwd=suite.parent, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_missing_file_fails_and_shows_the_text(suite: Path) -> None:
    code, output = run(suite)
    assert code == 1
    assert "a.txt does not exist" in output
    assert "line\n" in output
    assert not (suite / "golden").exists()


def test_update_writes_and_then_the_test_passes(suite: Path) -> None:
    assert run(suite, "--update-golden")[0] == 0
    assert (suite / "golden" / "test_text" / "a.txt").read_text() == "line\nnew\n"
    assert run(suite)[0] == 0


def test_a_changed_text_fails_with_the_difference(suite: Path) -> None:
    (suite / "golden" / "test_text").mkdir(parents=True)
    (suite / "golden" / "test_text" / "a.txt").write_text("line\nold\n")
    code, output = run(suite)
    assert code == 1
    assert "-old" in output
    assert "+new" in output


@pytest.mark.parametrize("ci", ["1", "true"])
def test_update_is_refused_in_ci(suite: Path, ci: str) -> None:
    code, output = run(suite, "--update-golden", ci=ci)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--update-golden is refused" in output
    assert not (suite / "golden").exists()
