"""FlashAttention-3 forward, from the wheel ``fa3-fwd``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from liquidcp_compiler.errors import InvalidField

#: attention(q, k, v, causal) -> (out, lse): q, out [tokens, heads, d]; k, v [keys, KV heads, d]; lse fp32 [heads,
#: tokens], natural log. Causal is aligned bottom right.
Attention = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]


def load_fa3(folder: Path) -> Attention:
    """FA3 from a folder with the unpacked wheel. Raises InvalidField."""
    if not (folder / "fa3_fwd_interface.py").is_file():
        raise InvalidField(
            "--peer", str(folder), "a folder with fa3_fwd_interface.py: the unpacked wheel fa3-fwd 0.0.3"
        )
    sys.path.insert(0, str(folder))
    forward = importlib.import_module("fa3_fwd_interface").flash_attn_func

    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse = forward(q[None], k[None], v[None], causal=causal, return_attn_probs=True)
        return out[0], lse[0]

    return attention
