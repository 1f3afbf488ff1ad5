"""Global tensors to a plan's local ones and back. The order of local tokens is the order of the plan's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from liquidcp_compiler.errors import PlanError, TensorError
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem_fields import whole_number


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardMap:
    """Where one rank's local rows come from.

    Fields:
        q_index: int64 [local q tokens], row in the global query tensor; kv_index: the same for keys and values.
        q_position: int64 [local q tokens], position of each query among the keys of its sequence.
        heads: query heads that the rank holds.
    """

    q_index: Tensor
    kv_index: Tensor
    q_position: Tensor
    heads: slice


_CPU = torch.device("cpu")
_CACHE: WeakKeyDictionary[Plan, dict[tuple[int, torch.device], ShardMap]] = WeakKeyDictionary()


def shard_map(plan: Plan, rank: int, device: torch.device = _CPU) -> ShardMap:
    """The map of one rank, made once a plan and device: later calls copy nothing to the device and wait for nothing.

    Raises InvalidField for a rank that the plan has not, PlanError where tiles do not fill the local tensors exactly.
    """
    rank = whole_number("rank", rank, 0, plan.world - 1)
    maps = _CACHE.setdefault(plan, {})
    if (rank, device) not in maps:
        made = _build(plan, rank) if device == _CPU else shard_map(plan, rank)
        maps[rank, device] = ShardMap(
            q_index=made.q_index.to(device),
            kv_index=made.kv_index.to(device),
            q_position=made.q_position.to(device),
            heads=made.heads,
        )
    return maps[rank, device]


def shard_q(plan: Plan, rank: int, q: Tensor) -> Tensor:
    """[total_q, num_heads_q, ...] to the rank's [local tokens, local heads, ...] (a copy)."""
    _check_rows("q", q, plan.problem.total_q)
    places = shard_map(plan, rank, q.device)
    return q[places.q_index, places.heads]


def shard_kv(plan: Plan, rank: int, k: Tensor) -> Tensor:
    """[total_kv, num_heads_kv, ...] to the rank's [local KV tokens, num_heads_kv, ...] (a copy)."""
    _check_rows("k or v", k, plan.problem.total_kv)
    return k[shard_map(plan, rank, k.device).kv_index]


def shard_tokens(plan: Plan, rank: int, x: Tensor) -> Tensor:
    """Anything with one row a query token ([total_q, ...]: labels, hidden states) to the rank's tokens (a copy)."""
    _check_rows("x", x, plan.problem.total_q)
    return x[shard_map(plan, rank, x.device).q_index]


def position_ids(plan: Plan, rank: int) -> Tensor:
    """int64 [local tokens]: position of each local query among the keys of its sequence (i + kv_len - q_len)."""
    return shard_map(plan, rank).q_position.clone()


def loss_weights(
    plan: Plan, rank: int, weights: Tensor, *, total: float | None = None, averaged_over: int = 1
) -> Tensor:
    """Factors for a rank's per-token losses, so that the ranks' sums add up to the mean over the batch's tokens.

    Ranks hold different numbers of tokens, so the mean of each rank's own mean would count tokens of light ranks more.
    Here nobody divides by a local count: a rank takes (its per-token losses * these factors).sum(), and the ranks' sums
    are added, not averaged.

    Args:
        weights: [total_q] in the batch's order, e.g. 0 for padding and prompts, 1 for what is learned.
        total: sum of the weights of all batches of the step, where there are several (data parallelism, gradient
            accumulation); None takes this batch's.
        averaged_over: number of ranks that the training framework divides summed gradients by (DDP and FSDP average
            over their group); 1 where it adds them.

    Returns float32 [local tokens]: the rank's weights * averaged_over / total; zeros where all weights are zero.
    Raises TensorError for a wrong number of weights, PlanError for decode plans, whose ranks share all tokens.
    """
    if plan.problem.kind == "decode":
        raise PlanError("loss weights are for prefill plans; every rank of a decode plan has all tokens")
    local = shard_tokens(plan, rank, weights).to(torch.float64)
    whole = weights.sum(dtype=torch.float64) if total is None else torch.as_tensor(total, dtype=torch.float64)
    scale = torch.where(whole > 0, averaged_over / whole, torch.zeros_like(whole))
    return (local * scale.to(local.device)).to(torch.float32)


