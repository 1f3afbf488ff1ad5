"""The oracle: dense attention in float64, torch's own attention in the problem's dtype, and errors beside
both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from liquidcp_compiler.ir.problem import DType, Problem
from liquidcp_runtime.reference_blocks import blocks, check_inputs, check_shape

TILE_ROWS = 128
WHOLE_FACTOR = 1.5
TILE_FACTOR = 3.0
# In fp32 the exponent s - lse is itself rounded, by up to abs(lse) units, so one rounding unit of the output is out of
# reach for anyone: results that differ by the order of their sums alone are a few units apart, more where lse is large.
FP32_SLACK = 8.0
FP32_SLACK_PER_LSE = 2.0


def reference_attention(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of a whole problem, densely and in float64.

    ``q`` [total_q, num_heads_q, head_dim], ``k``, ``v`` [total_kv, num_heads_kv, head_dim], of any float
    dtype and finite; ``sinks`` [num_heads_q] where the problem has sinks.

    Returns ``out`` float64 like ``q`` and ``lse`` float64 [num_heads_q, total_q], natural log, sink included.
    A row that sees nothing has out 0 and lse -inf (with sinks: lse = sink). Computed on the device of ``q``, returned
    on the CPU. Raises TensorError for wrong shapes.
    """
    check_inputs(problem, q, k, v, sinks)
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float64, device=q.device)
    if sinks is not None:
        lse[:] = sinks.detach().double().to(q.device)[:, None]
    for block in blocks(problem):
        queries, keys, values = (x.double() for x in block.take(problem, q, k, v))
        scores = _scores(problem, queries, keys)
        scores.masked_fill_(~block.visible.to(q.device), -torch.inf)
        block_lse = torch.logsumexp(scores, dim=-1)
        if sinks is not None:
            block_lse = torch.logaddexp(block_lse, lse[block.heads, block.rows])
        # exp(-inf - -inf) is NaN: a row without any visible key has weight 0 everywhere.
        weights = torch.exp_(scores.sub_(block_lse.masked_fill(block_lse == -torch.inf, 0.0)[..., None]))
        out[block.rows, block.heads] = torch.matmul(weights, values).transpose(0, 1)
        lse[block.heads, block.rows] = block_lse
    return out.cpu(), lse.cpu()


