"""What a kernel is launched with, written once: the parameter struct and the block in which it reports an error.

Like ``ir/layout.py`` this is a table from which both sides derive: the C++ structs of the generated kernel and the
numpy dtypes that the runtime fills in. It is no part of a plan: pointers live here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

#: Entries of the table of rank parameters in every kernel; those past the number of ranks are zero.
MAX_RANKS = 8

#: C++ type -> (numpy type, bytes); every pointer is 8 bytes.
_SCALARS: dict[str, tuple[str, int]] = {
    "i32": ("<i4", 4),
    "u32": ("<u4", 4),
    "f32": ("<f4", 4),
    "i64": ("<i8", 8),
    "u64": ("<u8", 8),
}


class ErrorCode(IntEnum):
    """Why a launch gave up."""

    NONE = 0
    LAYOUT = 1  #: the plan was packed with another descriptor layout than the kernel was generated from
    FINGERPRINT = 2  #: the rank holds another plan than the launch was made for
    SIGNAL = 3  #: a signal did not reach its value in time
    PREFIX = 4  #: the committed prefix of a sequence did not grow in time
    LOCK = 5  #: a running state stayed locked
    ARRIVALS = 6  #: more KV tiles were published in a sequence than its arrival map has room for


class CtaRole(IntEnum):
    """What a CTA was doing when it gave up."""

    NONE = 0
    COMM = 1  #: pulling: `task` is an index in `transfers`
    COMPUTE = 2  #: attending: `task` is an index in `rows`


@dataclass(frozen=True)
class Param:
    """One member: ``type`` is a C++ type (a scalar of :data:`_SCALARS`, a pointer, or the name of a struct)."""

    name: str
    type: str
    doc: str
    count: int = 1  #: length of the array; 1 is no array


@dataclass(frozen=True)
class LaunchStruct:
    """A struct of the launch. ``parts`` gives the structs that its members name."""

    name: str
    doc: str
    fields: tuple[Param, ...]
    parts: tuple[LaunchStruct, ...] = ()
    dtype: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        members, offset = [], 0
        for f in self.fields:
            numpy_type = self._numpy_type(f.type)
            size = np.dtype(numpy_type).itemsize
            if offset % min(size, 8):
                raise TypeError(f"{self.name}.{f.name} is not naturally aligned")
            members.append((f.name, numpy_type) if f.count == 1 else (f.name, numpy_type, (f.count,)))
            offset += size * f.count
        if offset % 8:
            raise TypeError(f"{self.name}: {offset} bytes; pad it to a multiple of 8")
        object.__setattr__(self, "dtype", np.dtype(members))

    def _numpy_type(self, cpp_type: str) -> str | np.dtype:
        if cpp_type.endswith("*"):
            return "<u8"
        struct = {part.name: part.dtype for part in self.parts}.get(cpp_type)
        return _SCALARS[cpp_type][0] if struct is None else struct

    @property
    def size(self) -> int:
        """Bytes of one struct."""
        return self.dtype.itemsize


RANK_PARAMS = LaunchStruct(
    "RankParams",
    "Where one rank keeps its plan, tensors, buffers and protocol words. Element type E is the problem's dtype.",
    (
        Param("plan", "const u8*", "packed plan (PlanHeader and tables)"),
        Param("q", "const void*", "E [local tokens, num_heads_q, HEAD_DIM]"),
        Param("k", "const void*", "E [local tokens, num_heads_kv, HEAD_DIM]"),
        Param("v", "const void*", "like k"),
        Param("out", "void*", "like q"),
        Param("lse", "f32*", "[num_heads_q, local tokens], natural log"),
        Param("kv_buffer_k", "void*", "pulled keys: E [tokens, num_heads_kv, HEAD_DIM]"),
        Param("kv_buffer_v", "void*", "pulled values"),
        Param("state_out", "f32*", "running out [own query tiles, num_heads_q][BLOCK_Q x HEAD_DIM], fragment order"),
        Param("state_lse", "f32*", "running lse [own query tiles, num_heads_q][BLOCK_Q]"),
        Param("signals", "u64*", "one word a row of `signals`: READY, TILE"),
        Param("prefixes", "u64*", "one word a sequence: KV tiles in its committed prefix"),
        Param("arrivals", "u64*", "arrival map: index in `kv_tiles` + 1"),
        Param("claims", "u64*", "[rows, units_per_row]: KV tiles claimed (READY) or 1 (STATIC)"),
        Param("merged", "u64*", "[own query tiles, num_heads_q]: KV tiles merged, or LOCKED"),
        Param("tickets", "u64*", "one word: transfers taken from the queue"),
    ),
)

ERROR_BLOCK = LaunchStruct(
    "ErrorBlock",
    "What the first CTA that gave up was doing; in host memory that the device can write.",
    (
        Param("code", "i32", "ErrorCode"),
        Param("rank", "i32", "rank of the CTA"),
        Param("cta", "i32", "index of the CTA within its rank"),
        Param("role", "i32", "CtaRole"),
        Param("task", "i32", "index in `transfers` or `rows` of that rank; -1: none"),
        Param("peer", "i32", "rank that owns the word it looked at"),
        Param("index", "i32", "SIGNAL: index in `signals`; PREFIX, ARRIVALS: in `sequences`; LOCK: in `q_tiles`"),
        Param("pad0", "i32", "0"),
        Param("expected", "u64", "value waited for"),
        Param("seen", "u64", "value found"),
        Param("waited_ns", "u64", "how long"),
        Param("epoch", "u64", "launch"),
    ),
)

KERNEL_PARAMS = LaunchStruct(
    "KernelParams",
    "The one kernel parameter.",
    (
        Param("ranks", "RankParams", "ranks of this launch", MAX_RANKS),
        Param("fingerprint", "u64", "of the plan that every rank must hold"),
        Param("budget_ns", "u64", "longest wait"),
        Param("epoch", "u64*", "number of this launch; the last CTA out advances it"),
        Param("abort", "u64*", "epoch of the launch that was given up"),
        Param("exits", "u64*", "CTAs that have left; zero between launches"),
        Param("error", "ErrorBlock*", "where the first CTA that gives up reports"),
        Param("world", "i32", "number of ranks"),
        Param("ctas_per_rank", "i32", "CTAs of each rank"),
        Param("num_comm_ctas", "i32", "how many of them begin by pulling"),
        Param("num_heads_q", "i32", "query heads of a rank"),
        Param("num_heads_kv", "i32", "KV heads of a rank"),
        Param("qheads_per_kvhead", "i32", "their ratio"),
        Param("units_per_row", "i32", "claim words a row: most query tiles of a row, times num_heads_q"),
        Param("softmax_scale", "f32", "factor on q . k"),
    ),
    (RANK_PARAMS,),
)

#: In the order in which C++ must declare them.
LAUNCH_STRUCTS: tuple[LaunchStruct, ...] = (ERROR_BLOCK, RANK_PARAMS, KERNEL_PARAMS)
LAUNCH_ENUMS: tuple[type[IntEnum], ...] = (ErrorCode, CtaRole)
