"""Problems, inputs and damaged plans for the tests of the runtime. All fixtures are stateless functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem, Request

HEADS: dict[str, Any] = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 16, "dtype": "fp32"}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tensors here are small; threads of several test processes would only get into each other's way."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prefill() -> Callable[..., PrefillProblem]:
    """prefill(*lengths, **fields): a small fp32 problem."""
    return lambda *lengths, **fields: PrefillProblem(lengths=lengths, **{**HEADS, **fields})


@pytest.fixture(scope="session")
def decode() -> Callable[..., DecodeProblem]:
    """decode((history, query), ..., **fields): a small fp32 decode step."""
    return lambda *requests, **fields: DecodeProblem(
        requests=tuple(Request(*r) for r in requests), **{**HEADS, **fields}
    )


@pytest.fixture(scope="session")
def tensors() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """tensors(problem, seed=0): q, k, v in the problem's dtype, and sinks (None where it has none)."""

    def make(problem: Problem, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        dtype = problem.dtype.torch
        q = normal(problem.total_q, problem.num_heads_q, problem.head_dim).to(dtype)
        k, v = (normal(problem.total_kv, problem.num_heads_kv, problem.head_dim).to(dtype) for _ in range(2))
        return q, k, v, normal(problem.num_heads_q) if problem.sinks else None

    return make


@pytest.fixture(scope="session")
def edited() -> Callable[..., Plan]:
    """edited(plan, table, rank, index, **fields): the plan with some fields of one row changed.

    ``drop=True`` removes the row instead, ``double=True`` repeats it.
    """

    def edit(
        plan: Plan, table: str, rank: int, index: int, drop: bool = False, double: bool = False, **fields: int
    ) -> Plan:
        row = int(plan.offsets[table][rank]) + index
        rows, offsets = plan.tables[table].copy(), plan.offsets[table].copy()
        for name, value in fields.items():
            rows[name][row] = value
        if drop or double:
            rows = np.delete(rows, row) if drop else np.insert(rows, row, rows[row])
            offsets[rank + 1 :] += -1 if drop else 1
        return replace(plan, tables={**plan.tables, table: rows}, offsets={**plan.offsets, table: offsets})

    return edit
