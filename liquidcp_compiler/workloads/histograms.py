"""Measured lengths from a file of the user's: three public forms."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path

import numpy as np

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.workloads.lengths import Histogram, LengthSampler, Measured

_HALF_OPEN = re.compile(r"\[\s*(\d{1,18})\s*,\s*(\d{1,18})\s*\)")
_CLOSED = re.compile(r"\[\s*(\d{1,18})\s*,\s*(\d{1,18})\s*\]")
_FORMS = 'JSON {"[low,high)": share, ...}, a JSON list of lengths, or CSV with columns range ("[low, high]") and number'
#: Lengths that a file may name; far above any document, and its logarithm is exact enough.
MAX_LENGTH = 2**40
#: Share or number of documents of a bin; the sum of as many bins as a file holds stays finite.
MAX_WEIGHT = 2**63


def load_lengths(path: str | os.PathLike[str], most: int | None = None) -> LengthSampler:
    """A sampler from a file, by its form.

    Forms: a JSON object of half-open bins ``{"[0,32)": 0.03, ...}`` (as LongCA-bench has them), a JSON list of lengths
    (as DistCA's simulator), or a CSV table with the columns ``range`` of closed bins and ``number`` of documents (as
    MagiAttention's benchmark).

    ``most``: longer draws are clipped. Raises InvalidField naming the file and the bin, line or entry.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise InvalidField("file of lengths", name, "a readable file", e.strerror or str(e)) from e
    except UnicodeDecodeError as e:
        raise InvalidField("file of lengths", name, _FORMS, "It is not UTF-8 text") from e
    if Path(path).suffix.lower() == ".csv":
        return _from_csv(name, text, most)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InvalidField("file of lengths", name, _FORMS, str(e)) from e
    if isinstance(data, dict):
        return _from_bins(name, data, most)
    if isinstance(data, list):
        return _from_list(name, data, most)
    raise InvalidField("file of lengths", name, _FORMS)


def _from_bins(name: str, data: dict, most: int | None) -> Histogram:
    bins = []
    for key, share in data.items():
        match = _HALF_OPEN.fullmatch(key)
        if match is None:
            raise InvalidField(f"{name}: bin", key, '"[low,high)" with whole numbers')
        bins.append((int(match[1]), int(match[2]), _weight(f"{name}: {key}", share)))
    return _histogram(name, bins, most)


def _from_csv(name: str, text: str, most: int | None) -> Histogram:
    bins = []
    rows = csv.DictReader(io.StringIO(text))
    if rows.fieldnames is None or not {"range", "number"} <= set(rows.fieldnames):
        raise InvalidField(f"{name}: columns", rows.fieldnames, "range and number among them")
    for row in rows:
        where = f"{name}: line {rows.line_num}"
        match = _CLOSED.fullmatch((row["range"] or "").strip())
        if match is None:
            raise InvalidField(where, row["range"], '"[low, high]" with whole numbers')
        try:
            number = int(row["number"] or "", 10)
        except ValueError:
            raise InvalidField(where, row["number"], "a whole number of documents") from None
        bins.append((int(match[1]), int(match[2]) + 1, _weight(where, number)))
    return _histogram(name, bins, most)


def _from_list(name: str, data: list, most: int | None) -> Measured:
    for i, x in enumerate(data):
        if type(x) is not int or not 1 <= x <= MAX_LENGTH:
            raise InvalidField(f"{name}[{i}]", x, f"whole numbers of tokens from 1 to {MAX_LENGTH}")
    if not data:
        raise InvalidField(f"{name}", data, "at least one length")
    return Measured(lengths=np.array(data, np.int64), most=most)


def _weight(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WEIGHT:
        raise InvalidField(where, value, f"a share or number from 0 to {MAX_WEIGHT}")
    return float(value)


def _histogram(name: str, bins: list[tuple[int, int, float]], most: int | None) -> Histogram:
    for lo, hi, _ in bins:
        if not lo < hi <= MAX_LENGTH + 1 or hi < 2:
            raise InvalidField(f"{name}: bin", (lo, hi), f"low < high, 2 <= high <= {MAX_LENGTH}")
    if not any(w for _, _, w in bins):
        raise InvalidField(f"{name}: bins", len(bins), "at least one with a share > 0")
    low, high, weight = (np.array(column) for column in zip(*bins, strict=True))
    return Histogram(low=low, high=high, weight=weight, most=most)