def unshard(plan: Plan, outs: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """Local [tokens, heads, ...] tensors of all ranks to the global [total_q, num_heads_q, ...]; inverse of `shard_q`.

    ``out``, where given, receives the result.
    """
    _check_ranks(plan, outs)
    p = plan.problem
    tail, like = (outs[0].shape[2:], outs[0])
    result = like.new_empty((p.total_q, p.num_heads_q, *tail)) if out is None else out
    for rank, local in enumerate(outs):
        places = shard_map(plan, rank, local.device)
        _check_rows(f"outs[{rank}]", local, len(places.q_index))
        result[places.q_index, places.heads] = local
    return result


def unshard_lse(plan: Plan, lses: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """Local [heads, tokens] tensors of all ranks to the global [num_heads_q, total_q]."""
    _check_ranks(plan, lses)
    p = plan.problem
    result = lses[0].new_empty((p.num_heads_q, p.total_q)) if out is None else out
    unshard(plan, [x.transpose(0, 1) for x in lses], out=result.transpose(0, 1))
    return result


def _check_rows(name: str, x: Tensor, rows: int) -> None:
    if x.dim() < 1 or x.shape[0] != rows:
        raise TensorError(name, "shape", tuple(x.shape), f"({rows}, ...)", "one row a token of the problem or shard")


def _check_ranks(plan: Plan, tensors: Sequence[Tensor]) -> None:
    if len(tensors) != plan.world:
        raise PlanError(f"{len(tensors)} local tensors for a plan of {plan.world} ranks")


def _build(plan: Plan, rank: int) -> ShardMap:
    header, problem = plan.header(rank), plan.problem
    q = plan.table("q_tiles", rank)[: header["num_local_q_tiles"]]
    kv = plan.table("kv_tiles", rank)[: header["num_local_kv_tiles"]]
    sequence_of = plan.table("sequences", rank)["sequence"]
    q_tile, q_row = _token_rows(q, int(header["num_local_q_tokens"]), f"query tensor of rank {rank}")
    kv_tile, kv_row = _token_rows(kv, int(header["num_local_kv_tokens"]), f"KV tensor of rank {rank}")

    q_sequence = sequence_of[q["sequence"]][q_tile]
    q_idx = q["position"][q_tile] + q_row
    shift = problem.kv_lengths_array - problem.q_lengths
    tiles = kv[kv_tile]
    local = tiles["position"].astype(np.int64) + kv_row
    inter = np.maximum(tiles["interleave"], 1).astype(np.int64)
    key = (local // inter * tiles["group"] + tiles["phase"]) * inter + local % inter
    key_index = problem.kv_offsets[sequence_of[tiles["sequence"]]] + key
    return ShardMap(
        q_index=torch.from_numpy(problem.q_offsets[q_sequence] + q_idx),
        kv_index=torch.from_numpy(key_index.astype(np.int64)),
        q_position=torch.from_numpy(q_idx + shift[q_sequence]),
        heads=_heads(plan, rank, q),
    )


def _token_rows(tiles: np.ndarray, tokens: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """For each local token: its tile and its row in that tile. The tiles must fill [0, tokens) exactly."""
    order = np.argsort(tiles["token"], kind="stable")
    rows = tiles["rows"][order].astype(np.int64)
    starts = np.cumsum(rows) - rows
    if not np.array_equal(tiles["token"][order], starts) or int(rows.sum()) != tokens:
        raise PlanError(f"{what}: its tiles do not fill {tokens} tokens exactly once")
    return np.repeat(order, rows), np.arange(tokens, dtype=np.int64) - np.repeat(starts, rows)


def _heads(plan: Plan, rank: int, q_tiles: np.ndarray) -> slice:
    """The query heads of a rank: the same for all of its tiles. A rank without tiles holds no token, of any head."""
    if not len(q_tiles):
        return slice(0, plan.problem.num_heads_q)
    first, count = int(q_tiles["head"][0]), int(q_tiles["num_heads"][0])
    if (q_tiles["head"] != first).any() or (q_tiles["num_heads"] != count).any():
        raise PlanError(f"rank {rank} owns query tiles of different heads")
    return slice(first, first + count)
