"""One-line builders: a problem's attention as a graph before placement."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from liquidcp_compiler.ir.graph import AuthoredGraph, RegionTable
from liquidcp_compiler.ir.layout import Role
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem


def prefill(lengths, **fields) -> AuthoredGraph:
    """Attention of a prefill or training batch; ``fields`` are those of :class:`PrefillProblem`.

    Raises InvalidField, MaskError or UnsupportedError.
    """
    return author(PrefillProblem(lengths=lengths, **fields), loc=caller())


def decode(requests, **fields) -> AuthoredGraph:
    """Attention of a decode or mixed batch; ``fields`` are those of :class:`DecodeProblem`.

    Raises InvalidField, MaskError or UnsupportedError.
    """
    return author(DecodeProblem(requests=requests, **fields), loc=caller())


def author(problem: Problem, loc: str | None = None) -> AuthoredGraph:
    """The regions of a problem: a whole sequence each (prefill), or new tokens and history of a request (decode)."""
    q, kv = problem.q_lengths, problem.kv_lengths_array
    if isinstance(problem, DecodeProblem) and problem.new_kv == "chunk":
        history = problem.histories
        parts = [(Role.CHUNK, history, kv), (Role.HISTORY, np.zeros_like(kv), history)]
    else:
        role = Role.HISTORY if isinstance(problem, DecodeProblem) else Role.SELF
        parts = [(role, np.zeros_like(kv), kv)]
    n = len(q)
    regions = RegionTable(
        sequence=np.concatenate([np.arange(n) for _ in parts]).astype(np.int64),
        role=np.concatenate([np.full(n, role) for role, _, _ in parts]).astype(np.int64),
        q_lo=np.zeros(n * len(parts), np.int64),
        q_hi=np.concatenate([q for _ in parts]).astype(np.int64),
        kv_lo=np.concatenate([lo for _, lo, _ in parts]).astype(np.int64),
        kv_hi=np.concatenate([hi for _, _, hi in parts]).astype(np.int64),
        loc=np.zeros(n * len(parts), np.int64),
    )
    return AuthoredGraph(problem=problem, regions=regions, locs=(loc if loc is not None else caller(),))


def caller() -> str:
    """``file:line`` of the nearest frame outside this package: where the user asked for it."""
    frame = sys._getframe(1)
    here = str(Path(__file__).parent.parent)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(here):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
