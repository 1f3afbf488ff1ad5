"""LiquidCP: a compiler for context-parallel attention.

Public names are imported when they are first used, so that ``import liquidcp_compiler`` stays free.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from liquidcp_compiler.version import __version__ as __version__

_HOME = {
    "plan": "driver",
    "compile_plan": "driver",
    "Plan": "ir.plan",
    "PrefillProblem": "ir.problem",
    "DecodeProblem": "ir.problem",
    "Request": "ir.problem",
    "DType": "ir.problem",
    "load_problem": "ir.problem",
    "save_problem": "ir.problem",
    "Causal": "ir.mask",
    "Full": "ir.mask",
    "SlidingWindow": "ir.mask",
    "Document": "ir.mask",
    "SharedPrefix": "ir.mask",
    "BlockSparse": "ir.mask",
    "explain_mask": "ir.mask_bound",
    "prefill": "ir.author",
    "decode": "ir.author",
    "author": "ir.author",
    "GraphBuilder": "ir.graph_builder",
    "print_graph": "ir.printer",
    "parse_graph": "ir.parser",
    "verify": "ir.verifier",
    "Pass": "passes.base",
    "PassContext": "passes.base",
    "Pipeline": "passes.pipeline",
    "LiquidCPError": "errors",
}

__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
