"""Hypothesis strategies: random problems, ways to plan them, and interleavings to run them under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from liquidcp_compiler.errors import MaskError
from liquidcp_compiler.ir.mask import BlockSparse, Causal, Document, Full, Mask, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem, Request
from liquidcp_compiler.passes.explicit import Explicit, SequencePlace
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_compiler.passes.zigzag_all import ZigzagAll
from liquidcp_runtime.profiles import PROFILES

TILES = (16, 32, 128)
RATIOS = ((1, 1), (2, 1), (4, 2), (3, 3), (5, 1), (6, 2), (7, 1), (16, 2))
DTYPES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem, how it is planned, and the interleaving that it runs under."""

    problem: Problem
    world: int
    options: dict[str, Any]
    profile: str
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Prefill and decode in equal parts, on 1 to 8 ranks."""
    world, tile = draw(st.integers(1, 8)), draw(st.sampled_from(TILES))
    options: dict[str, Any] = {"tile": tile, "formation": draw(st.sampled_from(("ready", "static")))}
    if draw(st.booleans()):
        problem: Problem = draw(prefill_problems())
        options["place"] = draw(prefill_placements(problem, world, tile))
    else:
        problem = draw(decode_problems(world))
        options["split"] = draw(splits())
    return Case(
        problem=problem,
        world=world,
        options=options,
        profile=draw(st.sampled_from(list(PROFILES))),
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def common_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Fields that both kinds of problems have, but heads and mask."""
    return {
        "head_dim": draw(st.sampled_from((16, 32, 48))),
        "dtype": draw(st.sampled_from(DTYPES)),
        "softmax_scale": draw(st.sampled_from((None, 0.05, 1.0))),
        "softcap": draw(st.sampled_from((None, None, 5.0))),
        "sinks": draw(st.booleans()),
    }


def lengths() -> st.SearchStrategy[list[int]]:
    """Up to four sequences of 0 to 300 tokens; lengths at the borders of tiles more often."""
    one = st.one_of(st.integers(0, 300), st.sampled_from((0, 1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 256, 257)))
    return st.lists(one, max_size=4)


@st.composite
def prefill_problems(draw: st.DrawFn) -> PrefillProblem:
    """Any mask, lengths that may be 0, key lengths of their own where the mask allows them."""
    heads_q, heads_kv = draw(st.sampled_from(RATIOS))
    fields = draw(common_fields()) | {"num_heads_q": heads_q, "num_heads_kv": heads_kv}
    q_lengths = draw(lengths())
    kind = draw(st.sampled_from((Causal, Causal, Full, SlidingWindow, Document, SharedPrefix, BlockSparse)))
    kv_lengths = None
    if kind in (Causal, Full, SlidingWindow) and draw(st.booleans()):
        kv_lengths = tuple(draw(st.integers(0, 300)) for _ in q_lengths)
    mask = draw(masks(kind, q_lengths))
    if kind is BlockSparse:
        q_lengths = q_lengths[:1]
    try:
        return PrefillProblem(lengths=tuple(q_lengths), kv_lengths=kv_lengths, mask=mask, **fields)
    except MaskError:  # it hides everything, or needs a batch that is not empty
        return PrefillProblem(lengths=tuple(q_lengths), mask=Causal(), **fields)


@st.composite
def masks(draw: st.DrawFn, kind: type[Mask], q_lengths: list[int]) -> Mask:
    """A mask of one kind that may fit a batch."""
    if kind is SlidingWindow:
        return SlidingWindow(left=draw(st.integers(0, 200)), right=draw(st.sampled_from((0, 0, 1, 40))))
    if kind is Document:
        total = sum(q_lengths)
        borders = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
        return Document(cu_seqlens=(0, *borders, total))
    if kind is SharedPrefix:
        return SharedPrefix(prefix=draw(st.integers(1, max(q_lengths[0] if q_lengths else 1, 1))))
    if kind is BlockSparse:
        block = draw(st.sampled_from((16, 48, 64)))
        count = -(-(q_lengths[0] if q_lengths else 0) // block)
        row = st.sets(st.integers(0, max(count - 1, 0))).map(lambda s: tuple(sorted(s)))
        return BlockSparse(block=block, rows=tuple(draw(row) for _ in range(count)))
    return kind()


@st.composite
def prefill_placements(draw: st.DrawFn, problem: PrefillProblem, world: int, tile: int) -> ZigzagAll | Explicit:
    """Zigzag over all ranks, with zigzag or interleaved keys; or every sequence where a user might put it."""
    if draw(st.integers(0, 2)):
        return ZigzagAll(tile=tile, kv_interleave=draw(st.sampled_from((0, 0, 1, 16))))
    ranks = st.permutations(range(world)).flatmap(lambda order: st.integers(1, world).map(lambda n: tuple(order[:n])))
    return Explicit(tile=tile, sequences=tuple(SequencePlace(ranks=draw(ranks)) for _ in range(problem.num_sequences)))


@st.composite
def decode_problems(draw: st.DrawFn, world: int) -> DecodeProblem:
    """Mixed batches: padded slots, single tokens, speculation and prefill chunks, over histories of 0 to 600."""
    heads_q = world * draw(st.integers(1, 3))
    heads_kv = draw(st.sampled_from([n for n in range(1, heads_q + 1) if heads_q % n == 0]))
    history = st.one_of(st.integers(0, 600), st.sampled_from((0, 1, 127, 128, 129)))
    request = st.builds(Request, history=history, query=st.sampled_from((0, 1, 1, 3, 16, 40)))
    fields = draw(common_fields()) | {
        "num_heads_q": heads_q,
        "num_heads_kv": heads_kv,
        "requests": tuple(draw(st.lists(request, max_size=4))),
        "interleave": draw(st.sampled_from((1, 16))),
        "new_kv": draw(st.sampled_from(("chunk", "in_cache"))),
        "exchange_dtype": draw(st.sampled_from(("fp32", "fp32", "bf16"))),
    }
    kind = draw(st.sampled_from((Causal, Causal, Full, SlidingWindow)))
    return DecodeProblem(mask=draw(masks(kind, [])), **fields)


def splits() -> st.SearchStrategy[SplitKv]:
    """No split, one to four parts, or what FlashAttention-3 would choose."""
    fixed = st.integers(1, 4).map(lambda n: SplitKv(policy="fixed", num_splits=n))
    return st.one_of(fixed, st.sampled_from((SplitKv(), SplitKv(policy="fa3-heuristic"))))
