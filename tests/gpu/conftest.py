"""GPU tests also run from a bare source tree, on machines where nothing can be installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _register_runtime() -> None:
    """Make ``runtime/`` importable under the name that it is installed as, if it is not installed."""
    if importlib.util.find_spec("liquidcp_runtime") is not None:
        return
    folder = Path(__file__).parents[2] / "runtime"
    spec = importlib.util.spec_from_file_location(
        "liquidcp_runtime", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["liquidcp_runtime"] = module
    spec.loader.exec_module(module)


_register_runtime()
