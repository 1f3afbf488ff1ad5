"""One process of several that want the same kernel, for test_jit.py.

Usage: compile_one.py HOW [SECONDS]; begins when standard input ends, prints JSON lines.

HOW: "plain"; "slow": compiles SECONDS longer; "stuck-in-compile", "stuck-in-write": never finishes that step.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from liquidcp_runtime import cubin_build, cubin_entry, nvrtc

FOR_EVER = 3600.0


@dataclass(frozen=True)
class Kernel:
    name: str = "constant"
    source: str = 'extern "C" __global__ void constant(int* x) { *x = 1; }\n'
    headers: dict[str, str] = field(default_factory=dict)
    num_threads: int = 1
    smem_bytes: int = 0
    path: str = "portable"
    boxes: None = None


def say(**data: object) -> None:
    print(json.dumps(data), flush=True)


def slow_compile(seconds: float) -> None:
    """Make every compilation last longer."""
    original = cubin_build.compile_kernel

    def slow(kernel: Any, arch: str) -> nvrtc.CompiledCubin:
        say(doing="compile")
        time.sleep(seconds)
        return original(kernel, arch)

    cubin_build.compile_kernel = slow


def stuck_write() -> None:
    """Stop after the first file of an entry is written and not yet flushed."""

    def stuck(file: int) -> None:
        say(doing="write")
        time.sleep(FOR_EVER)

    cubin_entry.os.fsync = stuck  # type: ignore[assignment]


def main(how: str, seconds: float = FOR_EVER) -> None:
    if how in ("slow", "stuck-in-compile"):
        slow_compile(seconds)
    if how == "stuck-in-write":
        stuck_write()
    sys.stdin.read()
    built = cubin_build.build_cubin(Kernel(), "sm_90a")
    say(origin=built.origin.value, sha256=hashlib.sha256(built.cubin).hexdigest(), pid=os.getpid())


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
