"""Lines of the text form as tokens, and a cursor that takes them with checks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from liquidcp_compiler.errors import ParseError

T = TypeVar("T")

_TOKEN = re.compile(
    r'(?P<space>[ \t]+)|(?P<comment>#.*)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<mark>->|>=|[@%!:(),])'
    r"|(?P<int>-?[0-9]+)|(?P<word>[A-Za-z][A-Za-z-]*)"
)

#: Longer numbers may not fit an int64.
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: string, mark, int, word, or end. ``column`` counts from 1."""

    kind: str
    text: str
    column: int


class Line:
    """The tokens of one line; every ``take`` or ``accept`` moves on, and errors name line and column."""

    __slots__ = ("number", "_tokens", "_at")

    def __init__(self, number: int, text: str) -> None:
        self.number, self._at = number, 0
        self._tokens = self._scan(text)

    def _scan(self, text: str) -> list[Token]:
        tokens, at = [], 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ParseError(self.number, at + 1, f"{text[at]!r} starts no word, number, mark or string")
            kind = str(match.lastgroup)
            if kind not in ("space", "comment"):
                tokens.append(Token(kind, match.group(), at + 1))
            at = match.end()
        tokens.append(Token("end", "the end of the line", len(text) + 1))
        return tokens

    @property
    def next(self) -> Token:
        """The token that comes next; the last one is of kind ``end``."""
        return self._tokens[self._at]

    @property
    def at_end(self) -> bool:
        """Whether all tokens are taken."""
        return self.next.kind == "end"

    def fail(self, expected: str, column: int | None = None) -> NoReturn:
        """Raises ParseError at the next token: what was expected and what is there."""
        found = self.next.text if self.at_end else repr(self.next.text)
        raise ParseError(self.number, column or self.next.column, f"expected {expected}, found {found}")

    def reject(self, message: str, column: int | None = None) -> NoReturn:
        """Raises ParseError with a message of its own."""
        raise ParseError(self.number, column or self.next.column, message)

    def accept(self, text: str) -> bool:
        """Takes the next token if it is this word or mark."""
        if self.next.text == text and self.next.kind in ("word", "mark"):
            self._at += 1
            return True
        return False

    def take(self, text: str) -> None:
        """Takes this word or mark."""
        if not self.accept(text):
            self.fail(repr(text))

    def accept_word(self, words: Mapping[str, T]) -> T | None:
        """Takes the next token if it is one of the words; what the word stands for, or None."""
        token = self.next
        if token.kind != "word" or token.text not in words:
            return None
        self._at += 1
        return words[token.text]

    def take_word(self, words: Mapping[str, T], what: str) -> T:
        """Takes one of the words; what the word stands for."""
        if self.next.kind != "word" or self.next.text not in words:
            self.fail(f"{what} ({', '.join(words)})")
        self._at += 1
        return words[self._tokens[self._at - 1].text]

    def take_int(self, what: str, lo: int = 0, hi: int | None = None) -> int:
        """Takes a whole number of [lo, hi); without ``hi`` there is no upper bound."""
        allowed = f"{lo} or more" if hi is None else f"{lo} to {hi - 1}" if hi > lo else "none there is"
        token = self.next
        if token.kind != "int" or len(token.text) > _MAX_DIGITS:
            self.fail(f"{what} ({allowed})")
        value = int(token.text)
        if value < lo or (hi is not None and value >= hi):
            self.fail(f"{what} ({allowed})")
        self._at += 1
        return value

    def take_interval(self, what: str, limit: int | None = None) -> tuple[int, int]:
        """Takes ``3`` or ``3:8`` as (lo, hi), with lo <= hi <= limit."""
        alone = not self._colon_follows()
        lo = self.take_int(what, 0, limit if limit is None or alone else limit + 1)
        if alone:
            return lo, lo + 1
        self.take(":")
        return lo, self.take_int(f"the end of {what}", lo, None if limit is None else limit + 1)

    def take_range(self, what: str, limit: int | None = None) -> tuple[int, int]:
        """Takes ``3:8`` as (lo, hi), with lo <= hi <= limit."""
        if not self._colon_follows():
            self.fail(f"{what} as first:past-last")
        return self.take_interval(what, limit)

    def _colon_follows(self) -> bool:
        return self._at + 1 < len(self._tokens) and self._tokens[self._at + 1].text == ":"

    def take_string(self, what: str) -> str:
        """Takes a JSON string."""
        if self.next.kind != "string":
            self.fail(f"{what} in double quotes")
        try:
            value = json.loads(self.next.text)
        except ValueError:
            self.fail(f"{what} as a JSON string")
        self._at += 1
        return value

    def take_once(self, seen: set[str], key: str) -> None:
        """Notes that a part of the line came, and refuses it the second time."""
        if key in seen:
            self.reject(f"{key} is given twice")
        seen.add(key)

    def finish(self, also: str = "") -> None:
        """Checks that nothing is left; ``also`` names what else could have come."""
        if not self.at_end:
            self.fail(f"{also} or the end of the line" if also else "the end of the line")
