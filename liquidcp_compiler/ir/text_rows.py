"""Lines of the text form as rows of a graph's tables, one class a table."""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.ir.graph import SignalTable
from liquidcp_compiler.ir.intervals import AccessTable, IntArray
from liquidcp_compiler.ir.layout import Role, SignalKind, Space
from liquidcp_compiler.ir.tasks import Direction, TaskKind, TaskTable
from liquidcp_compiler.ir.text_format import (
    DIRECTION_WORDS,
    FORMATION_WORDS,
    KIND_WORDS,
    ROLE_WORDS,
    SIGNAL_WORDS,
    SPACE_WORDS,
    USUAL_FORMATION,
)
from liquidcp_compiler.ir.text_lexer import Line
from liquidcp_compiler.ir.tiles import REPLICATED, TileTable

#: Tiles, states or outputs there are, by space.
Limits = dict[Space, int]

#: Ids that one line may declare: more than any graph has, and little enough for a list of them.
MAX_IDS = 2**22

TILE_COLUMNS = ("sequence", "position", "rows", "group", "interleave", "phase", "rank", "slot", "head", "num_heads")


def take_next_ids(line: Line, word: str, count: int) -> int:
    """Takes ``3`` or ``3:8``, which must start at ``count``; how many ids there are."""
    column = line.next.column
    lo, hi = line.take_interval(f"{word} ids")
    if lo != count or hi <= lo:
        line.reject(f"{word} ids go on at {count}, found {lo}:{hi}", column)
    if hi - lo > MAX_IDS:
        line.reject(f"a line declares at most {MAX_IDS} ids, found {hi - lo}", column)
    return hi - lo


class TileRows:
    """``q 0:4 sequence 0 rows 0:500 @2 slot 3 heads 4:8 every 4 by 1 phase 2 step 16``."""

    def __init__(self, word: str, *, world: int, tile: int, num_sequences: int, num_heads: int) -> None:
        self.word, self.world, self.tile = word, world, tile
        self.num_sequences, self.num_heads = num_sequences, num_heads
        self.columns: dict[str, list[int]] = {name: [] for name in TILE_COLUMNS}

    def __len__(self) -> int:
        return len(self.columns["rows"])

    def add(self, line: Line) -> None:
        """The tiles of one line."""
        count = take_next_ids(line, self.word, len(self))
        line.take("sequence")
        sequence = line.take_int("a sequence", 0, self.num_sequences)
        line.take("rows")
        column = line.next.column
        lo, hi = line.take_range("the tokens")
        line.take("@")
        rank = REPLICATED if line.accept("all") else line.take_int("a rank, or 'all'", 0, self.world)
        first = {"sequence": sequence, "rank": rank, "slot": -1}
        if rank != REPLICATED or line.next.text == "slot":
            line.take("slot")
            first["slot"] = line.take_int("a slot", -1)
        step, shape = self._options(line)
        rows = self._rows(line, count, hi - lo, step, column)
        for i in range(count):
            row = first | shape | {"position": lo + i * rows[0], "rows": rows[i]}
            row["slot"] = first["slot"] + (i if rank != REPLICATED else 0)
            for name, value in row.items():
                self.columns[name].append(value)

    def _options(self, line: Line) -> tuple[int, dict[str, int]]:
        step = self.tile
        shape = {"head": 0, "num_heads": self.num_heads, "group": 1, "interleave": 1, "phase": 0}
        seen: set[str] = set()
        while not line.at_end:
            word = line.next.text
            line.take_once(seen, word)
            if line.accept("heads"):
                lo, hi = line.take_range("heads", self.num_heads)
                shape |= {"head": lo, "num_heads": hi - lo}
            elif line.accept("every"):
                shape["group"] = line.take_int("a number of ranks", 1)
                line.take("by")
                shape["interleave"] = line.take_int("a number of tokens", 1)
                line.take("phase")
                shape["phase"] = line.take_int("a phase", 0, shape["group"])
            elif line.accept("step"):
                step = line.take_int("tokens of a tile", 1)
            else:
                line.finish("heads, every, step")
        return step, shape

    def _rows(self, line: Line, count: int, total: int, step: int, column: int) -> list[int]:
        if count == 1:
            return [total]
        last = total - (count - 1) * step
        if not 0 < last <= step:
            line.reject(
                f"{count} tiles of {step} tokens hold {(count - 1) * step + 1} to {count * step}, not {total}", column
            )
        return [step] * (count - 1) + [last]

    def table(self) -> TileTable:
        """The finished table."""
        return TileTable(**{name: _ints(values) for name, values in self.columns.items()})


