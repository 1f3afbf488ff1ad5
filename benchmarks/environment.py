"""What a result was measured on and with."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np


def describe() -> list[str]:
    """Lines for the head of a result file: command, commit, processor, versions."""
    return [
        f"command: python {' '.join(sys.orig_argv[1:])}",
        f"commit: {commit()}",
        f"processor: {processor()}, Python {platform.python_version()}, numpy {np.__version__}",
    ]


def describe_gpu() -> list[str]:
    """One more line where a GPU was used: device, driver, versions."""
    import torch

    from liquidcp_runtime import driver_api
    from liquidcp_runtime.nvrtc import nvrtc_version

    driver = driver_api.call("cuDriverGetVersion")
    nvrtc = ".".join(map(str, nvrtc_version()))
    cuda = f"CUDA of the driver {driver // 1000}.{driver % 1000 // 10}"
    return [f"device: {torch.cuda.get_device_name()}, {cuda}, NVRTC {nvrtc}, torch {torch.__version__}"]


def commit() -> str:
    """Commit of the source tree, marked if it has changes."""
    root = Path(__file__).parents[1]
    try:
        run = ["git", "-C", str(root)]
        head = subprocess.run([*run, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*run, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + (" with changes" if dirty.stdout.strip() else "")


def processor() -> str:
    """Model name of the processor."""
    info = Path("/proc/cpuinfo")
    names = [x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")]
    return f"{names[0]} x {len(names)}" if names else platform.machine()
