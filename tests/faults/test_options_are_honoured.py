"""Options that other systems drop without a word once attention is context-parallel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from liquidcp_compiler.driver import compile_plan
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import InvalidField, MaskError, PassError, TensorError, UnsupportedError
from liquidcp_compiler.ir.layout import Formation
from liquidcp_compiler.ir.mask import BlockSparse, Causal, Document, Full, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem
from liquidcp_compiler.passes.registry import parse_pipeline
from liquidcp_runtime.cpu_world import cpu
from liquidcp_runtime.plan_view import rank_view
from tests.numerics import check, compiled, decode, prefill, random_inputs, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mask", [Causal(), Full(), SlidingWindow(left=40, right=0), Document(cu_seqlens=(0, 90, 200))])
@pytest.mark.parametrize("world", [2, 4])
def test_sinks_under_every_mask(mask, world: int) -> None:
    """fault C1: the sinks change the answer, and it is the right one."""
    problem = prefill(200, mask=mask, sinks=True)
    given = random_inputs(problem).with_changes(sinks=torch.full((2,), 5.0))
    _, out, _ = check(problem, world, inputs=given)
    without, _ = run(compiled(prefill(200, mask=mask), world).plan, given.with_changes(sinks=None))
    assert (out - without).abs().max() > 0.1


@pytest.mark.parametrize("given", [True, False])
def test_sinks_that_the_problem_and_the_call_disagree_about(given: bool) -> None:
    """fault C1"""
    problem = prefill(20, sinks=not given)
    plan, x = compiled(problem, 2).plan, random_inputs(problem)
    with pytest.raises(TensorError, match="^sinks"):
        cpu(2).run(plan, x.q, x.k, x.v, sinks=torch.zeros(2) if given else None)


@pytest.mark.parametrize(
    ("problem", "world"),
    [
        pytest.param(prefill(1024, mask=SlidingWindow(left=100, right=0)), 4, id="C2"),
        pytest.param(prefill(1024, 77, mask=SlidingWindow(left=10, right=10)), 8, id="C2-both-sides"),
        pytest.param(prefill(500, mask=SlidingWindow(left=0, right=0)), 4, id="C2-itself"),
        pytest.param(decode((900, 4), (30, 1), mask=SlidingWindow(left=100, right=0)), 2, id="C11"),
        pytest.param(
            decode((900, 40), mask=SlidingWindow(left=60, right=0), new_kv="in_cache", interleave=16), 4, id="C11-chunk"
        ),
    ],
)
def test_windows_that_cross_shards(problem: Problem, world: int) -> None:
    """fault C2, C11: exact, and no task reads a tile, and no transfer moves one, that lies outside every window."""
    plan, _, _ = check(problem, world)
    seen = visible_tiles(plan)
    for rank in range(world):
        view, read = rank_view(plan, rank), set()
        for row in view.rows:
            assert row.formation == Formation.STATIC
            q_tiles = view.q_list[row.q_lo : row.q_hi]
            for kv in view.kv_list[row.kv_list : row.kv_list + row.num_kv_tiles]:
                pairs = {(view.q_tiles[q].tile, view.kv_tiles[kv].tile) for q in q_tiles}
                assert pairs & seen, f"{plan.task_name(rank, 'rows', view.rows.index(row))} reads kv {kv} for nothing"
                read.add(kv)
        assert read >= set(range(view.num_local_kv_tiles, len(view.kv_tiles))), "a tile is pulled for nothing"


def visible_tiles(plan: Plan) -> set[tuple[int, int]]:
    """(query tile, KV tile) pairs with a visible query-key pair, by the dense mask."""
    pairs = set()
    views = [rank_view(plan, r) for r in range(plan.world)]
    keys = {t.tile: (t.sequence, view.key_positions[i]) for view in views for i, t in enumerate(view.kv_tiles)}
    for q in {t for view in views for t in view.q_tiles[: view.num_local_q_tiles]}:
        rows = np.arange(q.position, q.position + q.rows)
        for tile, (sequence, positions) in keys.items():
            if sequence == q.sequence and plan.problem.mask_bound.visible(sequence, rows, positions).any():
                pairs.add((q.tile, tile))
    return pairs


@pytest.mark.parametrize("world", [2, 4, 8])
def test_sinks_follow_their_heads(world: int) -> None:
    """fault C3: ranks hold some heads each, and every head has a sink of its own."""
    problem = decode((40, 2), (0, 3), sinks=True)
    given = random_inputs(problem).with_changes(sinks=torch.arange(8.0) - 2)
    check(problem, world, inputs=given)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    "mask",
    [
        BlockSparse(block=32, rows=((0,), (0, 1), (2,), (1, 3), (0, 4), (), (0, 6))),
        Document(cu_seqlens=(0, 10, 10, 140, 200)),
        SharedPrefix(prefix=50),
    ],
)
def test_masks_of_every_kind(mask, world: int) -> None:
    """fault C4"""
    check(prefill(*((90, 60, 50) if isinstance(mask, SharedPrefix) else (200,)), mask=mask), world)


def test_masks_without_meaning_in_decode_are_refused() -> None:
    """fault C4"""
    for mask in (Document(cu_seqlens=(0, 5)), SharedPrefix(prefix=2), BlockSparse(block=16, rows=((0,),))):
        with pytest.raises(UnsupportedError, match=f"mask = '{mask.type}'.*causal, full, sliding_window"):
            decode((4, 1), mask=mask)


def test_a_mask_that_does_not_fit_the_lengths_is_refused() -> None:
    """fault C4"""
    with pytest.raises(MaskError, match="200 tokens"):
        prefill(200, mask=Document(cu_seqlens=(0, 100)))


@pytest.mark.parametrize("scale", [0.05, 1.0, 1e-4])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_scale_and_softcap_reach_output_and_lse(scale: float, softcap: float | None, kind: str) -> None:
    """fault C5"""
    fields = {"softmax_scale": scale, "softcap": softcap, "head_dim": 128}
    problem = prefill(200, 33, **fields) if kind == "prefill" else decode((150, 3), (9, 1), **fields)
    check(problem, 2)


@pytest.mark.parametrize("interleave", [1, 4, 16])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("new_kv", ["in_cache", "chunk"])
def test_interleaved_keys_are_masked_by_their_place_in_the_sequence(interleave: int, world: int, new_kv: str) -> None:
    """fault C7: key j of rank r is key j * P + r of the sequence where the interleave is 1."""
    problem = decode((17, 8), (60, 40), interleave=interleave, new_kv=new_kv)
    plan, _, _ = check(problem, world)
    if interleave == 1:
        for rank in range(world):
            view = rank_view(plan, rank)
            for tile, keys in zip(view.kv_tiles, view.key_positions, strict=True):
                if tile.owner >= 0:
                    local = np.arange(tile.position, tile.position + tile.rows)
                    assert keys.tolist() == (local * world + rank).tolist()


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_tokens_and_heads_exchanged(name: str) -> None:
    """fault C8: refused with the hint what to pass, in batches too."""
    problem = prefill(30, 30, num_heads_q=4, num_heads_kv=2)
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    tensors = {n: getattr(given, n) for n in ("q", "k", "v")}
    packed = tensors | {name: tensors[name].transpose(0, 1)}
    with pytest.raises(TensorError, match=rf"^{name}: .*tokens and heads are exchanged"):
        cpu(2).run(plan, **packed)
    batch = {n: x.view(2, 30, *x.shape[1:]) for n, x in tensors.items()}
    with pytest.raises(TensorError, match=rf"^{name}: .*tokens and heads are exchanged"):
        cpu(2).run(plan, **(batch | {name: batch[name].transpose(1, 2)}))


def test_views_of_any_strides_give_the_same_numbers() -> None:
    """fault C8: heads-first memory behind a tokens-first view is fine."""
    problem = prefill(30, 30, num_heads_q=4, num_heads_kv=2)
    given, plan = random_inputs(problem), compiled(problem, 2).plan
    strided = {n: getattr(given, n).transpose(0, 1).contiguous().transpose(0, 1) for n in ("q", "k", "v")}
    assert not strided["k"].is_contiguous()
    assert torch.equal(run(plan, given.with_changes(**strided))[0], run(plan, given)[0])


UNSUPPORTED = {
    "dropout_p": 0.1,
    "alibi_slopes": (0.5, 0.25),
    "attn_bias": 1.0,
    "page_table": ((0, 1),),
    "block_table": ((0, 1),),
    "page_size": 16,
    "kv_dtype": "fp8",
    "kv_lora_rank": 512,
}


@pytest.mark.parametrize("option", UNSUPPORTED)
@pytest.mark.parametrize("cls", [PrefillProblem, DecodeProblem])
def test_known_options_that_are_not_supported(option: str, cls: type[Problem]) -> None:
    """fault C9: refused with what is supported, as an argument and in a file."""
    problem = prefill(20) if cls is PrefillProblem else decode((20, 1))
    wanted = {option: UNSUPPORTED[option]}
    with pytest.raises(UnsupportedError, match=f"^{option} = .* is not supported; supported: "):
        cls.from_json(problem.to_json() | wanted)
    lengths = {"lengths": (20,)} if cls is PrefillProblem else {"requests": ((20, 1),)}
    with pytest.raises(UnsupportedError, match=f"^{option} = .* is not supported; supported: "):
        cls(num_heads_q=2, num_heads_kv=1, **lengths, **wanted)


def test_unknown_options_are_refused_everywhere() -> None:
    """fault C9, C10: nothing is accepted and ignored."""
    problem = prefill(20)
    with pytest.raises(TypeError, match="backend"):
        make_plan(problem, 2, backend="a2a")
    with pytest.raises(TypeError, match="window_size"):
        prefill(20, window_size=(10, 0))
    with pytest.raises(InvalidField, match="window_size"):
        PrefillProblem.from_json(problem.to_json() | {"window_size": 10})
    with pytest.raises(InvalidField, match="no such option"):
        parse_pipeline("zigzag-all{backend=a2a}")
    with pytest.raises(InvalidField, match="placement"):
        make_plan(problem, 2, placement="a2a")
    with pytest.raises(InvalidField, match="either placement or passes"):
        compile_plan(problem, 2, placement="zigzag-all", passes=())
    plan, given = compiled(problem, 2).plan, random_inputs(problem)
    with pytest.raises(TypeError, match="causal"):
        cpu(2).run(plan, given.q, given.k, given.v, causal=True)  # pyright: ignore[reportCallIssue]


def test_placements_that_cannot_place_the_problem_are_refused() -> None:
    """fault C10: nothing else is chosen instead, without a word."""
    with pytest.raises(PassError, match="dcp"):
        make_plan(decode((20, 1)), 2, placement="zigzag-all")
    with pytest.raises(PassError, match="zigzag-all"):
        make_plan(prefill(20), 2, placement="dcp")


def test_the_plan_says_which_pipeline_made_it() -> None:
    """fault C10"""
    assert make_plan(prefill(20), 2).pipeline.startswith("zigzag-all,insert-transfers,coalesce")
    assert "coalesce{formation=static}" in make_plan(prefill(20), 2, deterministic=True).pipeline
