"""A serving trace: requests with their arrival, lengths and shared prefixes, from the user's file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.problem_fields import MAX_TOKENS

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
#: Tokens of one block of a prompt, in the published traces.
BLOCK_TOKENS = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Fields: ``timestamp`` int64 [requests], ms from the start; ``input_length``, ``output_length`` int64 [requests],
    tokens; ``hash_ids`` int64 [blocks of all requests] and ``hash_ptr`` int64 [requests + 1]: the blocks of request i
    are ``hash_ids[hash_ptr[i] : hash_ptr[i + 1]]``. Equal ids mean an equal prompt up to and including that block.
    """

    timestamp: NDArray[np.int64]
    input_length: NDArray[np.int64]
    output_length: NDArray[np.int64]
    hash_ids: NDArray[np.int64]
    hash_ptr: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.timestamp)

    def blocks(self, request: int) -> NDArray[np.int64]:
        """The block ids of one request."""
        return self.hash_ids[self.hash_ptr[request] : self.hash_ptr[request + 1]]


def load_trace(path: str | os.PathLike[str], block_tokens: int = BLOCK_TOKENS) -> Trace:
    """Reads a trace in the form of Mooncake's conversation trace: one JSON object a line, with ``FIELDS``.

    Empty lines are passed over, other keys ignored. Raises InvalidField naming the line: text that is no JSON object,
    a field that is missing or no whole number in its range, a time before the one above, or a number of hash ids other
    than ceil(input_length / block_tokens).
    """
    if block_tokens < 1:
        raise InvalidField("block_tokens", block_tokens, "tokens >= 1")
    name = os.fspath(path)
    rows, ids, before = [], [], 0
    for number, line in _lines(name):
        row = _read(f"{name}: line {number}", line, block_tokens)
        if row[0] < before:
            raise InvalidField(f"{name}: line {number}.timestamp", row[0], f"at least {before}, as the line before it")
        before = row[0]
        rows.append(row[:3])
        ids.append(row[3])
    if not rows:
        raise InvalidField("trace", name, "at least one request")
    columns = np.array(rows, np.int64).T
    counts = np.array([len(x) for x in ids], np.int64)
    return Trace(
        timestamp=columns[0],
        input_length=columns[1],
        output_length=columns[2],
        hash_ids=np.array([x for one in ids for x in one], np.int64),
        hash_ptr=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
    )


def _lines(name: str):
    try:
        raw = Path(name).read_bytes()
    except OSError as e:
        raise InvalidField("trace", name, "a readable file", e.strerror or str(e)) from e
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _read(where: str, line: bytes, block_tokens: int) -> tuple[int, int, int, list[int]]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise InvalidField(where, line[:60].decode("utf-8", "replace"), "a JSON object", str(e)) from e
    if not isinstance(data, dict):
        raise InvalidField(where, data, "a JSON object with " + ", ".join(FIELDS))
    timestamp = _whole(where, data, "timestamp", 0)
    input_length, output_length = _whole(where, data, "input_length", 1), _whole(where, data, "output_length", 0)
    ids = data.get("hash_ids")
    wanted = -(-input_length // block_tokens)
    if not isinstance(ids, list) or any(type(x) is not int or not 0 <= x < 2**63 for x in ids):
        raise InvalidField(f"{where}.hash_ids", ids, "a list of whole numbers >= 0")
    if len(ids) != wanted:
        raise InvalidField(f"{where}.hash_ids", len(ids), f"{wanted} ids, one for each {block_tokens} tokens of input")
    return timestamp, input_length, output_length, ids


def _whole(where: str, data: dict[str, Any], field: str, least: int) -> int:
    value = data.get(field)
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        raise InvalidField(f"{where}.{field}", value, f"whole numbers from {least} to {MAX_TOKENS}")
    return value
