"""Problem files: JSON of format 1, read strictly and written atomically."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields
from pathlib import Path
from typing import Any

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.mask import Mask
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Problem, Request
from liquidcp_compiler.ir.problem_fields import MISSING
from liquidcp_compiler.ir.problem_unsupported import refuse_unsupported

FORMAT = 1
KINDS: dict[str, type[Problem]] = {"prefill": PrefillProblem, "decode": DecodeProblem}
OMITTED_AT_DEFAULT = (
    "kv_lengths",
    "head_dim_v",
    "softcap",
    "sinks",
    "interleave",
    "new_kv",
    "exchange_dtype",
)


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """JSON data of a problem. Fields that few problems set are left out at their defaults."""
    data: dict[str, Any] = {"format": FORMAT, "kind": problem.kind}
    names = [f.name for f in fields(problem)]
    leading = [name for name in ("lengths", "kv_lengths", "requests") if name in names]
    defaults = {f.name: f.default for f in fields(problem)}
    for name in [*leading, *(n for n in names if n not in leading)]:
        value = getattr(problem, name)
        if name not in OMITTED_AT_DEFAULT or value != defaults[name]:
            data[name] = _to_data(value)
    return data


def problem_from_json(data: object) -> Problem:
    """A problem from JSON data. Raises InvalidField or UnsupportedError naming the key."""
    if not isinstance(data, Mapping):
        raise InvalidField("problem", data, 'an object such as {"format": 1, "kind": "prefill", ...}')
    version = data.get("format", MISSING)
    if type(version) is not int or version != FORMAT:
        raise InvalidField("format", version, str(FORMAT))
    kind = data.get("kind", MISSING)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidField("kind", kind, ", ".join(KINDS))
    cls = KINDS[kind]
    values = {key: value for key, value in data.items() if key not in ("format", "kind")}
    _check_keys(cls, values)
    return cls(**values)


def read_problem(path: str | os.PathLike[str]) -> Problem:
    """Read a problem file. Raises InvalidField with one clear line where it is not one."""
    name = os.fspath(path)
    try:
        data = json.loads(Path(path).read_bytes().decode("utf-8"), object_pairs_hook=_object_without_duplicates)
    except OSError as error:
        raise InvalidField("problem file", name, "a readable file", error.strerror or str(error)) from error
    except InvalidField:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidField("problem file", name, "a JSON object in UTF-8", str(error)) from error
    return problem_from_json(data)


def write_problem(path: str | os.PathLike[str], problem: Problem) -> None:
    """Write a problem file by renaming a complete temporary file of the same folder."""
    path = Path(path)
    text = json.dumps(problem_to_json(problem), indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _check_keys(cls: type[Problem], values: Mapping[str, Any]) -> None:
    names = [f.name for f in fields(cls)]
    listed = ", ".join(["format", "kind", *names])
    refuse_unsupported(values)
    for key, value in values.items():
        if key not in names:
            raise InvalidField(str(key), value, f"no such key; the keys of a {cls.kind} problem are {listed}")
    for field in fields(cls):
        if field.default is NO_DEFAULT and field.name not in values:
            raise InvalidField(field.name, MISSING, f"the key must be given; the keys are {listed}")


def _to_data(value: Any) -> Any:
    if isinstance(value, Mask):
        return value.to_json()
    if isinstance(value, Request):
        return {"history": value.history, "query": value.query}
    if isinstance(value, tuple):
        return [_to_data(x) for x in value]
    return str(value) if isinstance(value, str) else value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise InvalidField(next(k for k in keys if keys.count(k) > 1), "given twice", "each key once")
    return result
