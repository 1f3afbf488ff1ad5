"""A model of the link into a GPU, for worlds in which one GPU stands for one of several."""

from __future__ import annotations

import math
from dataclasses import dataclass

from liquidcp_compiler.errors import InvalidField


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """Bandwidth that all pulls of a rank share, and the latency that each pays.

    Fields: ``bytes_per_s``: default 375 GB/s, what pulls of one H200 from another reach; ``latency_s``: default 1.25
    microseconds, half of a round trip of flags between the two. Raises InvalidField.
    """

    bytes_per_s: float = 375e9
    latency_s: float = 1.25e-6

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < math.inf:
            raise InvalidField("bytes_per_s", self.bytes_per_s, "bytes a second, more than 0")
        if not 0 <= self.latency_s < 1:
            raise InvalidField("latency_s", self.latency_s, "seconds, from 0 to less than 1")
