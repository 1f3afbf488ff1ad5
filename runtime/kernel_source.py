"""What the runtime knows of generated kernels, and where it gets them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Protocol

from liquidcp_compiler.ir.kernel_path import TensorBoxes
from liquidcp_compiler.ir.kernel_spec import KernelSpec


class KernelSource(Protocol):
    """What the runtime needs to know of a generated kernel."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def smem_bytes(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def boxes(self) -> TensorBoxes | None: ...


#: emit(spec, arch): the kernel that ``arch`` runs for ``spec``. Equal arguments give equal texts.
Emit = Callable[[KernelSpec, str], KernelSource]


def default_emit() -> Emit:
    """The code generator, found by name and on first use only.

    The runtime does not depend on codegen: it takes any :data:`Emit`, and a process that is given one (or kernels that
    are loaded already) never imports the generator.
    """
    return importlib.import_module("liquidcp_compiler.codegen.emitter").emit
