"""Problems: what attention is to be computed, over which lengths, heads and mask. Nothing of ranks or tiles.

A problem's *sequences* are its attention domains: queries of a sequence see keys of the same sequence only.
Prefill: one per length, except under a shared prefix, where the whole packed batch is one. Decode: one per
request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from liquidcp_compiler.errors import InvalidField, UnsupportedError
from liquidcp_compiler.ir.mask import Causal, Full, Mask, SharedPrefix, SlidingWindow
from liquidcp_compiler.ir.mask_bind import bind_mask
from liquidcp_compiler.ir.mask_bound import BoundMask, Int64Array
from liquidcp_compiler.ir.problem_dtype import DType
from liquidcp_compiler.ir.problem_fields import (
    MAX_HEADS,
    MAX_INT32,
    check_total,
    flag,
    known_keys,
    lengths_of_cu_seqlens,
    one_of,
    positive_float,
    whole_number,
    whole_numbers,
)
from liquidcp_compiler.ir.problem_unsupported import refuse_unsupported

SUPPORTED_HEAD_DIMS = tuple(range(16, 257, 16))
DECODE_MASKS: tuple[type[Mask], ...] = (Causal, Full, SlidingWindow)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The fields and properties that prefill and decode share. Immutable; equal and hashable by value.

    ``softmax_scale``: None is 1 / sqrt(head_dim). ``softcap``: scores become softcap * tanh(scale * qk /
    softcap). ``sinks``: one extra logit per query head enters the softmax's sum; values come at run time as a
    tensor [num_heads_q]. ``head_dim_v`` may only repeat ``head_dim``.

    Raises InvalidField, UnsupportedError or MaskError at construction.
    """

    kind: ClassVar[str] = ""
    num_heads_q: int
    num_heads_kv: int
    head_dim: int = 128
    head_dim_v: int | None = None
    dtype: DType = DType.BF16
    softmax_scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    mask: Mask = Causal()

    def __new__(cls, **fields: Any) -> Self:
        """Options of other libraries get an error that says what is supported; the rest is the dataclass's."""
        refuse_unsupported(fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not self.kind:
            raise TypeError("Problem is a base class: use PrefillProblem or DecodeProblem")
        self._check_lengths()
        self._check_heads()
        self._set("dtype", DType(one_of("dtype", self.dtype, tuple(DType))))
        for name in ("softmax_scale", "softcap"):
            value = getattr(self, name)
            self._set(name, None if value is None else positive_float(name, value))
        self._set("sinks", flag("sinks", self.sinks))
        self._set("mask", self.mask if isinstance(self.mask, Mask) else Mask.from_json(self.mask))
        self._check_mask()
        self._set("mask_bound", bind_mask(self.mask, self._query_lengths(), self.q_lengths, self.kv_lengths_array))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_heads(self) -> None:
        heads_q = whole_number("num_heads_q", self.num_heads_q, 1, MAX_HEADS)
        heads_kv = whole_number("num_heads_kv", self.num_heads_kv, 1, MAX_HEADS)
        if heads_q % heads_kv:
            raise InvalidField("num_heads_kv", heads_kv, f"a divisor of num_heads_q = {heads_q}")
        self._set("num_heads_q", heads_q)
        self._set("num_heads_kv", heads_kv)
        head_dim = whole_number("head_dim", self.head_dim, 1)
        if head_dim not in SUPPORTED_HEAD_DIMS:
            hint = "Latent attention (MLA) in its absorbed form is outside this version" if head_dim > 256 else ""
            raise UnsupportedError("head_dim", head_dim, ", ".join(map(str, SUPPORTED_HEAD_DIMS)), hint)
        self._set("head_dim", head_dim)
        if self.head_dim_v is not None:
            self._set("head_dim_v", whole_number("head_dim_v", self.head_dim_v, 1))
            if self.head_dim_v != head_dim:
                raise UnsupportedError("head_dim_v", self.head_dim_v, f"head_dim_v equal to head_dim = {head_dim}")

    def _check_lengths(self) -> None:
        raise NotImplementedError

    def _check_mask(self) -> None:
        """Refuse masks that the kind of problem has no meaning for."""

    def _query_lengths(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def scale(self) -> float:
        """The factor on q . k."""
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def group_size(self) -> int:
        """Query heads per KV head; query head h reads KV head h // group_size."""
        return self.num_heads_q // self.num_heads_kv

    @property
    def num_sequences(self) -> int:
        """Number of attention domains."""
        return self.q_lengths.size

    @property
    def total_q(self) -> int:
        """Rows of the packed query tensor [total_q, num_heads_q, head_dim]."""
        return int(self.q_offsets[-1])

    @property
    def total_kv(self) -> int:
        """Rows of the packed key and value tensors [total_kv, num_heads_kv, head_dim]."""
        return int(self.kv_offsets[-1])

    @cached_property
    def q_lengths(self) -> Int64Array:
        """int64 [num_sequences]: queries of each sequence."""
        return _frozen(self._query_lengths())

    @cached_property
    def kv_lengths_array(self) -> Int64Array:
        """int64 [num_sequences]: keys of each sequence."""
        raise NotImplementedError

    @cached_property
    def q_offsets(self) -> Int64Array:
        """int64 [num_sequences + 1]: first row of each sequence in the packed query tensor."""
        return _frozen(np.concatenate([[0], np.cumsum(self.q_lengths)]))

    @cached_property
    def kv_offsets(self) -> Int64Array:
        """int64 [num_sequences + 1]: first row of each sequence in the packed key and value tensors."""
        return _frozen(np.concatenate([[0], np.cumsum(self.kv_lengths_array)]))

    @cached_property
    def mask_bound(self) -> BoundMask:
        """The mask bound to this problem's lengths (made at construction, which checks it)."""
        return bind_mask(self.mask, self._query_lengths(), self.q_lengths, self.kv_lengths_array)

    def to_json(self) -> dict[str, Any]:
        """The problem as JSON data, ``format`` 1."""
        from liquidcp_compiler.ir.problem_json import problem_to_json

        return problem_to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The problem that ``to_json`` wrote. Raises InvalidField or UnsupportedError naming the key."""
        from liquidcp_compiler.ir.problem_json import problem_from_json

        problem = problem_from_json(data)
        if not isinstance(problem, cls):
            raise InvalidField("kind", problem.kind, repr(cls.kind))
        return problem


@dataclass(frozen=True, kw_only=True)
class PrefillProblem(Problem):
    """Attention over a packed batch of sequences. ``lengths``: queries of each; ``kv_lengths``: keys where
    they differ.

    Lengths may be 0 and the batch may be empty. K and V are packed with ``kv_lengths`` (``lengths`` where
    None).
    """

    kind: ClassVar[str] = "prefill"
    lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...] | None = None

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens_q: object,
        cu_seqlens_k: object = None,
        total_q: int | None = None,
        total_k: int | None = None,
        **fields: Any,
    ) -> Self:
        """A problem from prefix sums [num_sequences + 1], as variable-length attention APIs take them.

        They are lists of ints or int32 arrays or CPU tensors. ``total_q``, ``total_k``: rows of the packed
        tensors, checked against the last entries. ``fields``: the other fields of the problem.

        Raises TensorError for dtype, device and shape, InvalidField for values; each names the field.
        """
        lengths = lengths_of_cu_seqlens("cu_seqlens_q", cu_seqlens_q, total_q, "total_q")
        if cu_seqlens_k is None:
            if total_k is not None and total_k != sum(lengths):
                raise InvalidField(
                    "total_k", total_k, f"the {sum(lengths)} tokens of cu_seqlens_q, or give cu_seqlens_k"
                )
            return cls(lengths=lengths, **fields)
        kv_lengths = lengths_of_cu_seqlens("cu_seqlens_k", cu_seqlens_k, total_k, "total_k")
        if len(kv_lengths) != len(lengths):
            raise InvalidField("cu_seqlens_k", cu_seqlens_k, f"{len(lengths) + 1} entries, as in cu_seqlens_q")
        return cls(lengths=lengths, kv_lengths=kv_lengths, **fields)

    def _check_lengths(self) -> None:
        self._set("lengths", whole_numbers("lengths", self.lengths))
        check_total("lengths", self.lengths)
        if self.kv_lengths is None:
            return
        self._set("kv_lengths", whole_numbers("kv_lengths", self.kv_lengths))
        check_total("kv_lengths", self.kv_lengths)
        if len(self.kv_lengths) != len(self.lengths):
            raise InvalidField(
                "kv_lengths", list(self.kv_lengths), f"{len(self.lengths)} values, one for each of lengths"
            )

    def _query_lengths(self) -> tuple[int, ...]:
        return self.lengths

    @cached_property
    def q_lengths(self) -> Int64Array:
        """int64 [num_sequences]: queries of each sequence."""
        return _frozen(self._domains(self.lengths))

    @cached_property
    def kv_lengths_array(self) -> Int64Array:
        """int64 [num_sequences]: keys of each sequence."""
        return _frozen(self._domains(self.lengths if self.kv_lengths is None else self.kv_lengths))

    def _domains(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        return (sum(lengths),) if isinstance(self.mask, SharedPrefix) else lengths


@dataclass(frozen=True)
class Request:
    """One sequence of a decode step: ``history`` tokens in the cache before this step and ``query`` new
    tokens.

    ``query`` = 0 is a padded slot that computes nothing; a chunk of a chunked prefill is a request with a
    large query.
    """

    history: int
    query: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "history", whole_number("history", self.history))
        object.__setattr__(self, "query", whole_number("query", self.query))


@dataclass(frozen=True, kw_only=True)
class DecodeProblem(Problem):
    """One decode step. K and V are packed per request: the history's tokens, then the new ones.

    ``interleave``: tokens of the history lie on the ranks in turns of this many. ``new_kv``: "chunk", the new
    tokens are a causal chunk known to every rank, or "in_cache", they lie in the sharded cache already.
    ``exchange_dtype``: type of the partial outputs that ranks exchange, fp32 or bf16.
    """

    kind: ClassVar[str] = "decode"
    requests: tuple[Request, ...]
    interleave: int = 1
    new_kv: Literal["chunk", "in_cache"] = "chunk"
    exchange_dtype: DType = DType.FP32

    def _check_lengths(self) -> None:
        requests = self.requests
        if isinstance(requests, (str, bytes, Mapping)) or not isinstance(requests, Sequence):
            raise InvalidField("requests", requests, "a list of requests {history, query}")
        self._set("requests", tuple(_request(f"requests[{i}]", r) for i, r in enumerate(requests)))
        check_total("requests", (r.history + r.query for r in self.requests))
        self._set("interleave", whole_number("interleave", self.interleave, 1, MAX_INT32))
        self._set("new_kv", one_of("new_kv", self.new_kv, ("chunk", "in_cache")))
        self._set("exchange_dtype", DType(one_of("exchange_dtype", self.exchange_dtype, (DType.FP32, DType.BF16))))

    def _check_mask(self) -> None:
        if not isinstance(self.mask, DECODE_MASKS):
            names = ", ".join(cls.type for cls in DECODE_MASKS)
            raise UnsupportedError("mask", self.mask.type, f"{names} in a decode problem")

    def _query_lengths(self) -> tuple[int, ...]:
        return tuple(r.query for r in self.requests)

    @cached_property
    def histories(self) -> Int64Array:
        """int64 [num_sequences]: tokens of each request that are in the cache before this step."""
        return _frozen([r.history for r in self.requests])

    @cached_property
    def kv_lengths_array(self) -> Int64Array:
        """int64 [num_sequences]: history and new tokens of each request."""
        return _frozen(self.histories + self.q_lengths)


def _request(field: str, value: Any) -> Request:
    if isinstance(value, Request):
        return value
    if isinstance(value, Mapping):
        value = known_keys(field, value, ["history", "query"])
        history, query = value["history"], value["query"]
    elif isinstance(value, (tuple, list)) and len(value) == 2:
        history, query = value
    else:
        raise InvalidField(field, value, "a Request, {history, query} or a pair of them")
    return Request(whole_number(f"{field}.history", history), whole_number(f"{field}.query", query))


def _frozen(values: Any) -> Int64Array:
    array = np.array(values, np.int64)
    array.flags.writeable = False
    return array


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Read a problem file. Raises InvalidField with one clear line where it is not one."""
    from liquidcp_compiler.ir.problem_json import read_problem

    return read_problem(path)


def save_problem(path: str | os.PathLike[str], problem: Problem) -> None:
    """Write a problem file; a reader sees the old file or the new one, never a part."""
    from liquidcp_compiler.ir.problem_json import write_problem

    write_problem(path, problem)
