"""One rank of a causal zigzag ring or all-gather on one GPU: the peers' keys lie in its memory, the copies are made.

Chunk c of 2 P equal ones belongs to rank min(c, 2 P - 1 - c); a rank's queries and keys are its front chunk, then its
back chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.peers.fa3 import Attention
from benchmarks.peers.merge import merge


@dataclass(frozen=True, kw_only=True)
class RankShards:
    """What rank ``rank`` of ``world`` works on.

    Fields: ``q`` [2 c, heads, d], its two chunks; ``k``, ``v``: of every rank, [world, 2 c, KV heads, d].
    """

    rank: int
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.k)

    @property
    def chunk(self) -> int:
        """Tokens of a chunk."""
        return len(self.q) // 2

    @property
    def flops(self) -> float:
        """Floating-point operations of the rank: 4 d a query, key and head."""
        c, front, back = self.chunk, self.rank, 2 * self.world - 1 - self.rank
        pairs = c * c * (front + back) + c * (c + 1)
        return 4.0 * pairs * self.q.shape[1] * self.q.shape[2]

    @classmethod
    def cut(cls, q: Tensor, k: Tensor, v: Tensor, rank: int, world: int) -> RankShards:
        """From one sequence, [tokens, heads, d] each; ``2 * world`` divides its length."""

        def shard(x: Tensor, of: int) -> Tensor:
            chunks = x.chunk(2 * world)
            return torch.cat([chunks[of], chunks[2 * world - 1 - of]])

        every = range(world)
        return cls(
            rank=rank,
            q=shard(q, rank),
            k=torch.stack([shard(k, r) for r in every]),
            v=torch.stack([shard(v, r) for r in every]),
        )


class Ring:
    """Zigzag ring: the next peer's keys are copied while this one's are attended to; partial results in fp32."""

    def __init__(self, shards: RankShards, attention: Attention) -> None:
        self._s, self._attention = shards, attention
        q = shards.q
        self._buffers = torch.empty(2, 2, *shards.k.shape[1:], dtype=q.dtype, device=q.device)
        self._out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        self.out = torch.empty_like(q)
        self._side = torch.cuda.Stream() if q.is_cuda else None

    def __call__(self) -> tuple[Tensor, Tensor]:
        """(out, lse) of the rank's queries."""
        s, c = self._s, self._s.chunk
        arrived = self._fetch(1) if s.world > 1 else None
        part, lse = self._attention(s.q, s.k[s.rank], s.v[s.rank], True)
        self._out.copy_(part)
        lse = lse.clone()
        for step in range(1, s.world):
            if self._side is not None and arrived is not None:
                torch.cuda.current_stream().wait_event(arrived)
            k, v = self._buffers[step % 2]
            arrived = self._fetch(step + 1) if step + 1 < s.world else None
            if step <= s.rank:  # an earlier rank: its front chunk, for all queries
                part, part_lse = self._attention(s.q, k[:c], v[:c], False)
                merge(self._out, lse, part, part_lse)
            else:  # a later one: all of its keys, for the back chunk
                part, part_lse = self._attention(s.q[c:], k, v, False)
                merge(self._out[c:], lse[:, c:], part, part_lse)
        return self.out.copy_(self._out), lse

    def _fetch(self, step: int) -> torch.cuda.Event | None:
        """Copy the keys of ``step`` behind what uses their buffer now; the event says when they are there."""
        source = (self._s.rank - step) % self._s.world
        target = self._buffers[step % 2]
        if self._side is None:
            target[0].copy_(self._s.k[source])
            target[1].copy_(self._s.v[source])
            return None
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            target[0].copy_(self._s.k[source])
            target[1].copy_(self._s.v[source])
            return self._side.record_event()


class AllGather:
    """All keys of the sequence are copied first, in its order; then one attention for each of the two chunks."""

    def __init__(self, shards: RankShards, attention: Attention) -> None:
        self._s, self._attention = shards, attention
        shape = (shards.world * shards.k.shape[1], *shards.k.shape[2:])
        self._k, self._v = (torch.empty(shape, dtype=shards.k.dtype, device=shards.k.device) for _ in range(2))

    def __call__(self) -> tuple[Tensor, Tensor]:
        """(out, lse) of the rank's queries."""
        s, c = self._s, self._s.chunk
        ends = (s.rank + 1) * c, (2 * s.world - s.rank) * c
        for to, shards in ((self._k, s.k), (self._v, s.v)):
            for rank in range(s.world):  # two chunks a rank, each to its place
                back = (2 * s.world - 1 - rank) * c
                to[rank * c : (rank + 1) * c].copy_(shards[rank, :c])
                to[back : back + c].copy_(shards[rank, c:])
        parts = [
            self._attention(q, self._k[:end], self._v[:end], True)
            for q, end in zip((s.q[:c], s.q[c:]), ends, strict=True)
        ]
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], dim=1)
