"""The text form: what it says, that it loses nothing, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.errors import ParseError
from liquidcp_compiler.ir.author import author, prefill
from liquidcp_compiler.ir.graph import (
    AnyGraph,
    AuthoredGraph,
    PlacedGraph,
    PlannedGraph,
    SignalTable,
    Stage,
    SyncedGraph,
    TaskGraph,
)
from liquidcp_compiler.ir.intervals import AccessTable
from liquidcp_compiler.ir.layout import Formation, Role, SignalKind, Space
from liquidcp_compiler.ir.mask import Causal, Full, SlidingWindow
from liquidcp_compiler.ir.parser import parse_graph
from liquidcp_compiler.ir.printer import print_graph, tile_runs
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem
from liquidcp_compiler.ir.tasks import Direction, TaskKind, TaskTable
from liquidcp_compiler.ir.text_format import (
    DIRECTION_WORDS,
    FORMATION_WORDS,
    KIND_WORDS,
    ROLE_WORDS,
    SIGNAL_WORDS,
    SPACE_WORDS,
)
from liquidcp_compiler.ir.tiles import TileTable
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.registry import parse_pipeline

SHAPE = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 64}
PROBLEM = '{"format": 1, "kind": "prefill", "lengths": [256], "num_heads_q": 4, "num_heads_kv": 2}'


def assert_same(a: Any, b: Any, path: str = "graph") -> None:
    """Equal types, columns, column types and plain fields, all the way down."""
    assert type(a) is type(b), path
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(a, b, err_msg=path)
    elif is_dataclass(a) and not isinstance(a, Problem):
        for f in fields(a):
            assert_same(getattr(a, f.name), getattr(b, f.name), f"{path}.{f.name}")
    else:
        assert a == b, path


def assert_round_trip(graph: AnyGraph) -> str:
    text = print_graph(graph)
    back = parse_graph(text)
    assert_same(back, graph)
    assert print_graph(back) == text
    return text


# --- every stage of every pipeline ---------------------------------------------------------------------------

masks = st.one_of(
    st.just(Causal()), st.just(Full()), st.builds(SlidingWindow, left=st.integers(0, 200), right=st.integers(0, 50))
)


@st.composite
def prefill_cases(draw: st.DrawFn) -> tuple[Problem, int, str]:
    lengths = draw(st.lists(st.integers(0, 300), min_size=0, max_size=4))
    problem = PrefillProblem(lengths=tuple(lengths), mask=draw(masks), **SHAPE)
    tile, interleave = draw(st.sampled_from([16, 64, 128])), draw(st.sampled_from([0, 0, 1, 16]))
    place = f"zigzag-all{{tile={tile},kv-interleave={interleave}}}"
    formation = draw(st.sampled_from(["ready", "static"]))
    rest = f"insert-transfers,coalesce{{formation={formation}}},order,insert-sync"
    return problem, draw(st.integers(1, 4)), f"{place},{rest}"


@st.composite
def decode_cases(draw: st.DrawFn) -> tuple[Problem, int, str]:
    request = st.tuples(st.integers(0, 500), st.integers(0, 40))
    problem = DecodeProblem(
        requests=draw(st.lists(request, max_size=4).map(tuple)),
        interleave=draw(st.sampled_from([1, 8])),
        new_kv=draw(st.sampled_from(["chunk", "in_cache"])),
        mask=draw(st.sampled_from([Causal(), SlidingWindow(left=90, right=0)])),
        **SHAPE,
    )
    splits = draw(st.integers(1, 3))
    rest = f"insert-transfers,split-kv{{policy=fixed,num-splits={splits}}},order,insert-sync"
    return problem, draw(st.sampled_from([1, 2, 4])), f"dcp,{rest}"


@pytest.mark.slow
@given(st.one_of(prefill_cases(), decode_cases()))
def test_every_stage_comes_back_equal(case: tuple[Problem, int, str]) -> None:
    problem, world, pipeline = case
    graph: AnyGraph = author(problem, loc="batch.py:1")
    assert_round_trip(graph)
    for p in parse_pipeline(pipeline):
        graph = p.apply(graph, PassContext(world=world))
        assert_round_trip(graph)
    assert isinstance(graph, SyncedGraph)


# --- tables that no pass makes -------------------------------------------------------------------------------

WORLD = 3
BIG = PrefillProblem(lengths=(1000, 500), **SHAPE)


def column(n: int, lo: int, hi: int) -> st.SearchStrategy[np.ndarray]:
    values = st.lists(st.integers(lo, max(lo, hi)), min_size=n, max_size=n)
    return values.map(lambda v: np.array(v, np.int64))


@st.composite
def tile_tables(draw: st.DrawFn, heads: int) -> TileTable:
    n = draw(st.integers(1, 8))
    rows = draw(column(n, 0, 3))
    group = draw(column(n, 1, 2))
    head = draw(column(n, 0, 1))
    # Mostly runs, so that lines of several tiles occur: positions continue unless a jump is drawn.
    jump = draw(column(n, 0, 1)) * draw(column(n, 0, 1))
    slots = np.arange(n) + jump
    return TileTable(
        sequence=np.sort(draw(column(n, 0, 1)) * draw(st.integers(0, 1))),
        position=np.cumsum(rows) - rows + np.cumsum(jump),
        rows=rows,
        group=group,
        interleave=draw(column(n, 1, 2)),
        phase=draw(column(n, 0, 1)) * (group - 1),
        rank=draw(column(n, -1, 0)) * draw(st.integers(0, 1)) + draw(st.integers(0, 1)),
        slot=np.where(draw(column(n, 0, 1)) == 1, slots, -1) if draw(st.booleans()) else slots,
        head=head,
        num_heads=draw(column(n, 1, heads - 1)),
    )


@st.composite
def access_tables(draw: st.DrawFn, num_rows: int, counts: dict[Space, int]) -> AccessTable:
    lengths = draw(column(num_rows, 0, 3))
    total = int(lengths.sum())
    spaces = [s for s in (Space.Q, Space.KV, Space.STATE, Space.OUT) if counts[s]]
    space = [draw(st.sampled_from(spaces)) for _ in range(total)]
    pairs = [sorted(draw(st.tuples(*[st.integers(0, counts[s])] * 2))) for s in space]
    flat = np.array(pairs, np.int64).reshape(-1, 2)
    ptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return AccessTable(ptr, np.array(space, np.uint8), flat[:, 0].copy(), flat[:, 1].copy())


@st.composite
def wild_graphs(draw: st.DrawFn) -> TaskGraph:
    """Graphs whose tables are filled at random: no rule of the verifier holds, every id exists."""
    q, kv = draw(tile_tables(heads=4)), draw(tile_tables(heads=2))
    states = np.sort(draw(column(draw(st.integers(0, 6)), 0, len(q) - 1)))
    counts = {Space.Q: len(q), Space.KV: len(kv), Space.STATE: len(states), Space.OUT: len(q)}
    n = draw(st.integers(0, 6))
    kind = draw(column(n, 1, 3)).astype(np.uint8)
    transfer = kind == TaskKind.TRANSFER
    locs = ("", "a.py:1", 'odd "name"\n#.py:2')[: draw(st.integers(1, 3))]
    tasks = TaskTable(
        kind=kind,
        rank=draw(column(n, 0, WORLD - 1)),
        peer=np.where(transfer, draw(column(n, 0, WORLD - 1)), -1),
        role=draw(column(n, 0, Role.HISTORY)).astype(np.uint8),
        formation=draw(column(n, 0, Formation.READY)).astype(np.uint8),
        tau_min=draw(column(n, 0, 2)),
        tau_max=draw(column(n, 0, 9)),
        direction=draw(column(n, 0, Direction.BACKWARD)).astype(np.uint8),
        loc=draw(column(n, 0, len(locs) - 1)),
        reads=draw(access_tables(n, counts)),
        writes=draw(access_tables(n, counts)),
    )
    stage = draw(st.sampled_from([PlacedGraph, PlannedGraph, SyncedGraph]))
    signals = {"signals": draw(signal_tables(n, counts))} if stage is SyncedGraph else {}
    tile = draw(st.integers(1, 3))
    return stage(
        problem=BIG, world=WORLD, tile=tile, q_tiles=q, kv_tiles=kv, states=states, tasks=tasks, locs=locs, **signals
    )


@st.composite
def signal_tables(draw: st.DrawFn, num_tasks: int, counts: dict[Space, int]) -> SignalTable:
    rows = []
    for _ in range(draw(st.integers(0, 5))):
        space = draw(st.sampled_from([s for s in Space if s == Space.NONE or counts[s]]))
        item = draw(st.integers(0, counts[space] - 1 if space else 1))
        rows.append((draw(st.integers(1, SignalKind.DONE)), draw(st.integers(0, WORLD - 1)), space, item))
    table = np.array(rows, np.int64).reshape(-1, 4)
    uses = draw(st.integers(0, 5)) if rows and num_tasks else 0
    wait_task, set_task = np.sort(draw(column(uses, 0, num_tasks))), np.sort(draw(column(uses, 0, num_tasks)))
    return SignalTable(
        kind=table[:, 0].copy(),
        rank=table[:, 1].copy(),
        space=table[:, 2].copy(),
        item=table[:, 3].copy(),
        expected=draw(column(len(rows), 0, 3)),
        wait_task=np.minimum(wait_task, num_tasks - 1),
        wait_signal=draw(column(uses, 0, len(rows) - 1)),
        wait_value=draw(column(uses, 0, 3)),
        set_task=np.minimum(set_task, num_tasks - 1),
        set_signal=draw(column(uses, 0, len(rows) - 1)),
    )


@given(wild_graphs())
def test_any_tables_come_back_equal(graph: TaskGraph) -> None:
    assert_round_trip(graph)


# --- what the text says --------------------------------------------------------------------------------------


def tiles(**columns: Any) -> TileTable:
    full = {"sequence": 0, "rank": 0} | columns
    n = len(full["position"])
    full = {k: np.full(n, v) if np.ndim(v) == 0 else np.array(v) for k, v in full.items()}
    return TileTable.make(**({"num_heads": 4} | full))


@pytest.mark.parametrize(
    ("table", "runs"),
    [
        (tiles(position=[0, 8, 16], rows=[8, 8, 5]), [(0, 3)]),
        (tiles(position=[0, 8, 13], rows=[8, 5, 5]), [(0, 2), (2, 3)]),
        (tiles(position=[0, 5, 13], rows=[5, 8, 8]), [(0, 1), (1, 3)]),
        (tiles(position=[0, 8, 24], rows=[8, 8, 8]), [(0, 2), (2, 3)]),
        (tiles(position=[0, 8, 16], rows=[8, 8, 8], rank=[0, 1, 1]), [(0, 1), (1, 3)]),
        (tiles(position=[0, 8], rows=[8, 8], slot=[1, 0]), [(0, 1), (1, 2)]),
        (tiles(position=[0, 8, 16], rows=[8, 8, 8], rank=-1), [(0, 3)]),
        (tiles(position=[0, 8], rows=[8, 8], sequence=[0, 1]), [(0, 1), (1, 2)]),
        (tiles(position=[0, 8], rows=[8, 8], head=[0, 2], num_heads=2), [(0, 1), (1, 2)]),
        (tiles(position=[0, 8], rows=[8, 0]), [(0, 1), (1, 2)]),
    ],
)
def test_tiles_that_continue_are_one_line(table: TileTable, runs: list[tuple[int, int]]) -> None:
    first, past = tile_runs(table)
    assert list(zip(first.tolist(), past.tolist(), strict=True)) == runs


def test_a_long_sequence_takes_few_tile_lines() -> None:
    graph: AnyGraph = prefill(lengths=(128 * 2048 - 5,), num_heads_q=4, num_heads_kv=2)
    (place,) = parse_pipeline("zigzag-all")
    text = print_graph(place.apply(graph, PassContext(world=8)))
    assert sum(line.startswith("q ") for line in text.splitlines()) == 15
    assert sum(line.startswith("kv ") for line in text.splitlines()) == 15


def test_the_place_in_the_users_code_is_kept() -> None:
    graph = prefill(lengths=(8,), num_heads_q=1, num_heads_kv=1)
    (line,) = [line for line in print_graph(graph).splitlines() if line.startswith("loc")]
    assert re.fullmatch(r'loc 0 "test_text\.py:\d+"', line)


def test_comments_empty_lines_and_spaces_are_free() -> None:
    text = f"""
