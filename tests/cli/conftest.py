"""What tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from liquidcp_compiler.cli import main

PREFILL: dict[str, Any] = {
    "format": 1,
    "kind": "prefill",
    "lengths": [300, 77, 1],
    "num_heads_q": 4,
    "num_heads_kv": 2,
    "head_dim": 64,
    "dtype": "bf16",
    "softmax_scale": None,
    "mask": {"type": "causal"},
}
DECODE: dict[str, Any] = {
    "format": 1,
    "kind": "decode",
    "requests": [{"history": 300, "query": 1}, {"history": 0, "query": 3}],
    "num_heads_q": 4,
    "num_heads_kv": 2,
    "head_dim": 64,
    "dtype": "bf16",
    "softmax_scale": None,
    "mask": {"type": "causal"},
}


@dataclass
class Done:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``cli("plan", path, "--world", 2)`` runs a command in this process."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


@pytest.fixture
def problem_file(tmp_path: Path) -> Callable[..., Path]:
    """``problem_file(lengths=[1, 2])`` writes the prefill problem with changes; ``base=DECODE`` another one."""

    def write(base: dict[str, Any] = PREFILL, **changes: Any) -> Path:
        path = tmp_path / "problem.json"
        path.write_text(json.dumps({**base, **changes}))
        return path

    return write


@pytest.fixture
def decode_file(problem_file: Callable[..., Path]) -> Path:
    """A decode problem."""
    return problem_file(DECODE)
