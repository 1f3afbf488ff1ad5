"""The two ways in which a kernel computes, and what one of them wants of its tensor maps.

The portable path (mma.sync and cp.async) has a kernel for every specification and architecture; the Hopper path (wgmma
and TMA) for some specifications on sm_90a. Both run the same plans.
"""

from __future__ import annotations

from dataclasses import dataclass

PORTABLE = "portable"
HOPPER = "hopper"
PATHS: tuple[str, ...] = (PORTABLE, HOPPER)


@dataclass(frozen=True, kw_only=True)
class TensorBoxes:
    """The boxes in which a Hopper kernel moves tiles, which its tensor maps are encoded for.

    Fields: ``columns`` of a box, in elements of a head; ``q_rows``, ``kv_rows``, ``out_rows``: tokens of a box of q, of
    k, v and the buffers of pulled ones, and of out. A box is of one head.
    """

    columns: int = 64
    q_rows: int
    kv_rows: int
    out_rows: int
