"""Builds a generated CUDA kernel for the CPU: the same text, with the headers in ``include/`` before its own.

Only what has no meaning on a CPU is replaced: the rooms with PTX and shared memory, and the words of CUDA C++.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from liquidcp_compiler.codegen.emitter import GeneratedKernel

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
COMPILER = "g++"
# One symbol a library: several kernels are loaded in one process, each with a scheduler of its own.
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wno-unknown-pragmas")
MESSAGE_BYTES = 1000


class EmulatorError(Exception):
    """The kernel could not be built, or did what the emulator refuses: a deadlock, a divergent warp, a bad address."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EmulatedKernel:
    """A kernel that the CPU runs."""

    name: str
    library: ctypes.CDLL
    boxes: None = None  # portable

    def launch(self, num_ctas: int, params: np.ndarray, seed: int) -> None:
        """Run all threads of ``num_ctas`` CTAs in an order that ``seed`` gives. Raises EmulatorError."""
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        launch = self.library.emulator_launch
        launch.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
        if launch(params.ctypes.data, num_ctas, seed, message, MESSAGE_BYTES):
            raise EmulatorError(f"{self.name}, seed {seed}: {message.value.decode()}")


def emulated_headers() -> dict[str, str]:
    """Include name -> text of each device header that the emulator replaces."""
    return {p.relative_to(INCLUDE).as_posix(): p.read_text() for p in sorted(INCLUDE.rglob("*.cuh"))}


def build(kernel: GeneratedKernel, cache: Path) -> EmulatedKernel:
    """Compile and load ``kernel``; ``cache`` keeps the library under a hash of all that it is made of.

    Raises EmulatorError if there is no compiler, or if it refuses the source.
    """
    folder = cache / f"{kernel.name}.{_content_hash(kernel)}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "kernel.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes share the cache: one builds, the others wait
        if not library.exists():
            _compile(kernel, folder, library)
    return EmulatedKernel(name=kernel.name, library=ctypes.CDLL(str(library)))


def _content_hash(kernel: GeneratedKernel) -> str:
    own = [p.read_text() for p in sorted(INCLUDE.rglob("*.*"))] + [(HERE / "launch.cpp").read_text()]
    parts = [*FLAGS, kernel.source, *(f"{n}\n{t}" for n, t in sorted(kernel.headers.items())), *own]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(kernel: GeneratedKernel, folder: Path, library: Path) -> None:
    if shutil.which(COMPILER) is None:
        raise EmulatorError(
            f"{COMPILER} is not on PATH; tests of the kernel without a GPU need it (version 11 or newer)"
        )
    for name, text in {**kernel.headers, "kernel.cu": kernel.source}.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    unfinished = library.with_suffix(".unfinished")
    command = [COMPILER, *FLAGS, '-DKERNEL_FILE="kernel.cu"', f"-DKERNEL_NAME={kernel.name}"]
    command += [f"-I{INCLUDE}", f"-I{folder / 'source'}", str(HERE / "launch.cpp"), "-o", str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EmulatorError(f"{COMPILER} refuses {kernel.name}:\n{done.stderr}")
    unfinished.replace(library)


def with_line_removed(kernel: GeneratedKernel, header: str, line: str) -> GeneratedKernel:
    """The kernel with a line of one header left out, which must be there once: tests show that its loss is noticed."""
    text = kernel.headers[header]
    assert text.count(line) == 1, f"{header} does not have the line any more: {line}"
    return dataclasses.replace(kernel, headers={**kernel.headers, header: text.replace(line, "")})
