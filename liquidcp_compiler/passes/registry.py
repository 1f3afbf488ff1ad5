"""Passes by name, and pipelines as text: ``zigzag-all{tile=64},insert-transfers,coalesce{formation=static}``."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.passes.all_local import AllLocal
from liquidcp_compiler.passes.base import Pass
from liquidcp_compiler.passes.buddy_ring import BuddyRing
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.explicit import Explicit
from liquidcp_compiler.passes.insert_sync import InsertSync
from liquidcp_compiler.passes.insert_transfers import InsertTransfers
from liquidcp_compiler.passes.magi_chunks import MagiChunks
from liquidcp_compiler.passes.megatron_hybrid import MegatronHybrid
from liquidcp_compiler.passes.order import Order
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_compiler.passes.zeppelin import Zeppelin
from liquidcp_compiler.passes.zigzag_all import ZigzagAll

#: Every pass that pipeline text can name.
PASSES: dict[str, type[Pass]] = {
    p.name: p
    for p in (
        *(ZigzagAll, Explicit, Dcp, BuddyRing, MegatronHybrid, Zeppelin, AllLocal, MagiChunks),
        *(InsertTransfers, Coalesce, SplitKv, Order, InsertSync),
    )
}

_NAME = re.compile(r"\s*([A-Za-z][\w-]*)\s*")
_VALUE = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([^,{}"]*))')
_BOOLS = {"true": True, "false": False}


def pass_from_spec(text: str, passes: Mapping[str, type[Pass]] = PASSES) -> Pass:
    """One pass from ``name`` or ``name{option=value,...}``.

    Raises InvalidField for an unknown name or option, a value of the wrong type, or text that is no pass.
    """
    found = parse_pipeline(text, passes)
    if len(found) != 1:
        raise InvalidField("pass", text, "one pass, as name or name{option=value,...}")
    return found[0]


def parse_pipeline(text: str, passes: Mapping[str, type[Pass]] = PASSES) -> tuple[Pass, ...]:
    """The passes of a pipeline text, in order; what ``Pipeline.spec`` prints.

    ``passes`` are the names known: add a pass of your own with ``PASSES | {MyPass.name: MyPass}``. A value may stand
    in double quotes (a JSON string). Raises InvalidField for an unknown name or option, a value of the wrong type, or
    text that is no pipeline.
    """
    return tuple(_make(name, options, passes) for name, options in _Reader(text).items())


class _Reader:
    """Reads (name, options) pairs off a pipeline text."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def items(self) -> Iterator[tuple[str, dict[str, str]]]:
        while True:
            name = self._name("the name of a pass")
            options = self._options(name) if self._accept("{") else {}
            yield name, options
            if self._skip_space() == len(self.text):
                return
            self._take(",", "a comma or the end")

    def _options(self, pass_name: str) -> dict[str, str]:
        options: dict[str, str] = {}
        if self._accept("}"):
            return options
        while True:
            name = self._name(f"an option of {pass_name}")
            self._take("=", f"'=' after {name}")
            if name in options:
                raise InvalidField(f"{pass_name}.{name}", "given twice", "every option once")
            options[name] = self._value()
            if self._accept("}"):
                return options
            self._take(",", "a comma or '}'")

    def _name(self, what: str) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            self._fail(what)
        self.at = match.end()
        return match.group(1)

    def _value(self) -> str:
        match = _VALUE.match(self.text, self.at)
        assert match is not None, "the pattern matches the empty string"
        quoted, plain = match.groups()
        try:
            value = json.loads(quoted) if quoted is not None else plain.strip()
        except ValueError:
            self._fail("a JSON string")
        self.at = match.end()
        return value

    def _skip_space(self) -> int:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at

    def _accept(self, mark: str) -> bool:
        found = self.text.startswith(mark, self._skip_space())
        self.at += len(mark) * found
        return found

    def _take(self, mark: str, what: str) -> None:
        if not self._accept(mark):
            self._fail(what)

    def _fail(self, what: str) -> typing.NoReturn:
        rest = self.text[self.at :]
        found = f"found {rest[:20]!r}" if rest else "found the end"
        raise InvalidField("pipeline", self.text, f"{what} at column {self.at + 1}, {found}")


def _make(name: str, options: dict[str, str], passes: Mapping[str, type[Pass]]) -> Pass:
    if name not in passes:
        raise InvalidField("pass", name, ", ".join(passes))
    cls = passes[name]
    types = typing.get_type_hints(cls)
    known = {f.name.replace("_", "-"): types[f.name] for f in fields(cls)}
    values: dict[str, Any] = {}
    for option, text in options.items():
        if option not in known:
            raise InvalidField(f"{name}.{option}", text, f"no such option; {_list(name, known)}")
        values[option.replace("-", "_")] = _typed(f"{name}.{option}", text, known[option])
    return cls(**values)


def _list(name: str, known: Mapping[str, Any]) -> str:
    return f"the options of {name} are {', '.join(known)}" if known else f"{name} has no options"


def _typed(field: str, text: str, wanted: Any) -> Any:
    """The text as the type of its field."""
    if wanted not in _READERS:
        raise InvalidField(field, text, "nothing in pipeline text; make this pass in Python")
    read, allowed = _READERS[wanted]
    try:
        return read(text)
    except (ValueError, KeyError):
        raise InvalidField(field, text, allowed) from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (lambda text: int(text, 10), "a whole number"),
    int | None: (lambda text: None if text.lower() == "none" else int(text, 10), "a whole number, none"),
    float: (_finite, "a number"),
    str: (str, "text"),
    bool: (lambda text: _BOOLS[text.lower()], "true, false"),
}
