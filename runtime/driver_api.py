"""The only place that looks at a status of the CUDA libraries.

``cuda.bindings`` is loaded on first use, so importing this module needs no driver and no toolkit. It works
with cuda-bindings 12.9 and 13, whose calls return ``(status, *values)``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Literal

from liquidcp_compiler.errors import DriverError, LiquidCPError

Library = Literal["driver", "runtime", "nvrtc"]


def bindings(library: Library = "driver") -> ModuleType:
    """The module ``cuda.bindings.<library>``. Raises DriverError when cuda-python is not installed."""
    try:
        return importlib.import_module(f"cuda.bindings.{library}")
    except ImportError as error:
        message = f"cuda.bindings.{library} cannot be imported ({error}); install cuda-python >= 12.9, < 14"
        raise DriverError(message) from error


def check(result: tuple[Any, ...], call_name: str, error: type[LiquidCPError] = DriverError) -> Any:
    """Turn ``(status, *values)`` into nothing, the one value, or the tuple of values.

    Raises ``error`` with the call's name, the status's name and number, and the library's own words for it.
    """
    status, *values = result
    if int(status) != 0:
        raise error(f"{call_name} failed: {status.name} ({int(status)}){_explain(status)}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def call(name: str, *args: Any, library: Library = "driver", error: type[LiquidCPError] = DriverError) -> Any:
    """Call ``cuda.bindings.<library>.<name>`` and check its status.

    Raises ``error`` also when the library itself (the driver, NVRTC) is not on this machine.
    """
    module = bindings(library)
    function = getattr(module, name, None)
    if function is None:
        raise error(f"cuda.bindings.{library} has no {name}; cuda-python >= 12.9, < 14 is supported")
    try:
        result = function(*args)
    except RuntimeError as problem:  # the loader's errors and "function not found" are RuntimeErrors
        raise error(f"{name}: {_LIBRARY_HINTS[library]} ({_first_line(problem)})") from problem
    return check(result, name, error)


_LIBRARY_HINTS = {
    "driver": "the CUDA driver cannot be used; is an NVIDIA GPU with its driver installed on this machine?",
    "runtime": "the CUDA runtime library cannot be used",
    "nvrtc": "the NVRTC library cannot be loaded; install nvidia-cuda-nvrtc-cu12 >= 12.9",
}


def _explain(status: Any) -> str:
    """The library's sentence about a status, or nothing for a status without one."""
    kind = type(status).__name__
    if kind == "CUresult":
        known, text = bindings("driver").cuGetErrorString(status)
    elif kind == "cudaError_t":
        known, text = bindings("runtime").cudaGetErrorString(status)
    else:  # NVRTC's own sentence repeats the status's name
        return ""
    if int(known) != 0 or not text:
        return ""
    return f": {text.decode(errors='replace') if isinstance(text, bytes) else text}"


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