class SignalRows:
    """``!3 tile @1 kv 5 expects 1``, and the ``wait`` and ``set`` of tasks."""

    def __init__(self, world: int, num_sequences: int) -> None:
        self.world, self.num_sequences = world, num_sequences
        self.rows: list[tuple[int, ...]] = []
        self.waits: list[tuple[int, int, int]] = []
        self.sets: list[tuple[int, int]] = []

    def add(self, line: Line, limits: Limits) -> None:
        """The signal of one line."""
        take_next_ids(line, "signal", len(self.rows))
        kind = line.take_word(SIGNAL_WORDS, "a signal kind")
        line.take("@")
        rank = line.take_int("a rank", 0, self.world)
        space, item, expected = Space.NONE, 0, 1
        named = line.accept_word(SPACE_WORDS)
        if named is not None:
            space, item = named, line.take_int(f"a {named.name.lower()} id", 0, limits[named])
        elif kind == SignalKind.PREFIX or line.next.text == "sequence":
            line.take("sequence")
            item = line.take_int("a sequence", 0, self.num_sequences)
        if line.accept("expects"):
            expected = line.take_int("a value")
        line.finish("a tile or state, 'expects'")
        self.rows.append((kind, rank, space, item, expected))

    def add_waits(self, line: Line, task: int) -> None:
        """``!3 !4>=6`` after ``wait``."""
        while line.accept("!"):
            signal = line.take_int("a signal", 0, len(self.rows))
            self.waits.append((task, signal, line.take_int("a value") if line.accept(">=") else 1))

    def add_sets(self, line: Line, task: int) -> None:
        """``!3 !4`` after ``set``."""
        while line.accept("!"):
            self.sets.append((task, line.take_int("a signal", 0, len(self.rows))))

    def table(self) -> SignalTable:
        """The finished table."""
        kind, rank, space, item, expected = _columns(self.rows, 5)
        wait_task, wait_signal, wait_value = _columns(self.waits, 3)
        set_task, set_signal = _columns(self.sets, 2)
        return SignalTable(
            kind=kind,
            rank=rank,
            space=space,
            item=item,
            expected=expected,
            wait_task=wait_task,
            wait_signal=wait_signal,
            wait_value=wait_value,
            set_task=set_task,
            set_signal=set_signal,
        )


class TaskRows:
    """``%7 compute @0 q 0 kv 0:4 -> out 0 self ready(1, 4) loc 1 wait !3 set !9``."""

    def __init__(self, world: int, signals: SignalRows | None) -> None:
        self.world, self.signals = world, signals
        self.rows: list[tuple[int, ...]] = []
        self.reads, self.writes = _Entries(), _Entries()

    def add(self, line: Line, limits: Limits, num_locs: int) -> None:
        """The task of one line."""
        take_next_ids(line, "task", len(self.rows))
        kind = line.take_word(KIND_WORDS, "a task kind")
        peer = -1
        if kind == TaskKind.TRANSFER:
            reads = _items(line, limits)
            line.take("from")
            peer = line.take_int("a rank", 0, self.world)
            line.take("to")
            rank = line.take_int("a rank", 0, self.world)
            writes = _items(line, limits) if line.accept("->") else reads
        else:
            line.take("@")
            rank = line.take_int("a rank", 0, self.world)
            reads = _items(line, limits)
            writes = _items(line, limits) if line.accept("->") else []
        self.reads.add(reads)
        self.writes.add(writes)
        self.rows.append((kind, rank, peer, *self._options(line, kind, num_locs)))

    def _options(self, line: Line, kind: TaskKind, num_locs: int) -> tuple[int, ...]:
        """(role, formation, tau_min, tau_max, direction, loc); waits and sets go to the signals."""
        role, formation, direction, loc = Role.NONE, USUAL_FORMATION[kind], Direction.FORWARD, 0
        seen: set[str] = set()
        while not line.at_end:
            word = line.next.text
            if (a := line.accept_word(ROLE_WORDS)) is not None:
                role, word = a, "the role"
            elif (b := line.accept_word(FORMATION_WORDS)) is not None:
                formation, word = (b, *_thresholds(line)), "the formation"
            elif (c := line.accept_word(DIRECTION_WORDS)) is not None:
                direction = c
            elif line.accept("loc"):
                loc = line.take_int("a loc", 0, num_locs)
            elif self.signals is not None and line.accept("wait"):
                self.signals.add_waits(line, len(self.rows))
            elif self.signals is not None and line.accept("set"):
                self.signals.add_sets(line, len(self.rows))
            elif word in ("wait", "set"):
                line.reject("only a synced graph has signals; the first line says which stage this is")
            else:
                line.finish("a role, a formation, backward, loc, wait, set")
            line.take_once(seen, word)
        return role, *formation, direction, loc

    def table(self) -> TaskTable:
        """The finished table."""
        kind, rank, peer, role, formation, tau_min, tau_max, direction, loc = _columns(self.rows, 9)
        return TaskTable(
            kind=kind.astype(np.uint8),
            rank=rank,
            peer=peer,
            role=role.astype(np.uint8),
            formation=formation.astype(np.uint8),
            tau_min=tau_min,
            tau_max=tau_max,
            direction=direction.astype(np.uint8),
            loc=loc,
            reads=self.reads.table(),
            writes=self.writes.table(),
        )


class _Entries:
    """Rows of (space, lo, hi)."""

    def __init__(self) -> None:
        self.ptr: list[int] = [0]
        self.flat: list[tuple[int, ...]] = []

    def add(self, entries: list[tuple[Space, int, int]]) -> None:
        self.flat += entries
        self.ptr.append(len(self.flat))

    def table(self) -> AccessTable:
        space, lo, hi = _columns(self.flat, 3)
        return AccessTable(_ints(self.ptr), space.astype(np.uint8), lo, hi)


def _items(line: Line, limits: Limits) -> list[tuple[Space, int, int]]:
    """``q 0 kv 3 5:8``; may be empty."""
    entries = []
    while (space := line.accept_word(SPACE_WORDS)) is not None:
        what = f"{space.name.lower()} ids"
        entries.append((space, *line.take_interval(what, limits[space])))
        while line.next.kind == "int":
            entries.append((space, *line.take_interval(what, limits[space])))
    return entries


def _thresholds(line: Line) -> tuple[int, int]:
    """``(1, 4)``."""
    line.take("(")
    tau_min = line.take_int("tau_min")
    line.take(",")
    tau_max = line.take_int("tau_max")
    line.take(")")
    return tau_min, tau_max


def _ints(values: list[int]) -> IntArray:
    return np.array(values, np.int64)


def _columns(rows: list[tuple[int, ...]], width: int) -> list[IntArray]:
    """Rows as ``width`` int64 columns."""
    return list(np.array(rows, np.int64).reshape(-1, width).T.copy())
