"""Head counts, head widths and the mapping of query heads to KV heads."""

from __future__ import annotations

import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import InvalidField, UnsupportedError
from liquidcp_compiler.ir.problem import Problem
from tests.numerics import check, compiled, decode, prefill, random_inputs, run

pytestmark = pytest.mark.slow

RATIOS = [(20, 4), (24, 4), (28, 4), (48, 4), (64, 4), (9, 3), (21, 7), (32, 1), (32, 2), (5, 5), (8, 8)]


@pytest.mark.parametrize("heads", RATIOS, ids=lambda h: f"{h[0]}/{h[1]}")
def test_every_ratio_in_decode(heads: tuple[int, int]) -> None:
    """fault D1: on every number of ranks up to 8 that divides the heads, groups cut across ranks included."""
    requests = [(n - 1, 1) for n in (1, 127, 128, 129)]
    for world in (n for n in range(1, 9) if heads[0] % n == 0):
        check(decode(*requests, num_heads_q=heads[0], num_heads_kv=heads[1]), world, tile=128)


@pytest.mark.parametrize("heads", RATIOS, ids=lambda h: f"{h[0]}/{h[1]}")
def test_every_ratio_with_several_query_tokens(heads: tuple[int, int]) -> None:
    """fault D1: rows of one query tile that are no multiple of 16."""
    world = next(n for n in (4, 3, 5) if heads[0] % n == 0)
    check(decode((127, 3), (0, 17), (130, 1), num_heads_q=heads[0], num_heads_kv=heads[1]), world)


@pytest.mark.parametrize("heads", RATIOS, ids=lambda h: f"{h[0]}/{h[1]}")
def test_every_ratio_in_prefill(heads: tuple[int, int]) -> None:
    """fault D1"""
    check(prefill(1, 127, 130, num_heads_q=heads[0], num_heads_kv=heads[1]), 3)


@pytest.mark.parametrize("heads", [h for h in RATIOS if h[1] > 1], ids=lambda h: f"{h[0]}/{h[1]}")
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_the_output_reveals_the_kv_head(heads: tuple[int, int], kind: str) -> None:
    """fault D3: the values of KV head n are all n, so query head h must give h // group."""
    fields = {"num_heads_q": heads[0], "num_heads_kv": heads[1]}
    problem = prefill(70, 5, **fields) if kind == "prefill" else decode((30, 3), (0, 1), **fields)
    given = random_inputs(problem)
    ids = torch.arange(float(heads[1]))[None, :, None]
    given = given.with_changes(v=ids.expand_as(given.v).contiguous())
    expected = (torch.arange(heads[0]) // (heads[0] // heads[1])).float()
    for world in (n for n in (1, 2, 3, 4, 7) if kind == "prefill" or heads[0] % n == 0):
        out, _ = run(compiled(problem, world).plan, given)
        torch.testing.assert_close(out, expected[None, :, None].expand_as(out), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [prefill, lambda n, **f: decode((n, 1), **f)], ids=["prefill", "decode"])
def test_values_of_another_width_are_refused(make) -> None:
    """fault D5"""
    with pytest.raises(UnsupportedError, match=r"head_dim_v = 128 .*head_dim_v equal to head_dim = 192"):
        make(20, num_heads_q=16, num_heads_kv=4, head_dim=192, head_dim_v=128)


@pytest.mark.parametrize("head_dim", [576, 512, 257, 8, 72])
def test_head_widths_outside_the_supported_ones(head_dim: int) -> None:
    """fault D8: the message lists what is supported, and says so about latent attention."""
    with pytest.raises(UnsupportedError, match=rf"head_dim = {head_dim} .*16, 32, .*256") as caught:
        decode((20, 1), num_heads_q=128, head_dim=head_dim)
    assert ("MLA" in str(caught.value)) == (head_dim > 256)


@pytest.mark.parametrize("head_dim", [16, 48, 64, 96, 128, 192, 256])
def test_head_widths_that_are_supported(head_dim: int) -> None:
    """fault D8: the kind, the other way round."""
    check(prefill(70, head_dim=head_dim), 3)
    check(decode((70, 2), head_dim=head_dim), 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "fp8"}, r"^dtype is 'fp8'; allowed: bf16, fp16, fp32"),
        ({"dtype": torch.float64}, r"^dtype is torch.float64; allowed: bf16, fp16, fp32"),
        ({"num_heads_kv": 3}, r"^num_heads_kv is 3; allowed: a divisor of num_heads_q = 8"),
        ({"num_heads_kv": 0}, r"^num_heads_kv is 0; allowed"),
        ({"softmax_scale": 0.0}, r"^softmax_scale is 0.0; allowed"),
        ({"softcap": float("nan")}, r"^softcap is nan; allowed"),
        ({"exchange_dtype": "fp16"}, r"^exchange_dtype is 'fp16'; allowed: fp32, bf16"),
        ({"new_kv": "paged"}, r"^new_kv is 'paged'; allowed: chunk, in_cache"),
        ({"interleave": 0}, r"^interleave is 0; allowed"),
    ],
)
def test_messages_name_the_option_its_value_and_what_is_allowed(fields: dict, message: str) -> None:
    """fault D9"""
    with pytest.raises(InvalidField, match=message):
        decode((20, 1), **fields)


@pytest.mark.parametrize("world", [3, 5, 6, 7, 16])
def test_ranks_that_do_not_divide_the_heads(world: int) -> None:
    """fault D10: the rule is stated before anything runs."""
    with pytest.raises(InvalidField, match=rf"^cp_size is {world}; allowed: a divisor of num_heads_q = 8"):
        make_plan(decode((20, 1)), world)


@pytest.mark.parametrize("world", [0, -1, 1.5, True, "2", None, 10**6])
def test_worlds_that_cannot_be(world) -> None:
    """fault D10"""
    with pytest.raises(InvalidField, match="cp_size"):
        make_plan(prefill(20), world)


@pytest.mark.parametrize("world", [3, 5, 6, 7])
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_worlds_that_are_no_power_of_two(world: int, kind: str) -> None:
    """fault D11"""
    heads = {"num_heads_q": 2 * world, "num_heads_kv": 2}
    problem: Problem = prefill(1000, **heads) if kind == "prefill" else decode((999, 1), (10, 3), **heads)
    check(problem, world)
