"""What several files of fault rows use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, of child processes too."""
    monkeypatch.setenv("LIQUIDCP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
