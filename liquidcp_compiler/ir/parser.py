"""Reads the text form of a graph. A file is data: nothing in it is evaluated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from liquidcp_compiler.errors import LiquidCPError, ParseError
from liquidcp_compiler.ir.graph import STAGE_TYPES, AnyGraph, AuthoredGraph, RegionTable, Stage
from liquidcp_compiler.ir.layout import Role, Space
from liquidcp_compiler.ir.problem import Problem
from liquidcp_compiler.ir.text_format import FORMAT, MAGIC, ROLE_WORDS
from liquidcp_compiler.ir.text_lexer import Line
from liquidcp_compiler.ir.text_rows import SignalRows, TaskRows, TileRows, take_next_ids


def parse_graph(text: str) -> AnyGraph:
    """The graph that ``print_graph`` wrote, of the same stage; or one written by hand (grammar: docs/ir.md).

    Ids must exist when they are used. Whether the graph makes sense is for ``verify`` to say.
    Raises ParseError with line, column, and what was expected.
    """
    lines = _Lines(text)
    line = lines.take(MAGIC)
    _check_format(line)
    stage = line.take_word({str(stage): stage for stage in Stage}, "a stage")
    line.finish()
    problem = _problem(lines)
    body = _Authored(problem) if stage == Stage.AUTHORED else _Tasks(problem, stage, lines)
    while (entry := lines.next()) is not None:
        body.statement(entry)
        entry.finish()
    return body.graph()


class _Lines:
    """The lines that are neither empty nor only a comment."""

    def __init__(self, text: str) -> None:
        self.texts, self.at = text.split("\n"), 0

    def skip(self) -> bool:
        """Moves to the next line that says something; False if there is none."""
        while self.at < len(self.texts):
            stripped = self.texts[self.at].strip()
            if stripped and not stripped.startswith("#"):
                return True
            self.at += 1
        return False

    def raw(self) -> tuple[int, str]:
        """(number, text) of the next line."""
        text = self.texts[self.at].rstrip("\r")
        self.at += 1
        return self.at, text

    def next(self) -> Line | None:
        """The next line as tokens."""
        return Line(*self.raw()) if self.skip() else None

    def take(self, word: str) -> Line:
        """The next line, which must start with this word."""
        line = self.next()
        if line is None:
            raise ParseError(len(self.texts), 1, f"expected {word!r}, found the end of the text")
        line.take(word)
        return line


def _check_format(line: Line) -> None:
    column = line.next.column
    number = line.take_int("a format number")
    if number != FORMAT:
        line.reject(f"the text is of format {number}; this version reads format {FORMAT}", column)


def _problem(lines: _Lines) -> Problem:
    """``problem {json}``: the rest of the line is JSON."""
    if not lines.skip():
        lines.take("problem")
    number, text = lines.raw()
    indent = len(text) - len(text.lstrip())
    word, _, data = text.strip().partition(" ")
    column = indent + len(word) + 2
    if word != "problem":
        raise ParseError(number, indent + 1, f"expected 'problem', found {word!r}")
    try:
        return Problem.from_json(json.loads(data, parse_constant=_no_constant))
    except json.JSONDecodeError as error:
        raise ParseError(number, column + error.pos, f"expected a problem as JSON: {error.msg}") from error
    except (ValueError, RecursionError, LiquidCPError) as error:
        raise ParseError(number, column, f"the problem is not one: {error}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Locs:
    """``loc 1 "file.py:12"``; loc 0 is empty unless given."""

    def __init__(self) -> None:
        self.values: list[str] = [""]
        self.given = False

    def add(self, line: Line) -> None:
        column = line.next.column
        number = line.take_int("a loc number")
        value = line.take_string("a place")
        if number == 0 and not self.given and len(self.values) == 1:
            self.values = [value]
        elif number == len(self.values):
            self.values.append(value)
        else:
            line.reject(f"locs go on at {len(self.values)}, found {number}", column)
        self.given = True


class _Authored:
    """Statements of an authored graph: ``loc`` and ``region``."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.locs = problem, _Locs()
        self.rows: list[tuple[int, ...]] = []

    def statement(self, line: Line) -> None:
        if line.accept("loc"):
            self.locs.add(line)
        elif line.accept("region"):
            self._region(line)
        else:
            line.fail("loc or region")

    def _region(self, line: Line) -> None:
        line.take("sequence")
        sequence = line.take_int("a sequence", 0, self.problem.num_sequences)
        role = line.accept_word(ROLE_WORDS) or Role.NONE
        line.take("q")
        q = line.take_range("query tokens", int(self.problem.q_lengths[sequence]))
        line.take("kv")
        kv = line.take_range("key tokens", int(self.problem.kv_lengths_array[sequence]))
        loc = line.take_int("a loc", 0, len(self.locs.values)) if line.accept("loc") else 0
        self.rows.append((sequence, role, *q, *kv, loc))

    def graph(self) -> AuthoredGraph:
        columns = np.array(self.rows, np.int64).reshape(-1, 7).T.copy()
        names = ("sequence", "role", "q_lo", "q_hi", "kv_lo", "kv_hi", "loc")
        regions = RegionTable(**dict(zip(names, columns, strict=True)))
        return AuthoredGraph(problem=self.problem, regions=regions, locs=tuple(self.locs.values))


