"""What a kernel is launched with, written once: parameter structs and the block in which it reports an error.

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
    FINGERPRINT = 2  #: a peer has staged for another plan
    SIGNAL = 3  #: a signal did not reach its value in time
    PREFIX = 4  #: the committed prefix of a sequence did not grow in time
    LOCK = 5  #: a running state stayed locked
    ARRIVALS = 6  #: more KV tiles were published in a sequence than its arrival map has room for
    READY = 7  #: a peer did not say in time that its inputs of this launch are staged
    DONE = 8  #: a peer did not say in time that it has read what the next staging would overwrite
    PIPELINE = 9  #: a barrier within a CTA did not come: a fault of the kernel


class CtaRole(IntEnum):
    """What a CTA was doing when it gave up."""

    NONE = 0
    COMM = 1  #: pulling: `task` is an index in `transfers`
    COMPUTE = 2  #: attending: `task` is an index in `rows`
    STAGE = 3  #: staging for peers: `task` is an index in `staged_list`


class FaultKind(IntEnum):
    """Signal that a kernel built with faults leaves out."""

    NONE = 0
    READY = 1  #: of `drop_rank`
    TILE = 2  #: signal `drop_index` of `drop_rank`
    PREFIX = 3  #: publication of KV tile `drop_index` of `drop_rank` in its committed prefix
    DONE = 4  #: from `drop_rank` to all peers
    LOCK = 5  #: release of the running state of query tile `drop_index` of `drop_rank`


class TraceKind(IntEnum):
    """What a record of the timeline is about."""

    NONE = 0
    STAGE = 1  #: `task` is an index in `staged_list`
    TRANSFER = 2  #: `task` is an index in `transfers`
    COMPUTE = 3  #: `task` is an index in `rows`, `unit` the unit of the row
    MERGE = 4  #: end of the same task: adding its partial state, or writing out rows
    WAIT = 5  #: looking for a task that can be claimed; `task` is the row that was found
    REDUCTION = 6  #: `task` is an index in `reductions`


#: Words of a rank's page in the symmetric heap: a READY for each slot, then one DONE a reader, on a line of their own.
PAGE_WORDS = 32
PAGE_DONE = 16

#: Counters of a rank within one launch (``tickets``).
NUM_TICKETS = 5

#: Words of a running state (``merged``): one for each half of a query tile's rows. A kernel that merges whole tiles
#: uses the first.
MERGE_WORDS = 2


@dataclass(frozen=True)
class Param:
    """One member: ``type`` is a C++ type (a scalar of :data:`_SCALARS`, a pointer, or the name of a struct)."""

    name: str
    type: str
    doc: str
    count: int = 1  #: length of the array; 1 is no array


@dataclass(frozen=True)
class LaunchStruct:
    """A struct of the launch. ``parts`` gives the structs that its members name; ``alignment`` is in bytes."""

    name: str
    doc: str
    fields: tuple[Param, ...]
    parts: tuple[LaunchStruct, ...] = ()
    alignment: int = 8
    dtype: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        members, offset = [], 0
        for f in self.fields:
            numpy_type, alignment = self._member_type(f.type)
            size = np.dtype(numpy_type).itemsize
            if offset % alignment or alignment > self.alignment:
                raise TypeError(f"{self.name}.{f.name} is not naturally aligned")
            members.append((f.name, numpy_type) if f.count == 1 else (f.name, numpy_type, (f.count,)))
            offset += size * f.count
        if offset % self.alignment:
            raise TypeError(f"{self.name}: {offset} bytes; pad it to a multiple of {self.alignment}")
        object.__setattr__(self, "dtype", np.dtype(members))

    def _member_type(self, cpp_type: str) -> tuple[str | np.dtype, int]:
        """(numpy type, alignment in bytes)."""
        if cpp_type.endswith("*"):
            return "<u8", 8
        struct = {part.name: part for part in self.parts}.get(cpp_type)
        return _SCALARS[cpp_type] if struct is None else (struct.dtype, struct.alignment)

    @property
    def size(self) -> int:
        """Bytes of one struct."""
        return self.dtype.itemsize


RANK_PARAMS = LaunchStruct(
    "RankParams",
    "Where one rank keeps its plan, tensors, buffers and protocol words. E is the problem's element type; strides are\n"
    "in elements, and the elements of a head lie side by side.",
    (
        Param("plan", "const u8*", "packed plan (PlanHeader and tables)"),
        Param("q", "const void*", "E [local tokens, num_heads_q, HEAD_DIM]"),
        Param("k", "const void*", "E [local tokens, num_heads_kv, HEAD_DIM]"),
        Param("v", "const void*", "like k"),
        Param("out", "void*", "like q"),
        Param("lse", "f32*", "[num_heads_q, local tokens], natural log"),
        Param("sinks", "const f32*", "[num_heads_q]; null without sinks"),
        Param("q_token_stride", "i64", "from a token of q to the next"),
        Param("q_head_stride", "i64", "from a head of q to the next"),
        Param("k_token_stride", "i64", "of k"),
        Param("k_head_stride", "i64", "of k"),
        Param("v_token_stride", "i64", "of v"),
        Param("v_head_stride", "i64", "of v"),
        Param("out_token_stride", "i64", "of out"),
        Param("out_head_stride", "i64", "of out"),
        Param("kv_buffer_k", "void*", "pulled keys: E [tokens, num_heads_kv, HEAD_DIM]"),
        Param("kv_buffer_v", "void*", "pulled values"),
        Param("state_out", "f32*", "running out [own query tiles, num_heads_q][BLOCK_Q x HEAD_DIM], fragment order"),
        Param("state_lse", "f32*", "running lse [own query tiles, num_heads_q][BLOCK_Q]"),
        Param("signals", "u64*", "one word a row of `signals`: TILE (READY and DONE are in the page)"),
        Param("prefixes", "u64*", "one word a sequence: KV tiles in its committed prefix"),
        Param("arrivals", "u64*", "arrival map: index in `kv_tiles` + 1"),
        Param("claims", "u64*", "[rows, units_per_row]: KV tiles claimed (READY) or 1 (STATIC)"),
        Param("merged", "u64*", "[own query tiles, num_heads_q, MERGE_WORDS]: KV tiles merged, or LOCKED"),
        Param(
            "tickets",
            "u64*",
            "NUM_TICKETS counters: transfers taken, done; tiles to stage taken, done; waiters for a peer's launch",
        ),
    ),
)

PEER_PARAMS = LaunchStruct(
    "PeerParams",
    "What a rank shows to its peers: the part of its symmetric heap that they read and write.",
    (
        Param("page", "u64*", "READY by parity of the epoch, and from word PAGE_DONE on one DONE a reader"),
        Param("stage_k", "void*", "staged keys E [local tokens, num_heads_kv, HEAD_DIM], by parity of the epoch", 2),
        Param("stage_v", "void*", "staged values", 2),
    ),
)

FAULT_PLAN = LaunchStruct(
    "FaultPlan",
    "What a kernel built with faults does wrong, in device memory.",
    (
        Param("seed", "u64", "of the delays"),
        Param("max_delay_ns", "u32", "longest delay before a wait or a signal; 0: none"),
        Param("max_stage_delay_ns", "u32", "longest delay before a tile is staged; 0: none"),
        Param("drop_kind", "i32", "FaultKind"),
        Param("drop_rank", "i32", "rank that leaves the signal out; -1: every rank"),
        Param("drop_index", "i32", "which one; -1: every one of that kind"),
        Param("stop_rank", "i32", "rank whose CTAs stop; -1: none"),
        Param("stop_after", "i32", "tasks that each CTA of it does before it stops"),
        Param("pad0", "i32", "0"),
    ),
)

TRACE_RECORD = LaunchStruct(
    "TraceRecord",
    "One task of one CTA, in a kernel built with a trace. Times are %globaltimer.",
    (
        Param("begin_ns", "u64", "first instruction"),
        Param("end_ns", "u64", "last instruction"),
        Param("kind", "i32", "TraceKind"),
        Param("task", "i32", "index in the table that goes with the kind; -1: none"),
        Param("unit", "i32", "COMPUTE, MERGE: unit of the row; else 0"),
        Param("sm", "i32", "streaming multiprocessor"),
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
        Param("task", "i32", "index in the role's table of that rank (see CtaRole); -1: none"),
        Param("peer", "i32", "rank that owns the word it looked at"),
        Param(
            "index",
            "i32",
            "SIGNAL: index in `signals`; PREFIX, ARRIVALS: `sequences`; LOCK: `q_tiles`; PIPELINE: a barrier; else 0",
        ),
        Param("pad0", "i32", "0"),
        Param("expected", "u64", "value waited for"),
        Param("seen", "u64", "value found"),
        Param("waited_ns", "u64", "how long"),
        Param("epoch", "u64", "launch"),
        Param("fingerprint", "u64", "of the plan that the rank ran"),
    ),
)

KERNEL_PARAMS = LaunchStruct(
    "KernelParams",
    "The kernel parameter; Hopper kernels have TensorMaps beside it.",
    (
        Param("ranks", "RankParams", "ranks of this launch", MAX_RANKS),
        Param("peers", "PeerParams", "all ranks", MAX_RANKS),
        Param("budget_ns", "u64", "longest wait for something that is on its way"),
        Param("entry_budget_ns", "u64", "longest wait for a peer that may not have been launched yet"),
        Param("epoch", "u64*", "number of this launch; the last CTA out advances it"),
        Param("abort", "u64*", "epoch of the launch that gave up; 0: none. Until it is cleared, launches do nothing"),
        Param("exits", "u64*", "CTAs that have left; zero between launches"),
        Param("error", "ErrorBlock*", "where the first CTA that gives up reports"),
        Param("faults", "const FaultPlan*", "kernels built with faults; else null"),
        Param("trace", "TraceRecord*", "[CTAs, trace_capacity] in kernels built with a trace; else null"),
        Param("trace_counts", "u32*", "[CTAs]: records written, or dropped beyond the capacity"),
        Param("link_busy", "u64*", "link model: time until which the link into the rank is taken"),
        Param("link_bytes_per_ns", "f32", "link model: bandwidth; 0: pulls are not slowed"),
        Param("link_latency_ns", "u32", "link model: time from asking to the first byte"),
        Param("world", "i32", "number of ranks"),
        Param("first_rank", "i32", "the rank of `ranks[0]`"),
        Param("mirror", "i32", "1: peers are images of the one rank of this launch (solo); else 0"),
        Param("ctas_per_rank", "i32", "CTAs of each rank"),
        Param("num_comm_ctas", "i32", "how many of them begin by staging and pulling"),
        Param("num_heads_q", "i32", "query heads of a rank"),
        Param("num_heads_kv", "i32", "KV heads of a rank"),
        Param("qheads_per_kvhead", "i32", "their ratio"),
        Param("trace_capacity", "i32", "records a CTA"),
        Param("softmax_scale", "f32", "factor on q . k"),
        Param("softcap", "f32", "scores s become softcap * tanh(s / softcap); read by kernels with softcap only"),
        Param("pad0", "i32", "0"),
    ),
    (RANK_PARAMS, PEER_PARAMS),
)

TENSOR_MAP = LaunchStruct(
    "TensorMap",
    "How the tensor copy engine sees E [tokens, heads, HEAD_DIM], for boxes of one head; all zero for no tokens.",
    (Param("opaque", "u64", "as the driver encodes it", 16),),
    alignment=64,
)

RANK_MAPS = LaunchStruct(
    "RankMaps",
    "The tensors of one rank as RankParams has them.",
    (
        Param("q", "TensorMap", "boxes of TensorBoxes.q_rows tokens"),
        Param("k", "TensorMap", "boxes of TensorBoxes.kv_rows tokens"),
        Param("v", "TensorMap", "like k"),
        Param("out", "TensorMap", "boxes of TensorBoxes.out_rows tokens"),
        Param("kv_buffer_k", "TensorMap", "like k"),
        Param("kv_buffer_v", "TensorMap", "like k"),
    ),
    (TENSOR_MAP,),
    alignment=64,
)

TENSOR_MAPS = LaunchStruct(
    "TensorMaps",
    "The second parameter of Hopper kernels.",
    (Param("ranks", "RankMaps", "ranks of this launch", MAX_RANKS),),
    (RANK_MAPS,),
    alignment=64,
)

#: In the order in which C++ must declare them.
LAUNCH_STRUCTS: tuple[LaunchStruct, ...] = (
    ERROR_BLOCK,
    FAULT_PLAN,
    TRACE_RECORD,
    RANK_PARAMS,
    PEER_PARAMS,
    KERNEL_PARAMS,
    TENSOR_MAP,
    RANK_MAPS,
    TENSOR_MAPS,
)
LAUNCH_ENUMS: tuple[type[IntEnum], ...] = (ErrorCode, CtaRole, FaultKind, TraceKind)
