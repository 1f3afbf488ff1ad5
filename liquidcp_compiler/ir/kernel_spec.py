"""The static configuration of a kernel: everything that needs a new compile when it changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from liquidcp_compiler.ir.layout import MaskKind
from liquidcp_compiler.ir.problem import DType


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """What one compiled kernel is specialised on. Lengths, placement, splits and orders are plan data and never here.

    ``block_q`` and ``block_kv`` are the rows of a query tile and of a KV tile; ``ready_rows``, ``static_rows`` and
    ``reductions`` say which kinds of work the plan holds.
    """

    head_dim: int
    dtype: DType
    block_q: int
    block_kv: int
    mask: MaskKind
    softcap: bool
    sinks: bool
    ready_rows: bool
    static_rows: bool
    reductions: bool

    @property
    def name(self) -> str:
        """Stable kernel name, e.g. ``forward_bf16_d128_causal_q128_kv128``."""
        flags = [n for n in ("softcap", "sinks", "reductions") if getattr(self, n)]
        formation = "_".join(n for n, on in (("ready", self.ready_rows), ("static", self.static_rows)) if on)
        parts = ["forward", self.dtype.value, f"d{self.head_dim}", self.mask.name.lower()]
        return "_".join([*parts, f"q{self.block_q}", f"kv{self.block_kv}", formation or "empty", *flags])

    def to_json(self) -> dict[str, object]:
        """Plain values, for plan files and cache keys."""
        return {**asdict(self), "dtype": self.dtype.value, "mask": self.mask.name.lower()}

    @classmethod
    def from_json(cls, data: dict) -> KernelSpec:
        """Inverse of :meth:`to_json`."""
        return cls(**{**data, "dtype": DType(data["dtype"]), "mask": MaskKind[data["mask"].upper()]})
