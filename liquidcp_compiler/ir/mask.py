"""Masks as a user states them: which keys a query may see, independent of one batch's lengths.

Positions are aligned bottom-right: query ``i`` of a sequence has position ``i + kv_len - q_len``, which is
negative where there are more queries than keys. :mod:`liquidcp_compiler.ir.mask_bound` binds a mask to the
lengths of a problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem_fields import (
    MISSING,
    known_keys,
    lengths_of_cu_seqlens,
    whole_number,
    whole_numbers,
)


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Base of all masks. Two masks are equal when type and fields are."""

    type: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """The mask as JSON data: ``{"type": "sliding_window", "left": 64, "right": 0}``."""
        return {"type": self.type, **{f.name: _as_lists(getattr(self, f.name)) for f in fields(self)}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Mask:
        """The mask that ``to_json`` wrote. Raises InvalidField on an unknown type or key."""
        if not isinstance(data, Mapping):
            raise InvalidField("mask", data, 'an object such as {"type": "causal"}')
        kind = data.get("type", MISSING)
        if not isinstance(kind, str) or kind not in MASK_TYPES:
            raise InvalidField("mask.type", kind, ", ".join(MASK_TYPES))
        cls = MASK_TYPES[kind]
        values = known_keys("mask", data, ["type", *(f.name for f in fields(cls))])
        del values["type"]
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Causal(Mask):
    """A query at position p sees keys 0..p."""

    type: ClassVar[str] = "causal"


@dataclass(frozen=True, kw_only=True)
class Full(Mask):
    """Every query sees every key of its sequence."""

    type: ClassVar[str] = "full"


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Mask):
    """A query at position p sees keys p - left .. p + right, both ends included."""

    type: ClassVar[str] = "sliding_window"
    left: int
    right: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "left", whole_number("mask.left", self.left))
        object.__setattr__(self, "right", whole_number("mask.right", self.right))


@dataclass(frozen=True, kw_only=True)
class Document(Mask):
    """Causal inside each document. ``cu_seqlens`` are prefix sums over the packed batch: ``[0, ..,
    total_tokens]``.

    Borders of documents and borders of sequences both separate.
    """

    type: ClassVar[str] = "document"
    cu_seqlens: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = lengths_of_cu_seqlens("mask.cu_seqlens", self.cu_seqlens, None, "")
        bounds = [0]
        for length in lengths:
            bounds.append(bounds[-1] + length)
        object.__setattr__(self, "cu_seqlens", tuple(bounds))


@dataclass(frozen=True, kw_only=True)
class SharedPrefix(Mask):
    """The batch is one packed sequence; its documents are the problem's ``lengths``, each causal inside
    itself.

    The first ``prefix`` tokens (part of the first document) are visible to every later document too.
    """

    type: ClassVar[str] = "shared_prefix"
    prefix: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", whole_number("mask.prefix", self.prefix, minimum=1))


@dataclass(frozen=True, kw_only=True)
class BlockSparse(Mask):
    """``rows[i]`` lists the visible key blocks of query block ``i``; blocks are ``block`` tokens. No
    causality on top.
    """

    type: ClassVar[str] = "block_sparse"
    block: int
    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", whole_number("mask.block", self.block, minimum=1))
        if not isinstance(self.rows, (list, tuple)):
            raise InvalidField("mask.rows", self.rows, "a list with one list of key block indices per query block")
        rows = tuple(whole_numbers(f"mask.rows[{i}]", row) for i, row in enumerate(self.rows))
        for i, row in enumerate(rows):
            if any(a >= b for a, b in zip(row, row[1:], strict=False)):
                raise InvalidField(f"mask.rows[{i}]", list(row), "key block indices in rising order, each once")
        object.__setattr__(self, "rows", rows)


MASK_TYPES: dict[str, type[Mask]] = {
    cls.type: cls for cls in (Causal, Full, SlidingWindow, Document, SharedPrefix, BlockSparse)
}


def _as_lists(value: Any) -> Any:
    return [_as_lists(x) for x in value] if isinstance(value, tuple) else value
