"""Faults on purpose: what a kernel built with faults leaves out, delays or stops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.launch import FAULT_PLAN, FaultKind
from liquidcp_compiler.ir.problem_fields import whole_number

#: name -> signal that is left out
DROPS: dict[str, FaultKind] = {kind.name.lower(): kind for kind in FaultKind if kind != FaultKind.NONE}
_MAX_DELAY_US = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong in the launches of a world.

    Fields:
        seed: of the delays; the same seed gives the same delays.
        max_delay_us: longest delay before each wait and each signal, in microseconds.
        max_stage_delay_us: longest delay before each tile is staged.
        drop: signal that never comes: ``ready``, ``tile``, ``prefix`` (a KV tile's entry in the committed prefix),
            ``done`` or ``lock`` (the release of a running state); "" for none.
        drop_rank, drop_index: the rank that leaves it out, and which one (signal, KV tile, query tile); -1: all.
        stop_rank: rank whose CTAs stop after ``stop_after`` tasks each, without a word; -1: none.

    Raises InvalidField.
    """

    seed: int = 0
    max_delay_us: float = 0.0
    max_stage_delay_us: float = 0.0
    drop: str = ""
    drop_rank: int = -1
    drop_index: int = -1
    stop_rank: int = -1
    stop_after: int = 0

    def __post_init__(self) -> None:
        for name in ("max_delay_us", "max_stage_delay_us"):
            if not 0 <= getattr(self, name) <= _MAX_DELAY_US:
                raise InvalidField(name, getattr(self, name), f"microseconds, 0 to {_MAX_DELAY_US}")
        if self.drop and self.drop not in DROPS:
            raise InvalidField("drop", self.drop, f"{', '.join(DROPS)}, or nothing")
        whole_number("seed", self.seed, 0, 2**63 - 1)
        whole_number("stop_after", self.stop_after, 0, 2**31 - 1)
        for name in ("drop_rank", "drop_index", "stop_rank"):
            whole_number(name, getattr(self, name), -1, 2**31 - 1)

    def struct(self) -> np.ndarray:
        """One element of ``FAULT_PLAN.dtype``."""
        block = np.zeros(1, FAULT_PLAN.dtype)
        block["seed"] = self.seed
        block["max_delay_ns"], block["max_stage_delay_ns"] = self.max_delay_us * 1e3, self.max_stage_delay_us * 1e3
        block["drop_kind"] = DROPS[self.drop] if self.drop else FaultKind.NONE
        for name in ("drop_rank", "drop_index", "stop_rank", "stop_after"):
            block[name] = getattr(self, name)
        return block