def sdpa_baseline(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """The same attention as torch's ``scaled_dot_product_attention`` computes it in the problem's dtype.

    With softcap or sinks, which that function lacks: a plain softmax(QK)V with fp32 sums, whose weights and
    output are rounded to the dtype. Returns float32 [total_q, num_heads_q, head_dim] on the CPU, computed on the device
    of ``q``; rows that see nothing are 0.
    """
    check_inputs(problem, q, k, v, sinks)
    dtype = problem.dtype.torch
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    for block in blocks(problem):
        queries, keys, values = (x.to(dtype) for x in block.take(problem, q, k, v))
        visible = block.visible.to(q.device)
        if problem.softcap is None and sinks is None:
            result = torch.nn.functional.scaled_dot_product_attention(
                queries[None], keys[None], values[None], attn_mask=visible, scale=problem.scale
            )[0]
        else:
            block_sinks = None if sinks is None else sinks.detach().float().to(q.device)[block.heads]
            result = _plain_attention(problem, queries, keys, values, visible, block_sinks)
        result = torch.where(visible.any(dim=-1)[:, None], result.float(), 0.0)
        out[block.rows, block.heads] = result.transpose(0, 1)
    return out.cpu()


@dataclass(frozen=True, kw_only=True)
class ErrorReport:
    """Errors of one result beside those of torch's own attention on the same inputs.

    ``whole``: relative Frobenius error of the whole output. ``worst_tile``: the largest relative error of 128
    query rows of one sequence and one head, at ``worst_tile_row`` (packed row) and ``worst_tile_head``. The
    ``_baseline`` fields hold the same of SDPA. ``lse_max``: largest absolute error of lse; ``lse_scaled``:
    the same over max(1, abs(lse)). ``lse_size``: largest finite abs(lse) of the reference. A NaN, a wrong
    infinity, or anything but 0 where the reference is 0 counts as infinite.
    """

    dtype: DType
    whole: float
    whole_baseline: float
    worst_tile: float
    worst_tile_baseline: float
    worst_tile_row: int
    worst_tile_head: int
    lse_max: float
    lse_scaled: float
    lse_size: float = 0.0

    @property
    def max_rel_error(self) -> float:
        """The number that reports print: the worst tile's."""
        return self.worst_tile

    @property
    def whole_limit(self) -> float:
        """Largest ``whole`` that passes."""
        return WHOLE_FACTOR * max(self.whole_baseline, self._unit)

    @property
    def worst_tile_limit(self) -> float:
        """Largest ``worst_tile`` that passes."""
        return TILE_FACTOR * max(self.worst_tile_baseline, self._unit)

    @property
    def _unit(self) -> float:
        if self.dtype is not DType.FP32:
            return self.dtype.rounding_unit
        return self.dtype.rounding_unit * max(FP32_SLACK, FP32_SLACK_PER_LSE * self.lse_size)

    def ok(self, lse_tolerance: float = 1e-5) -> bool:
        """Does the result pass? ``lse_tolerance`` is absolute up to abs(lse) = 1, relative beyond."""
        return (
            self.whole <= self.whole_limit
            and self.worst_tile <= self.worst_tile_limit
            and self.lse_scaled <= lse_tolerance
        )

    def explain(self, lse_tolerance: float = 1e-5) -> str:
        """Three lines: each error, its limit, and pass or FAIL."""
        worst = f"rows from {self.worst_tile_row}, head {self.worst_tile_head}"
        rows = [
            ("whole output", self.whole, self.whole_limit, f"SDPA {self.whole_baseline:.3e}"),
            (
                "worst tile",
                self.worst_tile,
                self.worst_tile_limit,
                f"SDPA {self.worst_tile_baseline:.3e}; {worst}",
            ),
            ("lse", self.lse_scaled, lse_tolerance, f"absolute {self.lse_max:.3e}"),
        ]
        return "\n".join(
            f"{'pass' if error <= limit else 'FAIL'}  {name:<12} {error:.3e}  limit {limit:.3e}  ({note})"
            for name, error, limit, note in rows
        )


def error_report(
    problem: Problem,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None = None,
    *,
    reference: tuple[torch.Tensor, torch.Tensor] | None = None,
    baseline: torch.Tensor | None = None,
) -> ErrorReport:
    """Compare ``out`` [total_q, num_heads_q, head_dim] and ``lse`` [num_heads_q, total_q] with the reference.

    ``q``, ``k``, ``v`` must be the values that the result was computed from, already rounded to the problem's
    dtype. ``reference`` and ``baseline``: results of ``reference_attention`` and ``sdpa_baseline`` on them,
    to save the time.

    Raises TensorError for wrong shapes.
    """
    check_inputs(problem, q, k, v, sinks)
    check_shape("out", out, tuple(q.shape))
    check_shape("lse", lse, (problem.num_heads_q, problem.total_q))
    ref_out, ref_lse = reference_attention(problem, q, k, v, sinks) if reference is None else reference
    base = sdpa_baseline(problem, q, k, v, sinks) if baseline is None else baseline
    first_rows, tile_of_row = _tiles(problem)
    norm = _tile_squares(ref_out, tile_of_row, first_rows.size)
    ours = _tile_squares(out.detach().cpu().double() - ref_out, tile_of_row, first_rows.size)
    theirs = _tile_squares(base.double() - ref_out, tile_of_row, first_rows.size)
    tiles = _relative(ours, norm)
    worst = int(tiles.argmax()) if tiles.numel() else 0
    lse_max, lse_scaled = _lse_errors(lse.detach().cpu().double(), ref_lse)
    return ErrorReport(
        dtype=problem.dtype,
        whole=float(_relative(ours.sum(), norm.sum())),
        whole_baseline=float(_relative(theirs.sum(), norm.sum())),
        worst_tile=float(tiles.max()) if tiles.numel() else 0.0,
        worst_tile_baseline=float(_relative(theirs, norm).max()) if tiles.numel() else 0.0,
        worst_tile_row=int(first_rows[worst // problem.num_heads_q]) if first_rows.size else 0,
        worst_tile_head=worst % problem.num_heads_q,
        lse_max=lse_max,
        lse_scaled=lse_scaled,
        lse_size=float(ref_lse[torch.isfinite(ref_lse)].abs().max()) if torch.isfinite(ref_lse).any() else 0.0,
    )


def _scores(problem: Problem, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[heads, rows, keys] logits of heads-first queries and keys, before the mask."""
    scores = torch.matmul(queries, keys.transpose(1, 2)).mul_(problem.scale)
    cap = problem.softcap
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


def _plain_attention(
    problem: Problem,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """softmax(QK)V of [heads, .., head_dim] tensors: fp32 sums, weights and output in the queries' dtype."""
    scores = _scores(problem, queries.float(), keys.float()).masked_fill_(~visible, -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks[:, None, None])
    weights = torch.exp(scores - top.masked_fill(top == -torch.inf, 0.0))
    total = weights.sum(dim=-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[:, None, None] - top)
    out = torch.matmul(weights.to(queries.dtype).float(), values.float()) / total
    return out.to(queries.dtype)


def _tiles(problem: Problem) -> tuple[np.ndarray, torch.Tensor]:
    """First packed row of each tile, and the tile of each packed row; a tile never spans two sequences."""
    counts = -(-problem.q_lengths // TILE_ROWS)
    tile_in_sequence = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    first_rows = np.repeat(problem.q_offsets[:-1], counts) + tile_in_sequence * TILE_ROWS
    tile_of_row = np.searchsorted(first_rows, np.arange(problem.total_q), side="right") - 1
    return first_rows, torch.from_numpy(tile_of_row)


def _tile_squares(values: torch.Tensor, tile_of_row: torch.Tensor, num_tiles: int) -> torch.Tensor:
    """Sums of squares, float64 [num_tiles, num_heads]; NaN becomes inf."""
    squares = values.square().sum(dim=-1)
    sums = torch.zeros(num_tiles, values.shape[1], dtype=torch.float64).index_add_(0, tile_of_row, squares)
    return sums.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _relative(error: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """sqrt(error / norm) of sums of squares; where the norm is 0: 0 for no error at all, else inf."""
    ratio = torch.where(norm > 0, error / norm, torch.where(error > 0, torch.inf, 0.0))
    return ratio.sqrt()


def _lse_errors(lse: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """Largest error, absolute and over max(1, abs(reference))."""
    if not lse.numel():
        return 0.0, 0.0
    same = lse == reference  # equal infinities too
    error = torch.where(same, 0.0, (lse - reference).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
    scale = torch.where(reference.isfinite(), reference.abs(), 1.0).clamp(min=1.0)
    return float(error.max()), float((error / scale).max())
