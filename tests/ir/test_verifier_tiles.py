"""Graphs in text whose tiles, states or signals are wrong in ways that counting tokens does not show."""

from __future__ import annotations

import json

import pytest

from liquidcp_compiler.errors import VerificationError
from liquidcp_compiler.ir.parser import parse_graph
from liquidcp_compiler.ir.printer import print_graph
from liquidcp_compiler.ir.verifier import verify
from tests.graphs import decode_graph, prefill_graph, prefill_problem

KV = "kv 0 sequence 0 rows 0:64 @0 slot 0"
TWO_COMPUTES = "%0 compute @0 q 0 kv 0 -> out 0 self\n%1 compute @1 q 1 kv 0 -> out 1 self"


def placed(*lines: str) -> None:
    """Verifies a placed graph of one sequence of 64 tokens, 4 query heads, on two ranks."""
    problem = json.dumps(prefill_problem((64,)).to_json())
    head = ["liquidcp-graph 1 placed", f"problem {problem}", "world 2", "tile 64"]
    verify(parse_graph("\n".join([*head, *lines, ""])))


def test_heads_may_be_cut_in_any_way_that_holds_each_once() -> None:
    row = "q {} sequence 0 rows 0:64 @{} slot 0 heads {}"
    placed(row.format(0, 0, "0:3"), row.format(1, 1, "3:4"), KV, TWO_COMPUTES)
    with pytest.raises(VerificationError, match="q tiles 0 and 1 hold the same tokens"):
        placed(row.format(0, 0, "0:2"), row.format(1, 1, "1:3"), KV, TWO_COMPUTES)


def test_query_tiles_of_one_rank_have_the_same_heads() -> None:
    rows = ["q 0 sequence 0 rows 0:64 @0 slot 0 heads 0:3", "q 1 sequence 0 rows 0:64 @0 slot 1 heads 3:4"]
    with pytest.raises(VerificationError, match="owners-exist.*other heads"):
        placed(*rows, KV, TWO_COMPUTES.replace("@1", "@0"))


def test_query_tiles_are_not_interleaved() -> None:
    row = "q {0} sequence 0 rows 0:32 @{0} slot 0 every 2 by 1 phase {0}"
    with pytest.raises(VerificationError, match="q tile 0 is interleaved"):
        placed(row.format(0), row.format(1), KV, TWO_COMPUTES)


@pytest.mark.parametrize("other", ["every 2 by 4 phase 1", "every 4 by 1 phase 1", ""])
def test_shards_that_interleave_in_different_ways_share_tokens(other: str) -> None:
    """Both shards hold 32 tokens of 64, so that counts add up."""
    kv = ["kv 0 sequence 0 rows 0:32 @0 slot 0 every 2 by 1 phase 0", f"kv 1 sequence 0 rows 0:32 @1 slot 0 {other}"]
    lines = ["q 0 sequence 0 rows 0:64 @0 slot 0", *kv, "%0 compute @0 q 0 kv 0:2 -> out 0 self"]
    with pytest.raises(VerificationError, match="tiles-partition-tokens"):
        placed(*lines)


def test_an_interleave_that_32_bits_do_not_hold() -> None:
    kv = "kv 0 sequence 0 rows 0:64 @0 slot 0 every 2 by {} phase 0"
    lines = ["q 0 sequence 0 rows 0:64 @0 slot 0", "%0 compute @0 q 0 kv 0 -> out 0 self"]
    placed(lines[0], kv.format(2**31 - 1), lines[1])
    with pytest.raises(VerificationError, match="tiles-partition-tokens"):
        placed(lines[0], kv.format(2**31), lines[1])


def test_a_reduction_where_its_query_tile_is_not() -> None:
    """Rank 1 merges what rank 0 computed of a query tile that rank 1 never holds."""
    problem = json.dumps(prefill_problem((64,)).to_json())
    lines = [
        "liquidcp-graph 1 planned",
        f"problem {problem}",
        "world 2",
        "tile 64",
        "q 0 sequence 0 rows 0:64 @0 slot 0",
        KV,
        "state 0:2 q 0",
        "%0 transfer state 0 from 0 to 1",
        "%1 transfer state 1 from 1 to 0",
        "%2 compute @0 q 0 kv 0 -> state 0 self",
        "%3 reduce @1 state 0 -> state 1",
        "%4 reduce @0 state 1 -> out 0",
    ]
    with pytest.raises(VerificationError, match="states-with-their-tiles.*%0 transfer.*without that query tile"):
        verify(parse_graph("\n".join([*lines, ""])))
    pulls = "%{} transfer {} from {} to {}"
    moved = [*lines[:7], pulls.format(0, "q 0", 0, 1), *(f"%{i + 1}{x[2:]}" for i, x in enumerate(lines[7:]))]
    verify(parse_graph("\n".join([*moved, ""])))


def edited(old: str, new: str) -> str:
    """What the verifier says to the decode graph's text with one thing replaced."""
    text = print_graph(decode_graph(world=2))
    assert text.count(old) >= 1
    with pytest.raises(VerificationError) as caught:
        verify(parse_graph(text.replace(old, new, 1)))
    return str(caught.value)


def test_every_rank_has_ready_and_done() -> None:
    text = print_graph(decode_graph(world=2))
    done = next(line for line in text.splitlines() if line.startswith("!1 done @0"))
    assert "signals must be sorted by rank" in edited(done, done.replace("@0", "@1"))
    with pytest.raises(VerificationError, match="begin with one ready and one done"):
        verify(parse_graph(text.replace("world 2", "world 3", 1)))


def test_done_is_set_by_the_last_pull_alone() -> None:
    text = print_graph(prefill_graph(world=2))
    done = next(line.split()[0] for line in text.splitlines() if " done @1" in line)
    last = next(line for line in text.splitlines() if line.startswith("%") and line.endswith(done))
    first = next(line for line in text.splitlines() if line.startswith("%") and "from 1 to 0" in line)
    assert first != last
    early = text.replace(last, last.removesuffix(f" {done}"), 1).replace(first, f"{first} {done}", 1)
    with pytest.raises(VerificationError, match="last pull from it"):
        verify(parse_graph(early))


def test_a_compute_without_formation() -> None:
    text = print_graph(prefill_graph(world=2, formation="static"))
    line = next(line for line in text.splitlines() if " compute " in line)
    with pytest.raises(VerificationError, match="forms ready or static"):
        verify(parse_graph(text.replace(line, line.replace(" self", " self none(1, 1)"), 1)))
