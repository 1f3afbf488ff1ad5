"""Compilation at run time in many processes at once: fault rows J1, J7, J11."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liquidcp_runtime.cubin_build import Origin, build_cubin
from tests.small_kernels import constant_kernel, entry_names

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "helpers" / "compile_one.py"
ARCH = "sm_90a"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache_dir")]


@pytest.fixture
def compile_one() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``compile_one("plain")``: a process that waits for its standard input to end; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


def wait_for_line(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline()


def results(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert err == ""
        found.append(json.loads(out.splitlines()[-1]))
    return found


@pytest.mark.slow
def test_sixteen_processes_compile_one_kernel_once(compile_one, cache_dir: Path) -> None:
    """fault J1"""
    processes = [compile_one("plain") for _ in range(16)]
    for process in processes:
        go(process)
    found = results(processes)
    assert sorted(result["origin"] for result in found) == ["compiled"] + ["disk"] * 15
    assert len({result["sha256"] for result in found}) == 1
    assert len(entry_names(cache_dir)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("where", ["stuck-in-compile", "stuck-in-write"])
def test_a_killed_process_stops_nobody(compile_one, cache_dir: Path, where: str) -> None:
    """fault J1, J7: the lock goes with its holder, and half an entry is none."""
    victim, *others = compile_one(where), *(compile_one("plain") for _ in range(3))
    go(victim)
    wait_for_line(victim)
    for process in others:
        go(process)
    victim.kill()  # SIGKILL
    assert sorted(result["origin"] for result in results(others)) == ["compiled", "disk", "disk"]
    assert len(entry_names(cache_dir)) == 1


@pytest.mark.slow
def test_waiting_ranks_load_what_one_has_compiled(compile_one, cache_dir: Path) -> None:
    """fault J11: eight ranks, a compilation of two seconds; all later starts find it on disk."""
    processes = [compile_one("slow", 2) for _ in range(8)]
    for process in processes:
        go(process)
    assert sorted(result["origin"] for result in results(processes)) == ["compiled"] + ["disk"] * 7
    assert len(entry_names(cache_dir)) == 1
    assert build_cubin(constant_kernel(), ARCH).origin == Origin.COMPILED  # another kernel
    assert build_cubin(constant_kernel(), ARCH).origin == Origin.DISK
