"""What a placement costs, before anything is planned: loads, imbalance, shards, communication."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem import DType
from liquidcp_compiler.ir.problem_fields import MAX_HEADS, whole_number
from liquidcp_compiler.ir.tiles import contiguous_tiles
from liquidcp_compiler.passes.magi_chunks import causal_area
from liquidcp_compiler.passes.placement import Placement, is_finite
from liquidcp_compiler.report import align, counted, format_bytes

#: Load tolerances of the paper (section 4.2), as shares of the mean.
TOKEN_TOLERANCE, WORK_TOLERANCE = 0.10, 0.05
#: Rows of the table of sequences in text.
MAX_SEQUENCES = 40


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """What turns tokens into bytes and pairs into FLOP.

    Fields: ``num_heads_q``, ``num_heads_kv``, ``head_dim``, ``dtype`` of keys and values.
    """

    num_heads_q: int = 32
    num_heads_kv: int = 8
    head_dim: int = 128
    dtype: DType = DType.BF16

    def __post_init__(self) -> None:
        for name in ("num_heads_q", "num_heads_kv", "head_dim"):
            whole_number(name, getattr(self, name), 1, MAX_HEADS)
        if self.dtype not in list(DType):
            raise InvalidField("dtype", self.dtype, ", ".join(d.value for d in DType))

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * self.num_heads_kv * self.head_dim * DType(self.dtype).bytes

    @property
    def pair_flops(self) -> int:
        """Floating-point operations of one query-key pair over all heads, forward: two products."""
        return 4 * self.num_heads_q * self.head_dim


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementReport:
    """Loads of a placement, as the paper counts them (section 4.2) and as its tiles come out.

    Nominally each of the g ranks of a sequence of L tokens gets L / g tokens and L (L + 1) / 2g query-key pairs; with
    explicit tiles, what its tiles hold. A causal mask is assumed.

    Fields:
        placement: what is reported on.
        shape: heads and element type, for bytes.
        token_tolerance, work_tolerance: largest imbalance allowed, as shares (0.10 is 10 %).
    """

    placement: Placement
    shape: AttentionShape = AttentionShape()
    token_tolerance: float = TOKEN_TOLERANCE
    work_tolerance: float = WORK_TOLERANCE

    def __post_init__(self) -> None:
        for name in ("token_tolerance", "work_tolerance"):
            if not (is_finite(value := getattr(self, name)) and value >= 0):
                raise InvalidField(name, value, "shares >= 0, e.g. 0.05")

    @cached_property
    def tokens(self) -> NDArray[np.float64]:
        """float64 [world]: nominal tokens of each rank."""
        return self._loads[0]

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """float64 [world]: nominal query-key pairs of each rank."""
        return self._loads[1]

    @cached_property
    def tile_tokens(self) -> NDArray[np.int64]:
        """int64 [world]: tokens in the tiles of each rank."""
        return self._tiles[0].sum(axis=1)

    @cached_property
    def tile_work(self) -> NDArray[np.int64]:
        """int64 [world]: query-key pairs of the query tiles of each rank."""
        return self._tiles[1]

    @cached_property
    def received(self) -> NDArray[np.float64]:
        """float64 [world]: tokens whose keys and values a rank gets from others, L - L / g of a sequence it shares."""
        return self._members @ self.placement.lengths - self.tokens

    @cached_property
    def pulls(self) -> NDArray[np.int64]:
        """int64 [world]: (sequence, peer) pairs that a rank receives from."""
        return (self._members * np.maximum(self.placement.degrees - 1, 0)).sum(axis=1)

    @property
    def token_imbalance(self) -> float:
        """D_T in percent: the largest deviation from the mean tokens of a rank."""
        return imbalance(self.tokens)

    @property
    def work_imbalance(self) -> float:
        """D_W in percent."""
        return imbalance(self.work)

    @property
    def violation(self) -> float:
        """V in percentage points: how far D_T or D_W lies above its tolerance; 0 where both are met."""
        over_tokens = self.token_imbalance - 100 * self.token_tolerance
        return max(0.0, over_tokens, self.work_imbalance - 100 * self.work_tolerance)

    @property
    def num_shards(self) -> int:
        """Sum of the degrees."""
        return int(self.placement.degrees.sum())

    @property
    def num_groups(self) -> int:
        """Distinct sets of ranks, single ranks among them."""
        return len({frozenset(s.ranks) for s in self.placement.sequences if s.ranks})

    @property
    def num_rounds(self) -> int:
        """Rounds of the scheme; 1 where it has none."""
        return 1 + max((s.round for s in self.placement.sequences), default=0)

    @property
    def comm_tokens(self) -> float:
        """The paper's communication proxy: the sum of L (g - 1) / g."""
        lengths, degrees = self.placement.lengths, np.maximum(self.placement.degrees, 1)
        return float((lengths * (degrees - 1) / degrees).sum())

    @property
    def comm_bytes(self) -> float:
        """The proxy times the bytes of a token's keys and values."""
        return self.comm_tokens * self.shape.kv_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain values: D_T and D_W in percent, V in percentage points, ``bytes`` of the proxy.

        ``tiles`` has what the tiles come to: D_T, D_W and the ranks again.
        """
        return {
            "placement": self.placement.scheme,
            "world": self.placement.world,
            "D_T": self.token_imbalance,
            "D_W": self.work_imbalance,
            "V": self.violation,
            "shards": self.num_shards,
            "groups": self.num_groups,
            "rounds": self.num_rounds,
            "comm_tokens": self.comm_tokens,
            "bytes": self.comm_bytes,
            "ranks": _rank_rows(self.tokens, self.work),
            "tiles": {
                "D_T": imbalance(self.tile_tokens),
                "D_W": imbalance(self.tile_work),
                "ranks": _rank_rows(self.tile_tokens, self.tile_work),
            },
            "sequences": [s.to_json() for s in self.placement.sequences],
        }

    def summary_lines(self) -> list[str]:
        """What stands above the tables."""
        p, shape = self.placement, self.shape
        lengths = p.lengths
        met = "within" if self.violation == 0 else f"V {self.violation:.3f}, outside"
        rounds = f", {self.num_rounds} rounds" if self.num_rounds > 1 else ""
        return [
            f"{p.scheme} on {counted(p.world, 'rank')}: {counted(len(lengths), 'sequence')}, {lengths.sum()} tokens, "
            f"longest {lengths.max(initial=0)}",
            f"D_T {self.token_imbalance:.3f} %, D_W {self.work_imbalance:.3f} %, {met} tolerances "
            f"{self.token_tolerance:.0%}, {self.work_tolerance:.0%}",
            f"{counted(self.num_shards, 'shard')}, {counted(self.num_groups, 'group')}{rounds}; communication proxy "
            f"{self.comm_tokens:.0f} tokens, {format_bytes(self.comm_bytes)} with {shape.num_heads_kv} KV heads of "
            f"{shape.head_dim} in {shape.dtype}",
        ]

    def rank_cells(self) -> list[list[str]]:
        """The table of ranks, headings first; deviations from the mean in percent, nominal and of the tiles."""
        columns = [self.tokens, self.work, self.tile_tokens, self.tile_work]
        rows = [["rank", "tokens", "", "work", "", "in tiles", "", "work", ""]]
        for rank in range(self.placement.world):
            row = [str(rank)]
            for load in columns:
                mean = load.mean()
                row += [f"{load[rank]:.0f}", f"{100 * (load[rank] / mean - 1) if mean else 0:+.2f} %"]
            rows.append(row)
        return rows

    def sequence_cells(self, most: int = MAX_SEQUENCES) -> list[list[str]]:
        """The table of sequences, headings first: the ``most`` longest, in the batch's order."""
        shown = sorted(np.argsort(-self.placement.lengths, kind="stable")[:most].tolist())
        rows = [["sequence", "length", "part", "ranks", "round"]]
        for i in shown:
            s = self.placement.sequences[i]
            rows.append([str(i), str(s.length), self.part(i), describe_ranks(s.ranks), str(s.round)])
        return rows

    def part(self, sequence: int) -> str:
        """Degree x tokens per rank, as ``2 x 12K`` (figure 7); a range of tokens for explicit tiles."""
        s = self.placement.sequences[sequence]
        if self.placement.tile_ranks is None:
            return f"{s.degree} x {short_tokens(s.length / s.degree)}" if s.degree else "empty"
        held = self._tiles[0][list(s.ranks), sequence]
        if not s.ranks or held.min() == held.max():
            return f"{s.degree} x {short_tokens(float(held[0]))}" if s.ranks else "empty"
        return f"{s.degree} x {short_tokens(float(held.min()))} to {short_tokens(float(held.max()))}"

    def to_text(self, most: int = MAX_SEQUENCES) -> str:
        """The report as plain text; of more than ``most`` sequences, the longest."""
        lines = [*self.summary_lines(), "", *align(self.rank_cells()), "", *align(self.sequence_cells(most))]
        left_out = len(self.placement.sequences) - most
        if left_out > 0:
            lines.append(f"and {counted(left_out, 'shorter sequence')}")
        return "\n".join(lines) + "\n"

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draws the placement as in figure 7 (.png, .svg, .pdf), whole or not at all. Raises InvalidField."""
        from liquidcp_compiler.placement_plot import placement_figure
        from liquidcp_compiler.plot import check_suffix, save_figure

        check_suffix(path)
        return save_figure(placement_figure(self), path)

    @cached_property
    def _members(self) -> NDArray[np.int64]:
        """int64 [world, num_sequences]: 1 where a rank shares a sequence."""
        members = np.zeros((self.placement.world, len(self.placement.sequences)), np.int64)
        for i, s in enumerate(self.placement.sequences):
            members[list(s.ranks), i] = 1
        return members

    @cached_property
    def _loads(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.placement.tile_ranks is not None:
            return self.tile_tokens.astype(float), self.tile_work.astype(float)
        lengths, degrees = self.placement.lengths.astype(float), np.maximum(self.placement.degrees, 1)
        work = lengths * (lengths + 1) / 2
        return self._members @ (lengths / degrees), self._members @ (work / degrees)

    @cached_property
    def _tiles(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(tokens [world, num_sequences], pairs [world])."""
        p = self.placement
        sequence, position, rows = contiguous_tiles(p.lengths, p.tile)
        owner = p.tile_owners(p.lengths)
        tokens, work = np.zeros((p.world, len(p.sequences)), np.int64), np.zeros(p.world, np.int64)
        np.add.at(tokens, (owner, sequence), rows)
        np.add.at(work, owner, causal_area(position, rows))
        return tokens, work


def imbalance(loads: NDArray) -> float:
    """The largest absolute deviation from the mean, in percent of the mean; 0 without load."""
    mean = float(loads.mean()) if len(loads) else 0.0
    return 100 * float(np.abs(loads - mean).max()) / mean if mean else 0.0


def short_tokens(count: float) -> str:
    """``12K``, ``3.5K``; below 1K the number itself."""
    return f"{count / 1024:.4g}K" if count >= 1024 else f"{count:.4g}"


def describe_ranks(ranks: Sequence[int]) -> str:
    """``0-3`` for a run, else ``0 2 5``; ``-`` for none."""
    if not ranks:
        return "-"
    ordered = sorted(ranks)
    if len(ranks) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return " ".join(map(str, ordered))


def _rank_rows(tokens: NDArray, work: NDArray) -> list[dict[str, float]]:
    return [{"tokens": t, "work": w} for t, w in zip(tokens.tolist(), work.tolist(), strict=True)]
