"""Compile CUDA source to a cubin with NVRTC, in this process, from headers held in memory.

No file is read: what NVRTC sees is exactly ``source`` and ``headers``, so a cache may hash those. No toolkit
is needed; the library comes from the ``nvidia-cuda-nvrtc-cu12`` package.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from liquidcp_compiler.errors import InvalidField, NvrtcError
from liquidcp_compiler.options import cuda_library_folders
from liquidcp_runtime import driver_api

# Options of every compilation. `-v` makes ptxas put registers and spills in the log; precompiled headers stay
# off, since processes that compile at once race for them.
BASE_OPTIONS = ("--std=c++20", "-lineinfo", "--ptxas-options=-v", "--no-source-include")

# What would change the architecture, the language or the set of files behind the caller's back.
_RESERVED_OPTION = re.compile(
    r"--?(gpu-architecture|arch|std|pch|create-pch|use-pch|pch-dir|include-path|I)(?![a-z-])|-I"
)

_ARCH = re.compile(r"sm_(\d+)([af]?)")
_FIRST_VERSION = {"": (12, 0), "a": (12, 0), "f": (12, 9)}


@dataclass(frozen=True, kw_only=True)
class CompiledCubin:
    """A cubin and how it was made; ``seconds`` is the time inside NVRTC, ``log`` may be empty."""

    cubin: bytes
    log: str
    arch: str
    nvrtc_version: tuple[int, int]
    options: tuple[str, ...]
    seconds: float


def nvrtc_version() -> tuple[int, int]:
    """Version (major, minor) of the NVRTC library that compiles. Raises NvrtcError when there is none."""
    major, minor = driver_api.call("nvrtcVersion", library="nvrtc", error=NvrtcError)
    return int(major), int(minor)


def supported_archs() -> tuple[int, ...]:
    """Compute capabilities that the NVRTC library knows, ascending: 90 stands for sm_90 and sm_90a."""
    archs = driver_api.call("nvrtcGetSupportedArchs", library="nvrtc", error=NvrtcError)
    return tuple(sorted(int(arch) for arch in archs))


def library_path() -> str:
    """Absolute path of the NVRTC library in use, for messages; "(unknown path)" if it cannot be told."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        return load_nvidia_dynamic_lib("nvrtc").abs_path or "(unknown path)"
    except RuntimeError:
        return "(unknown path)"


def compile_flags(arch: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Every option that NVRTC is given, in order."""
    return (f"--gpu-architecture={arch}", *BASE_OPTIONS, *options)


def check_arch(arch: str) -> None:
    """Raise InvalidField for a malformed ``arch``, NvrtcError for one that this NVRTC cannot compile for."""
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise InvalidField("arch", arch, "sm_<number>, with a or f behind it where wanted, e.g. sm_80, sm_90a")
    version, known, needed = nvrtc_version(), supported_archs(), _FIRST_VERSION[match[2]]
    if version >= needed and int(match[1]) in known:
        return
    least = f", and {arch} needs NVRTC {needed[0]}.{needed[1]}" if version < needed else ""
    raise NvrtcError(
        f"NVRTC {version[0]}.{version[1]} at {library_path()} cannot compile for {arch}: what it knows "
        f"lies between sm_{known[0]} and sm_{known[-1]}{least}; upgrade nvidia-cuda-nvrtc-cu12 or choose another arch"
        f"{_others()}"
    )


def other_libraries() -> tuple[str, ...]:
    """Paths of the NVRTC libraries on this machine besides the one in use, in the order that they are looked for."""
    folders = [*cuda_library_folders(), *map(Path, glob.glob("/usr/local/cuda*/lib64"))]
    folders += [Path(folder) for root in sys.path for folder in glob.glob(f"{root}/nvidia/*/lib")]
    found = [path for folder in folders for path in sorted(folder.glob("libnvrtc.so*"))]
    real = dict.fromkeys(os.path.realpath(path) for path in found)
    return tuple(path for path in real if path != os.path.realpath(library_path()))


def _others() -> str:
    others = other_libraries()
    return f". Other NVRTC libraries found: {', '.join(others)}; see to it that one is loaded first" if others else ""


def compile_cubin(
    source: str,
    headers: Mapping[str, str],
    arch: str,
    name: str = "kernel.cu",
    options: Sequence[str] = (),
    *,
    dump_dir: Path | None = None,
) -> CompiledCubin:
    """Compile ``source`` for ``arch`` (e.g. ``"sm_90a"``) to a cubin.

    ``headers`` maps the names that ``#include <...>`` uses (``"liquidcp/ptx/mma.cuh"``) to texts. ``options``
    come after ``BASE_OPTIONS``. On failure source and headers are saved under ``dump_dir`` where one is
    given, in the shape that ``nvcc -I <dump_dir>`` compiles. Raises NvrtcError with the log and that path;
    InvalidField for a name, arch or option that is not allowed.
    """
    _check_names(name, headers)
    _check_options(options)
    check_arch(arch)
    flags = compile_flags(arch, options)
    program = driver_api.call(
        "nvrtcCreateProgram",
        source.encode(),
        name.encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [header.encode() for header in headers],
        library="nvrtc",
        error=NvrtcError,
    )
    start = time.perf_counter()
    try:
        status = driver_api.bindings("nvrtc").nvrtcCompileProgram(
            program, len(flags), [flag.encode() for flag in flags]
        )
        log = _fetch(program, "ProgramLog").rstrip(b"\0 \n").decode(errors="replace")
        if int(status[0]) != 0:
            saved = _save(dump_dir, name, source, headers)
            raise NvrtcError(f"{name} does not compile for {arch}: {status[0].name}", log=log, source_path=saved)
        cubin = _fetch(program, "CUBIN")
    finally:
        driver_api.call("nvrtcDestroyProgram", program, library="nvrtc", error=NvrtcError)
    return CompiledCubin(
        cubin=cubin,
        log=log,
        arch=arch,
        nvrtc_version=nvrtc_version(),
        options=flags,
        seconds=time.perf_counter() - start,
    )


def _fetch(program: object, what: str) -> bytes:
    """Call nvrtcGet<what>Size and nvrtcGet<what>."""
    size = driver_api.call(f"nvrtcGet{what}Size", program, library="nvrtc", error=NvrtcError)
    # A bytearray, not bytes: NVRTC writes into the buffer, and Python shares one object among all bytes of
    # length one.
    buffer = bytearray(int(size))
    driver_api.call(f"nvrtcGet{what}", program, buffer, library="nvrtc", error=NvrtcError)
    return bytes(buffer)


def _check_names(name: str, headers: Mapping[str, str]) -> None:
    if name in ("", "..") or PurePosixPath(name).name != name:
        raise InvalidField("name", name, "a file name without a folder, e.g. kernel.cu")
    for header in headers:
        parts = header.split("/")
        if not all(parts) or "." in parts or ".." in parts or "\\" in header or header == name:
            raise InvalidField("headers", header, "canonical relative names such as liquidcp/ptx/mma.cuh")


def _check_options(options: Sequence[str]) -> None:
    for option in options:
        if _RESERVED_OPTION.match(option):
            hint = "The architecture is an argument of its own; files come from `headers` alone"
            raise InvalidField("options", option, f"NVRTC options other than {_RESERVED_OPTION.pattern}", hint)


def _save(dump_dir: Path | None, name: str, source: str, headers: Mapping[str, str]) -> str:
    """Write the source and its headers; returns the source's path, or "" without a folder."""
    if dump_dir is None:
        return ""
    for file_name, text in {**headers, name: source}.items():
        path = dump_dir / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(dump_dir / name)
