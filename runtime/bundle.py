"""Prebuilt kernels in a folder: cubins, and ``index.json`` that says what they are.

A machine without a compiler runs from it. A cubin is used only for the very sources that it was compiled from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.atomic_file import write_file
from liquidcp_compiler.ir.kernel_path import PATHS, PORTABLE, TensorBoxes
from liquidcp_compiler.version import __version__
from liquidcp_runtime.cubin import KernelResources
from liquidcp_runtime.cubin_key import layout_hash
from liquidcp_runtime.warn_once import warn_once

FORMAT = 1
INDEX = "index.json"


@dataclass(frozen=True, kw_only=True)
class BundledKernel:
    """One cubin of a bundle.

    Fields: ``name``, ``arch``; ``source_key`` of its sources and ``nvrtc``, the version that compiled them; ``size`` in
    bytes and ``sha256`` of the cubin; ``num_threads`` of a CTA and its dynamic ``smem_bytes``; ``resources``; ``spec``,
    as ``KernelSpec.to_json`` gives it; ``path`` and ``boxes``: see ``ir.kernel_path``.
    """

    name: str
    arch: str
    source_key: str
    nvrtc: str
    size: int
    sha256: str
    num_threads: int
    smem_bytes: int
    resources: KernelResources
    spec: dict[str, Any]
    path: str = PORTABLE
    boxes: TensorBoxes | None = None

    @property
    def file_name(self) -> str:
        """Of the cubin; kernels of one name differ in their sources."""
        return f"{self.name}.{self.arch}.{self.source_key[:12]}.cubin"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A folder of cubins. ``layout_hash`` (16 hex digits) and ``liquidcp`` (version) are of what built it."""

    folder: Path
    layout_hash: str
    liquidcp: str
    kernels: tuple[BundledKernel, ...]

    @classmethod
    def read(cls, folder: Path | str) -> Bundle:
        """Read the index. Raises InvalidField for a folder that is no bundle."""
        path = Path(folder) / INDEX
        try:
            data = json.loads(path.read_bytes())
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']}, this version reads {FORMAT}")
            kernels = tuple(_kernel(entry) for entry in data["kernels"])
            return cls(folder=Path(folder), layout_hash=data["layout_hash"], liquidcp=data["liquidcp"], kernels=kernels)
        except (OSError, ValueError, KeyError, TypeError) as error:
            allowed = "a folder that `liquidcp kernels build -o` wrote"
            raise InvalidField("bundle", str(folder), allowed, f"{INDEX}: {type(error).__name__}: {error}") from error

    def cubin(self, name: str, arch: str, source_key: str) -> bytes | None:
        """The cubin for exactly these sources, or None; warns once if the bundle holds others of that name.

        Other descriptors, other sources and damage make a cubin unusable.
        """
        kernel = next((k for k in self.kernels if k.source_key == source_key and k.arch == arch), None)
        if self.layout_hash != layout_hash():
            return self._unusable(f"its descriptors have layout {self.layout_hash}, these {layout_hash()}")
        if kernel is None:
            if any(k.name == name and k.arch == arch for k in self.kernels):
                self._unusable(f"{name} was built from other sources (by liquidcp {self.liquidcp})")
            return None
        try:
            cubin = (self.folder / kernel.file_name).read_bytes()
        except OSError as error:
            return self._unusable(f"{kernel.file_name}: {error.strerror or error}")
        if hashlib.sha256(cubin).hexdigest() != kernel.sha256:
            return self._unusable(f"{kernel.file_name} is damaged")
        return cubin

    def _unusable(self, reason: str) -> None:
        warn_once(str(self.folder), f"bundle {self.folder}: {reason}; compiling instead. Build the bundle again")


def write_bundle(folder: Path, built: Sequence[tuple[BundledKernel, bytes]]) -> Bundle:
    """Write the cubins, then the index, then remove what only an earlier index of the folder named.

    Raises InvalidField for a folder with something else in it; OSError.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / INDEX).exists())):
        raise InvalidField("output", str(folder), "a new or empty folder, or an earlier bundle, which is replaced")
    for kernel, cubin in built:
        write_file(folder / kernel.file_name, cubin)
    kernels = tuple(kernel for kernel, _ in built)
    bundle = Bundle(folder=folder, layout_hash=layout_hash(), liquidcp=__version__, kernels=kernels)
    head = {"format": FORMAT, "liquidcp": bundle.liquidcp, "layout_hash": bundle.layout_hash}
    write_file(folder / INDEX, json.dumps({**head, "kernels": [asdict(k) for k in kernels]}, indent=1))
    for path in set(folder.glob("*.cubin")) - {folder / kernel.file_name for kernel in kernels}:
        path.unlink()
    return bundle


def _kernel(entry: dict[str, Any]) -> BundledKernel:
    boxes = entry.get("boxes")
    parts = {
        "resources": KernelResources(**entry["resources"]),
        "boxes": None if boxes is None else TensorBoxes(**boxes),
    }
    kernel = BundledKernel(**{**entry, **parts})
    if kernel.path not in PATHS:
        raise ValueError(f"{kernel.name} is of path {kernel.path!r}; known: {', '.join(PATHS)}")
    if Path(kernel.file_name).name != kernel.file_name:
        raise ValueError(f"{kernel.file_name} is no plain file name")
    return kernel
