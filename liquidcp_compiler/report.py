"""What a plan does, as JSON data and as text: who owns what, tasks a rank, bytes moved, balance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from liquidcp_compiler.ir.layout import DESCRIPTORS, INDEX_TABLES, Formation, Role, SignalKind, Space
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import DecodeProblem, Problem
from liquidcp_compiler.plan_regions import scores_per_rank

#: Columns of the per-rank table: key in the JSON -> heading.
RANK_COLUMNS: dict[str, str] = {
    "rank": "rank",
    "q_tokens": "q tokens",
    "kv_tokens": "kv tokens",
    "q_tiles": "q tiles",
    "kv_tiles": "kv tiles",
    "transfers": "transfers",
    "bytes_pulled": "pulled",
    "compute_rows": "compute",
    "reductions": "reduce",
    "attention_share": "attention",
}

#: Columns that hold an enum's value: printed by name.
_ENUM_COLUMNS = {"space": Space, "target_space": Space, "formation": Formation, "role": Role, "kind": SignalKind}


def summarize(plan: Plan) -> dict[str, Any]:
    """The plan in plain values.

    ``ranks`` has one entry a rank: tokens and tiles owned, transfers and bytes pulled, compute rows, reductions, and
    ``attention_share``, its part of all query-key scores of touched tiles, times heads. ``imbalance`` is the largest
    share over the mean, minus 1.
    """
    ranks = rank_rows(plan)
    shares = [r["attention_share"] for r in ranks]
    return {
        "problem": plan.problem.to_json(),
        "world": plan.world,
        "tile": plan.tile,
        "pipeline": plan.pipeline,
        "kernel": plan.spec.name,
        "fingerprint": f"{plan.fingerprint:016x}",
        "workspace_bytes": plan.workspace_bytes(),
        "counts": {name.replace(" ", "_"): count for name, count in plan.counts().items()},
        "bytes_pulled": sum(r["bytes_pulled"] for r in ranks),
        "imbalance": max(shares) * plan.world - 1 if sum(shares) > 0 else 0.0,
        "ranks": ranks,
    }


def rank_rows(plan: Plan) -> list[dict[str, Any]]:
    """The entries of ``ranks``, see :func:`summarize`."""
    from liquidcp_runtime.profiles import transfer_bytes

    moved = np.concatenate(([0.0], np.cumsum(transfer_bytes(plan))))[plan.offsets["transfers"]]
    scores = scores_per_rank(plan)
    total = max(float(scores.sum()), 1.0)
    rows = []
    for rank in range(plan.world):
        header = plan.header(rank)
        rows.append(
            {
                "rank": rank,
                "q_tokens": int(header["num_local_q_tokens"]),
                "kv_tokens": int(header["num_local_kv_tokens"]),
                "q_tiles": int(header["num_local_q_tiles"]),
                "kv_tiles": int(header["num_local_kv_tiles"]),
                "transfers": len(plan.table("transfers", rank)),
                "bytes_pulled": int(moved[rank + 1] - moved[rank]),
                "compute_rows": len(plan.table("rows", rank)),
                "reductions": len(plan.table("reductions", rank)),
                "attention_share": float(scores[rank]) / total,
            }
        )
    return rows


def describe_problem(problem: Problem) -> str:
    """One line: kind, sequences, tokens, heads, dtype, mask."""
    if isinstance(problem, DecodeProblem):
        what = f"{counted(len(problem.requests), 'request')}, {counted(problem.total_q, 'new token')}, "
        what += counted(problem.total_kv, "key")
    else:
        what = f"{counted(problem.num_sequences, 'sequence')}, {counted(problem.total_q, 'token')}"
        what += f", {problem.total_kv} keys" if problem.total_kv != problem.total_q else ""
    heads = f"{problem.num_heads_q}/{problem.num_heads_kv} heads of {problem.head_dim}"
    return f"{problem.kind}: {what}, {heads}, {problem.dtype.value}, {problem.mask.type} mask"


def summary_lines(plan: Plan) -> list[str]:
    """What stands above the per-rank table."""
    data = summarize(plan)
    counts = ", ".join(f"{count} {name}" for name, count in plan.counts().items())
    return [
        describe_problem(plan.problem),
        f"{counted(plan.world, 'rank')}, tiles of {plan.tile} tokens; {counts}",
        f"pulled {format_bytes(data['bytes_pulled'])} in all; attention imbalance {data['imbalance']:.1%}; "
        f"workspace up to {format_bytes(data['workspace_bytes'])} a rank",
        f"passes {plan.pipeline}",
        f"kernel {plan.spec.name}, fingerprint {plan.fingerprint:016x}",
    ]


def rank_cells(plan: Plan) -> list[list[str]]:
    """The per-rank table as text cells, in the order of ``RANK_COLUMNS``."""
    return [[_cell(name, row[name]) for name in RANK_COLUMNS] for row in rank_rows(plan)]


def summary_text(plan: Plan) -> str:
    """The summary as plain text, ending with a newline."""
    table = align([list(RANK_COLUMNS.values()), *rank_cells(plan)])
    return "\n".join([*summary_lines(plan), "", *table]) + "\n"


def plan_text(plan: Plan) -> str:
    """The summary, then every row of every table of every rank, for reading and comparing."""
    return summary_text(plan) + "".join(f"\n{line}" for line in _table_lines(plan)) + "\n"


def _table_lines(plan: Plan) -> Iterator[str]:
    for rank in range(plan.world):
        yield f"rank {rank}"
        for d in DESCRIPTORS:
            rows = plan.table(d.table, rank)
            yield f"  {d.table}: {counted(len(rows), 'row')}"
            names = [f.name for f in d.fields if not f.name.startswith("pad")]
            if len(rows):
                columns = [_column(n, rows[n]) for n in names]
                cells = [[str(i), *row] for i, row in enumerate(zip(*columns, strict=True))]
                yield from (f"    {line}" for line in align([["", *names], *cells]))
        for name in INDEX_TABLES:
            yield " ".join((f"  {name}:", *map(str, plan.table(name, rank).tolist())))


def _column(name: str, values: np.ndarray) -> list[str]:
    enum = _ENUM_COLUMNS.get(name)
    return [str(x) if enum is None else enum(x).name.lower() for x in values.tolist()]


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def counted(count: int, noun: str) -> str:
    """``1 rank``, ``4 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_bytes(count: float) -> str:
    """A number of bytes with a binary unit: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def _cell(name: str, value: Any) -> str:
    if name == "bytes_pulled":
        return format_bytes(value)
    return f"{value:.1%}" if name == "attention_share" else str(value)