class _Tasks:
    """Statements of a placed, planned or synced graph."""

    def __init__(self, problem: Problem, stage: Stage, lines: _Lines) -> None:
        self.problem, self.stage, self.locs = problem, stage, _Locs()
        self.world = self._number(lines, "world", "a number of ranks")
        self.tile = self._number(lines, "tile", "tokens of a tile")
        n = problem.num_sequences
        shared = {"world": self.world, "tile": self.tile, "num_sequences": n}
        self.q = TileRows("q", num_heads=problem.num_heads_q, **shared)
        self.kv = TileRows("kv", num_heads=problem.num_heads_kv, **shared)
        self.states: list[int] = []
        self.signals = SignalRows(self.world, n) if stage == Stage.SYNCED else None
        self.tasks = TaskRows(self.world, self.signals)

    @staticmethod
    def _number(lines: _Lines, word: str, what: str) -> int:
        line = lines.take(word)
        number = line.take_int(what, 1)
        line.finish()
        return number

    def statement(self, line: Line) -> None:
        if line.accept("%"):
            self.tasks.add(line, self._limits(), len(self.locs.values))
        elif line.accept("q"):
            self.q.add(line)
        elif line.accept("kv"):
            self.kv.add(line)
        elif line.accept("state"):
            count = take_next_ids(line, "state", len(self.states))
            line.take("q")
            self.states += [line.take_int("a q id", 0, len(self.q))] * count
        elif line.accept("loc"):
            self.locs.add(line)
        elif line.next.text == "!" and self.signals is None:
            line.reject(f"only a synced graph has signals; this one is {self.stage}")
        elif self.signals is not None and line.accept("!"):
            self.signals.add(line, self._limits())
        else:
            line.fail("loc, q, kv, state, ! (a signal) or % (a task)")

    def _limits(self) -> dict[Space, int]:
        return {Space.Q: len(self.q), Space.KV: len(self.kv), Space.STATE: len(self.states), Space.OUT: len(self.q)}

    def graph(self) -> AnyGraph:
        signals = {} if self.signals is None else {"signals": self.signals.table()}
        return STAGE_TYPES[self.stage](
            problem=self.problem,
            world=self.world,
            tile=self.tile,
            q_tiles=self.q.table(),
            kv_tiles=self.kv.table(),
            states=np.array(self.states, np.int64),
            tasks=self.tasks.table(),
            locs=tuple(self.locs.values),
            **signals,
        )
