"""How long a kernel takes to be ready: compiled for the first time, and found in the cache on disk by a new process.

python -m benchmarks.compile_time [--arch sm_90a] [--only PATTERN] [--output FILE]

With a CUDA device the times include loading into it. A new process for each number.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.environment import describe

#: The first and the last of what is compiled, and what is used most.
DEFAULT = ("*bf16_d64_full_*", "*bf16_d128_causal_*", "*bf16_d208_causal_*", "*bf16_d256_block_sparse_*softcap*")

_CHILD = """
import sys, time
import torch
from liquidcp_compiler.codegen.build_all import specs
from liquidcp_runtime.cache import KernelCache
from liquidcp_runtime.nvrtc import nvrtc_version
name, arch = sys.argv[1:]
spec = next(s for s in specs() if s.name == name)
device = torch.device("cuda", 0) if torch.cuda.is_available() else None
if device is not None:
    torch.zeros(1, device=device)
cache = KernelCache()
kernel = cache.source(spec, arch)
nvrtc_version()
start = time.perf_counter()
if device is None:
    cache.build(kernel, arch)
else:
    cache.get(spec, device)
print(time.perf_counter() - start)
"""


def seconds(name: str, arch: str, folder: str) -> float:
    """In a new process, with its cache in ``folder``."""
    environment = {**os.environ, "LIQUIDCP_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _CHILD, name, arch]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def table(patterns: tuple[str, ...], arch: str) -> list[str]:
    """One row a kernel."""
    from liquidcp_compiler.codegen.build_all import specs

    lines = ["| kernel | compiled, s | found on disk, ms |", "|---|---|---|"]
    for name in (s.name for s in specs()):
        if not any(fnmatch.fnmatch(name, p) for p in patterns):
            continue
        with tempfile.TemporaryDirectory() as folder:
            cold = seconds(name, arch, folder)
            warm = sorted(seconds(name, arch, folder) for _ in range(3))[1]
        lines.append(f"| {name} | {cold:.2f} | {warm * 1e3:.1f} |")
    return lines


def main() -> None:
    """Entry of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--only", action="append", metavar="PATTERN")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [*describe(), "", *table(tuple(options.only or DEFAULT), options.arch)]
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("# Time until a kernel is ready\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
