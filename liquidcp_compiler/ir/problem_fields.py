"""Checks that turn what a user wrote in a field into its one normal form, or raise naming the field."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

from liquidcp_compiler.errors import InvalidField, TensorError

MAX_TOKENS = 2**40
"""Most tokens of one batch. Keeps every sum and every element offset far inside int64."""
MAX_HEADS = 2**16
MAX_INT32 = 2**31 - 1
"""Most that a field of a plan's tables holds."""
_FP32_NORMAL = (2.0**-126, (2 - 2.0**-23) * 2.0**127)


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()
"""Stands for the value of an absent key in messages: ``num_heads_q is missing``."""


def whole_number(field: str, value: object, minimum: int = 0, maximum: int = MAX_TOKENS) -> int:
    """``value`` as a Python int. Python and numpy integers pass; bool, float and text raise InvalidField."""
    allowed = f"whole numbers >= {minimum}"
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        raise InvalidField(field, value, allowed)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError, ValueError):
        raise InvalidField(field, value, allowed) from None
    if number < minimum:
        raise InvalidField(field, number, allowed)
    if number > maximum:
        raise InvalidField(field, number, f"whole numbers from {minimum} to {maximum}")
    return number


def whole_numbers(field: str, value: object, minimum: int = 0, maximum: int = MAX_TOKENS) -> tuple[int, ...]:
    """An ordered collection of integers as a tuple of int; errors name the element: ``lengths[3]``."""
    allowed = f"a list of whole numbers >= {minimum}"
    if isinstance(value, (str, bytes, Mapping, Set)) or not isinstance(value, Iterable):
        raise InvalidField(field, value, allowed)
    try:
        # tolist() gives Python ints at once; a float array gives floats, which are then refused one by one.
        elements = value.tolist() if type(value).__module__ == "numpy" else list(value)  # type: ignore[attr-defined]
    except TypeError:  # a zero-dimensional tensor is "iterable" until one tries
        raise InvalidField(field, value, allowed) from None
    if not isinstance(elements, list):
        raise InvalidField(field, value, allowed)
    if set(map(type, elements)) == {int} and min(elements) >= minimum and max(elements) <= maximum:
        return tuple(elements)
    return tuple(whole_number(f"{field}[{i}]", x, minimum, maximum) for i, x in enumerate(elements))


def check_total(field: str, lengths: Iterable[int]) -> None:
    """The batch as a whole stays within MAX_TOKENS, or InvalidField on ``sum(field)``."""
    total = sum(lengths)
    if total > MAX_TOKENS:
        raise InvalidField(f"sum({field})", total, f"at most {MAX_TOKENS} tokens in one batch")


def positive_float(field: str, value: object) -> float:
    """A finite number > 0 that fp32 can hold (the kernels compute with it in fp32)."""
    allowed = "a finite number > 0"
    if isinstance(value, (bool, str, bytes)) or type(value).__name__ in ("bool", "bool_"):
        raise InvalidField(field, value, allowed)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InvalidField(field, value, allowed) from None
    if not math.isfinite(number) or number <= 0:
        raise InvalidField(field, value, allowed)
    if not _FP32_NORMAL[0] <= number <= _FP32_NORMAL[1]:
        raise InvalidField(field, value, "a finite number > 0 within the range of fp32")
    return number


def flag(field: str, value: object) -> bool:
    """True or False; numbers and text raise InvalidField."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise InvalidField(field, value, "true or false")


def one_of(field: str, value: object, allowed: Collection[str]) -> str:
    """A text that is one of ``allowed``, or InvalidField listing them."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidField(field, value, ", ".join(allowed))
    return str(value)


def known_keys(where: str, value: object, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """``value`` as a dict with all required keys and no unknown ones, or InvalidField."""
    names = ", ".join([*required, *optional])
    if not isinstance(value, Mapping):
        raise InvalidField(where, value, f"an object with the keys {names}")
    prefix = f"{where}." if where else ""
    for key in value:
        if key not in required and key not in optional:
            raise InvalidField(f"{prefix}{key}", value[key], f"no such key; the keys are {names}")
    for key in required:
        if key not in value:
            raise InvalidField(f"{prefix}{key}", MISSING, f"the key must be given; the keys are {names}")
    return dict(value)


def lengths_of_cu_seqlens(field: str, value: object, total: int | None, total_name: str) -> tuple[int, ...]:
    """Per-sequence lengths from prefix sums ``[0, l0, l0 + l1, ...]``.

    ``value``: a list of ints, or a one-dimensional int32 numpy array or torch CPU tensor. ``total``: the
    number of rows of the packed tensor, which the last entry must equal.

    Raises TensorError for dtype, device and shape, InvalidField for the values.
    """
    bounds = whole_numbers(field, _host_list(field, value))
    if not bounds:
        raise InvalidField(field, value, "at least one entry; an empty batch is [0]")
    if bounds[0] != 0:
        raise InvalidField(f"{field}[0]", bounds[0], "0")
    for i in range(1, len(bounds)):
        if bounds[i] < bounds[i - 1]:
            raise InvalidField(f"{field}[{i}]", bounds[i], f"non-decreasing values; the one before is {bounds[i - 1]}")
    if total is not None and bounds[-1] != whole_number(total_name, total):
        raise InvalidField(
            f"{field}[-1]",
            bounds[-1],
            f"{total_name} = {total}",
            "It must equal the rows of the packed tensor",
        )
    return tuple(b - a for a, b in zip(bounds, bounds[1:], strict=False))


def _host_list(field: str, value: object) -> object:
    torch = sys.modules.get("torch")
    is_torch = torch is not None and isinstance(value, torch.Tensor)
    if not is_torch and type(value).__module__ != "numpy":
        return value
    array: Any = value
    if str(array.dtype).removeprefix("torch.") != "int32":
        raise TensorError(field, "dtype", array.dtype, "int32")
    if array.ndim != 1:
        raise TensorError(field, "shape", tuple(array.shape), "one dimension")
    if is_torch and array.device.type != "cpu":
        raise TensorError(field, "device", array.device, "cpu", "Planning needs the values on the host: pass .cpu()")
    return array.tolist()
