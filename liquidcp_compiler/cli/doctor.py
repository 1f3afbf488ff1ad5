"""``liquidcp doctor``: what this machine has."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from typing import Any

from liquidcp_compiler import __version__
from liquidcp_compiler.cli.inputs import JsonOption
from liquidcp_compiler.cli.output import Output
from liquidcp_compiler.errors import LiquidCPError

PACKAGES = ("torch", "numpy", "numba", "cuda-python", "nvidia-cuda-nvrtc-cu12")


def doctor(as_json: JsonOption = False) -> int:
    """Print versions, NVRTC and its architectures, GPUs, cache folder and options; exit 1 if something is broken.

    A machine without a GPU is not broken.
    """
    out = Output(as_json)
    problems: list[str] = []
    data: dict[str, Any] = {"liquidcp": __version__, "python": platform.python_version()}
    data |= {"platform": platform.platform(), "packages": {name: _version(name) for name in PACKAGES}}
    data["nvrtc"] = _try(_nvrtc, problems)
    data["driver"] = _try(_driver, None)
    data["gpus"] = _try(_gpus, None)
    data["cache_dir"] = _try(_cache_dir, problems)
    data["options"] = _try(_options, problems)
    data["problems"] = problems
    out.table(["", ""], [[name, _text(value)] for name, value in _rows(data)], left=[0, 1])
    for problem in problems:
        out.line(f"problem: {problem}")
    out.result(data)
    return 1 if problems else 0


def _try(probe: Callable[[], Any], problems: list[str] | None) -> Any:
    """What a probe finds; its error's first line where it cannot be had, which may be a problem."""
    try:
        return probe()
    except LiquidCPError as error:
        reason = str(error).split("\n")[0]
        if problems is not None and reason not in problems:
            problems.append(reason)
        return {"missing": reason}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _nvrtc() -> dict[str, Any]:
    from liquidcp_runtime import nvrtc

    version = ".".join(map(str, nvrtc.nvrtc_version()))
    found = {"version": version, "archs": list(nvrtc.supported_archs()), "path": nvrtc.library_path()}
    others = nvrtc.other_libraries()
    return {**found, "not_loaded": list(others)} if others else found


def _driver() -> str:
    from liquidcp_runtime import driver_api

    version = int(driver_api.call("cuDriverGetVersion"))
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def _gpus() -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [
        {"name": p.name, "arch": f"sm_{p.major}{p.minor}", "num_sms": p.multi_processor_count, "bytes": p.total_memory}
        for p in found
    ]


def _cache_dir() -> str:
    from liquidcp_compiler import options

    return str(options.cache_dir())


def _options() -> dict[str, str]:
    from liquidcp_compiler import options

    return {
        options.CACHE_DIR.name: str(options.read_folder(options.CACHE_DIR) or "unset"),
        options.DUMP_IR.name: str(options.dump_ir() or "unset"),
        options.KERNELS.name: os.pathsep.join(map(str, options.kernels())) or "unset",
        options.VERIFY.name: options.verify(),
    }


def _rows(data: dict[str, Any]) -> list[tuple[str, Any]]:
    """The data as name and value, one level of nesting opened."""
    rows: list[tuple[str, Any]] = []
    for name, value in data.items():
        if name == "problems":
            continue
        if name in ("packages", "options") and "missing" not in value:
            rows += value.items()
        else:
            rows.append((name, value))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, dict) and "missing" in value:
        return f"none: {value['missing']}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return (", " if value and isinstance(value[0], dict) else " ").join(map(_text, value)) or "none"
    return str(value)