# two tiles
liquidcp-graph   1 placed   # stage
problem {PROBLEM}

world 1
\ttile 128
q 0:2 sequence 0 rows 0:256 @0 slot 0\r
kv 0:2 sequence 0 rows 0:256 @0 slot 0
%0 compute @0 q 0 kv 0->out 0 self ready( 1,2 )
%1 compute @0 q 1 kv 0 1 -> out 1 self
"""
    graph = parse_graph(text)
    assert isinstance(graph, PlacedGraph)
    assert [graph.task(i).name for i in range(2)] == ["%0 compute @0 q 0", "%1 compute @0 q 1"]
    assert graph.task(1).reads == [(Space.Q, 1, 2), (Space.KV, 0, 1), (Space.KV, 1, 2)]
    assert graph.tasks.tau_max.tolist() == [2, 0]


# --- what it refuses -----------------------------------------------------------------------------------------

HEAD = f"liquidcp-graph 1 synced\nproblem {PROBLEM}\nworld 2\ntile 128\n"
BODY = HEAD + (
    "q 0:2 sequence 0 rows 0:256 @0 slot 0\n"
    "kv 0:2 sequence 0 rows 0:256 @1 slot 0\n"
    "state 0 q 1\n"
    "!0 ready @0\n"
    "%0 transfer kv 0:2 from 1 to 0 set !0\n"
)
AUTHORED = f"liquidcp-graph 1 authored\nproblem {PROBLEM}\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected 'liquidcp-graph', found the end of the text"),
        ("graph 1 placed", 1, 1, "expected 'liquidcp-graph', found 'graph'"),
        ("liquidcp-graph 2 placed", 1, 16, "the text is of format 2; this version reads format 1"),
        ("liquidcp-graph 1 lowered", 1, 18, "expected a stage (authored, placed, planned, synced), found 'lowered'"),
        ("liquidcp-graph 1 placed now", 1, 25, "expected the end of the line, found 'now'"),
        ("liquidcp-graph 1 placed\n", 2, 1, "expected 'problem', found the end of the text"),
        ("liquidcp-graph 1 placed\nworld 2\n", 2, 1, "expected 'problem', found 'world'"),
        ("liquidcp-graph 1 placed\nproblem {1}\n", 2, 10, "expected a problem as JSON: "),
        ("liquidcp-graph 1 placed\nproblem\n", 2, 9, "expected a problem as JSON: "),
        ('liquidcp-graph 1 placed\nproblem {"format": 1}', 2, 9, "the problem is not one: kind is "),
        ('liquidcp-graph 1 placed\nproblem {"format": NaN}', 2, 9, "the problem is not one: NaN is not JSON"),
        (HEAD.replace("world 2\n", ""), 3, 1, "expected 'world', found 'tile'"),
        (HEAD.replace("tile 128", "tile 0"), 4, 6, "expected tokens of a tile (1 or more), found '0'"),
        (HEAD.replace("world 2", "world 2000000000000000000"), 3, 7, "expected a number of ranks (1 or more)"),
        (HEAD + "tile 64", 5, 1, "expected loc, q, kv, state, ! (a signal) or % (a task), found 'tile'"),
        (HEAD + "$", 5, 1, "'$' starts no word, number, mark or string"),
        (HEAD + 'loc 2 "a"', 5, 5, "locs go on at 1, found 2"),
        (HEAD + "loc 1 a", 5, 7, "expected a place in double quotes, found 'a'"),
        (HEAD + r'loc 1 "\q"', 5, 7, "expected a place as a JSON string"),
        (HEAD + "q 1 sequence 0 rows 0:1 @0 slot 0", 5, 3, "q ids go on at 0, found 1:2"),
        (HEAD + "q 0 sequence 1 rows 0:1 @0 slot 0", 5, 14, "expected a sequence (0 to 0), found '1'"),
        (HEAD + "q 0 sequence 0 rows 5 @0 slot 0", 5, 21, "expected the tokens as first:past-last, found '5'"),
        (HEAD + "q 0 sequence 0 rows 5:4 @0 slot 0", 5, 23, "expected the end of the tokens (5 or more), found '4'"),
        (HEAD + "q 0:2 sequence 0 rows 0:257 @0 slot 0", 5, 23, "2 tiles of 128 tokens hold 129 to 256, not 257"),
        (HEAD + "q 0 sequence 0 rows 0:9 @2 slot 0", 5, 26, "expected a rank, or 'all' (0 to 1), found '2'"),
        (HEAD + "q 0 sequence 0 rows 0:9 @0", 5, 27, "expected 'slot', found the end of the line"),
        (HEAD + "q 0 sequence 0 rows 0:9 @0 slot 0 heads 2:5", 5, 43, "expected the end of heads (2 to 4), found '5'"),
        (
            HEAD + "q 0 sequence 0 rows 0:9 @0 slot 0 every 2 by 1 phase 2",
            5,
            54,
            "expected a phase (0 to 1), found '2'",
        ),
        (HEAD + "q 0 sequence 0 rows 0:9 @0 slot 0 step 8 step 8", 5, 42, "step is given twice"),
        (HEAD + "q 0 sequence 0 rows 0:9 @0 slot 0 at 8", 5, 35, "expected heads, every, step or the end of the line"),
        (BODY + "state 1 q 2", 10, 11, "expected a q id (0 to 1), found '2'"),
        (BODY + "!1 landed @0", 10, 4, "expected a signal kind (ready, tile, "),
        (BODY + "!1 tile @0 kv 2", 10, 15, "expected a kv id (0 to 1), found '2'"),
        (BODY + "!1 prefix @0", 10, 13, "expected 'sequence', found the end of the line"),
        (BODY + "%2 compute @0", 10, 2, "task ids go on at 1, found 2:3"),
        (BODY + "%1 gather @0", 10, 4, "expected a task kind (transfer, compute, reduce), found 'gather'"),
        (BODY + "%1 transfer kv 0 to 1", 10, 18, "expected 'from', found 'to'"),
        (BODY + "%1 compute @0 q 0 kv 0:3", 10, 24, "expected the end of kv ids (0 to 2), found '3'"),
        (BODY + "%1 compute @0 q 0 kv 2", 10, 22, "expected kv ids (0 to 1), found '2'"),
        (BODY + "%1 reduce @0 state 0:2 -> out 1", 10, 22, "expected the end of state ids (0 to 1), found '2'"),
        (BODY + "%1 compute @0 q", 10, 16, "expected q ids (0 to 1), found the end of the line"),
        (BODY + "%1 compute @0 q 0 -> out 0 self chunk", 10, 38, "the role is given twice"),
        (BODY + "%1 compute @0 q 0 -> out 0 ready(1)", 10, 35, "expected ',', found ')'"),
        (BODY + "%1 compute @0 q 0 -> out 0 loc 1", 10, 32, "expected a loc (0 to 0), found '1'"),
        (BODY + "%1 compute @0 q 0 -> out 0 wait !1", 10, 34, "expected a signal (0 to 0), found '1'"),
        (BODY + "%1 compute @0 q 0 -> out 0 rôle", 10, 29, "'ô' starts no word"),
        (BODY.replace("synced", "placed").replace(" set !0", ""), 8, 1, "only a synced graph has signals"),
        (HEAD.replace("synced", "placed") + "%0 compute @0 wait !0", 5, 15, "only a synced graph has signals"),
        (AUTHORED + "%0 compute @0", 3, 1, "expected loc or region, found '%'"),
        (AUTHORED + "region sequence 0 self q 0:257 kv 0:256", 3, 28, "expected the end of query tokens (0 to 256)"),
    ],
)
def test_errors_name_line_column_and_what_was_expected(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert str(caught.value).startswith(f"line {line}, column {column}: {message}")
    assert (caught.value.line, caught.value.column) == (line, column)


@given(st.data())
def test_damaged_text_is_read_or_refused_with_a_parse_error(data: st.DataObject) -> None:
    graph: AnyGraph = author(DecodeProblem(requests=((40, 3),), **SHAPE), loc="a.py:1")
    for p in parse_pipeline("dcp{tile=16},insert-transfers,order,insert-sync"):
        graph = p.apply(graph, PassContext(world=2))
    lines = print_graph(graph).split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    words = lines[at].split(" ")
    word = data.draw(st.integers(0, len(words) - 1))
    words[word] = data.draw(st.sampled_from(["", "0", "-1", "99", ":", "kv", "@", "->", '"', "%", "self", "é"]))
    lines[at] = " ".join(words)
    back, error = read("\n".join(lines))
    if error is None:
        assert back is not None
        assert_round_trip(back)
    else:
        assert 1 <= error.line <= len(lines)
        assert error.column >= 1


def read(text: str) -> tuple[AnyGraph | None, ParseError | None]:
    try:
        return parse_graph(text), None
    except ParseError as error:
        return None, error


def test_a_graph_of_each_stage_says_so() -> None:
    graph: AnyGraph = prefill(lengths=(8,), num_heads_q=1, num_heads_kv=1)
    assert isinstance(parse_graph(print_graph(graph)), AuthoredGraph)
    for p in parse_pipeline("zigzag-all,insert-transfers,insert-sync"):
        graph = p.apply(graph, PassContext(world=2))
        assert print_graph(graph).startswith(f"liquidcp-graph 1 {graph.stage}\n")
        assert type(parse_graph(print_graph(graph))) is type(graph)


# --- docs/ir.md ----------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "ir.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_what_the_passes_make() -> None:
    graph: AnyGraph = author(PrefillProblem(lengths=(512,), num_heads_q=4, num_heads_kv=2), loc="")
    texts = {"": print_graph(graph)}
    for p in parse_pipeline("zigzag-all,insert-transfers,coalesce,order,insert-sync"):
        graph = p.apply(graph, PassContext(world=2))
        texts[p.name] = print_graph(graph)
    shown = [block for block in blocks("text") if block.startswith("liquidcp-graph")]
    assert shown == [texts[name] for name in ("", "zigzag-all", "order", "insert-sync")]


def test_the_page_s_graph_by_hand_prints_what_it_says(tmp_path: Path) -> None:
    (code,) = blocks("python")
    (tmp_path / "by_hand.py").write_text(code)
    done = subprocess.run(
        [sys.executable, tmp_path / "by_hand.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stderr, done.stdout) == ("", blocks("text")[-1])


def test_the_page_s_grammar_has_every_word() -> None:
    (grammar,) = blocks("ebnf")
    words = set(re.findall(r'"([a-z-]+)"', grammar))
    known = {*SPACE_WORDS, *ROLE_WORDS, *FORMATION_WORDS, *SIGNAL_WORDS, *KIND_WORDS, *DIRECTION_WORDS}
    assert known | {str(stage) for stage in Stage} <= words
