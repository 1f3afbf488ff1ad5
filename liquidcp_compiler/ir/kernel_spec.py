"""The static configuration of a kernel: everything that needs a new compile when it changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from liquidcp_compiler.ir.layout import MaskKind
from liquidcp_compiler.ir.problem import DType
from liquidcp_compiler.ir.problem_fields import flag, whole_number


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """What one compiled kernel is specialised on. Lengths, placement, splits and orders are plan data and never here.

    ``block_q`` and ``block_kv`` are the rows of a query tile and of a KV tile; ``reductions`` says whether the plan
    holds partial states; ``head_pairs`` whether the query heads of a KV head come in pairs, for which two CTAs
    of a cluster can share keys. How rows form and whether there are sinks is not here: every kernel knows both ways.
    """

    head_dim: int
    dtype: DType
    block_q: int
    block_kv: int
    mask: MaskKind
    softcap: bool
    reductions: bool
    head_pairs: bool

    @property
    def name(self) -> str:
        """Stable kernel name, e.g. ``forward_bf16_d128_causal_q128_kv128``; generated kernels add the path that they
        take and, where they use them, pairs of heads."""
        flags = [name for name in ("softcap", "reductions") if getattr(self, name)]
        parts = ["forward", self.dtype.value, f"d{self.head_dim}", self.mask.name.lower()]
        return "_".join([*parts, f"q{self.block_q}", f"kv{self.block_kv}", *flags])

    def to_json(self) -> dict[str, object]:
        """Plain values, for plan files and cache keys."""
        return {**asdict(self), "dtype": self.dtype.value, "mask": self.mask.name.lower()}

    @classmethod
    def from_json(cls, data: dict) -> KernelSpec:
        """Inverse of :meth:`to_json`. Raises KeyError, TypeError, ValueError; InvalidField where a number or a flag is
        none, since text that passed for one would be compiled in.
        """
        numbers = {name: whole_number(name, data[name], 1) for name in ("head_dim", "block_q", "block_kv")}
        flags = {name: flag(name, data[name]) for name in ("softcap", "reductions", "head_pairs")}
        named = {"dtype": DType(data["dtype"]), "mask": MaskKind[str(data["mask"]).upper()]}
        return cls(**{**data, **numbers, **flags, **named})
