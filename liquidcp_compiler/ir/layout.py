"""The layout of a packed plan, written once.

Everything that spells a field, a size or an enum value is derived from the tables below: the numpy dtypes that pack a
plan, the C++ structs and enums of the generated kernels, the names in timelines and messages, and :data:`LAYOUT_HASH`,
which a kernel compares with the plan it is given before it does anything else.

A descriptor has a fixed size (a multiple of 16 bytes), natural alignment and explicit padding, and holds no pointer:
indices into the other tables of the same rank, token offsets, and peer ranks. Value 0 of every kind means "nothing", so
zero-filled memory is a legal table of no-ops.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np


class Space(IntEnum):
    """What a task reads or writes."""

    NONE = 0
    Q = 1  #: query tiles
    KV = 2  #: key/value tiles
    STATE = 3  #: partial states (out, lse) of one query tile
    OUT = 4  #: finished rows of one query tile; every write is a merge


class Formation(IntEnum):
    """How compute tasks come out of a row (paper section 4.1)."""

    NONE = 0
    STATIC = 1  #: one task over the row's KV list, in plan order
    READY = 2  #: tasks are claimed from the ready, unclaimed interval of the row's logical KV order


class Role(IntEnum):
    """What a compute row attends to."""

    NONE = 0
    SELF = 1  #: a whole sequence (prefill, training)
    CHUNK = 2  #: the new tokens of a decode or chunked-prefill request
    HISTORY = 3  #: the cached tokens of such a request


class SignalKind(IntEnum):
    """Protocol words (u64 = epoch << 32 | value, monotone)."""

    NONE = 0
    READY = 1  #: a rank's inputs of this launch are in place
    TILE = 2  #: a pulled query or KV tile has landed
    PREFIX = 3  #: number of KV tiles of one sequence in the committed prefix
    STATE = 4  #: a partial state is written (local readers)
    RESULT = 5  #: a partial state is written and a peer pulls it (system scope), or has arrived from a peer
    DONE = 6  #: a peer has finished reading this rank's inputs


class MaskKind(IntEnum):
    """Which device mask a kernel is specialised on."""

    NONE = 0
    CAUSAL = 1
    FULL = 2
    SLIDING_WINDOW = 3
    DOCUMENT = 4
    SHARED_PREFIX = 5
    BLOCK_SPARSE = 6


@dataclass(frozen=True)
class Field:
    """One field of a descriptor: ``type`` is one of :data:`WIRE_TYPES`."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True)
class Descriptor:
    """One packed row type. ``table`` is the name of the plan's table that holds rows of it."""

    name: str
    table: str
    doc: str
    fields: tuple[Field, ...]
    dtype: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        dtype = np.dtype([(f.name, WIRE_TYPES[f.type][0]) for f in self.fields])
        if dtype.itemsize % 16 or dtype.itemsize != sum(WIRE_TYPES[f.type][1] for f in self.fields):
            raise TypeError(f"{self.name}: {dtype.itemsize} bytes; a descriptor is a padded multiple of 16 bytes")
        offset = 0
        for f in self.fields:
            size = WIRE_TYPES[f.type][1]
            if offset % size:
                raise TypeError(f"{self.name}.{f.name} is not naturally aligned")
            offset += size
        object.__setattr__(self, "dtype", dtype)

    @property
    def size(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize


#: wire type -> (numpy type, bytes, C++ type)
WIRE_TYPES: dict[str, tuple[str, int, str]] = {
    "i32": ("<i4", 4, "i32"),
    "u32": ("<u4", 4, "u32"),
    "i64": ("<i8", 8, "i64"),
    "u64": ("<u8", 8, "u64"),
}


def _i32(**names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "i32", doc) for name, doc in names.items())


SEQUENCE = Descriptor(
    "SequenceDesc",
    "sequences",
    "One attention domain as this rank sees it.",
    _i32(
        q_length="query rows of the whole sequence",
        kv_length="keys of the whole sequence; query i has position i + kv_length - q_length",
        num_arrivals="KV tiles this rank pulls into this sequence's committed prefix (0 if none forms by readiness)",
        num_front_arrivals="how many of them must be committed before any other (needed by front-half queries)",
        arrival_base="first entry of this sequence in the arrival map (logical arrival -> physical KV tile)",
        sequence="index in the problem",
        mask_base="first entry of this sequence's mask in `mask_data`",
        mask_size="entries",
    ),
)

Q_TILE = Descriptor(
    "QTileDesc",
    "q_tiles",
    "A query tile that this rank holds: its own ones first, in slot order, then pulled ones in transfer order.",
    _i32(
        token="first token: in the local query tensor (own tile), or in the query buffer (pulled tile)",
        rows="tokens",
        position="index of the first token in its sequence",
        sequence="index in `sequences` of this rank",
        head="first query head of the problem",
        num_heads="query heads held",
        signal="signal of this rank that says it has landed; -1 for own tiles",
        merge_count="contributions its output needs: KV tiles merged by rows, plus 1 a reduction; 0 on other ranks",
        tile="query tile of the graph",
        owner="rank whose output it is",
        pad0="0",
        pad1="0",
    ),
)

KV_TILE = Descriptor(
    "KvTileDesc",
    "kv_tiles",
    "A KV tile that this rank holds: its own ones first, in slot order, then pulled ones in transfer order.\n"
    "Row j of the tile is key (i / interleave * group + phase) * interleave + i % interleave, i = position + j.",
    _i32(
        token="first token: in the local KV tensor (own tile), or in the KV buffer (pulled tile)",
        rows="tokens",
        position="index of the first row among the tokens of its shard",
        interleave="tokens in a row that one rank of an interleaved shard holds; 1 if contiguous",
        group="ranks over which the sequence is interleaved; 1 if contiguous",
        phase="this shard's place among them",
        sequence="index in `sequences` of this rank",
        signal="signal of this rank that says it has landed; -1 for own tiles and for tiles published through a prefix",
        tile="KV tile of the graph",
        owner="rank that holds the original; -1 if every rank does",
        pad0="0",
        pad1="0",
    ),
)

STATE = Descriptor(
    "StateDesc",
    "states",
    "A partial state (out, lse) that this rank writes or pulls; the row is also its place in the state buffer.",
    _i32(
        q_tile="index in `q_tiles` of this rank",
        signal="signal of this rank that says it is complete",
        state="state of the graph",
        owner="rank that computes it",
    ),
)

TRANSFER = Descriptor(
    "TransferDesc",
    "transfers",
    "One pull by a comm CTA, in queue order.",
    _i32(
        space="Space of what is pulled: Q, KV or STATE",
        peer="rank it is pulled from",
        source="index in the peer's table of that space",
        target="index in this rank's table of that space",
        wait_signal="signal of the peer to wait for; -1: the peer's READY",
        signal="signal of this rank to set; -1: publish in the committed prefix",
        sequence="index in `sequences` whose prefix it is published in; -1: none",
        arrival_class="0: front (published first), 1: back",
        task="task of the graph",
        source_token="first token of it in the peer's memory: KV: of its staged shard",
        rows="tokens",
        pad0="0",
    ),
)

ROW = Descriptor(
    "RowDesc",
    "rows",
    "One compute row: query tiles x KV tiles under the mask, in queue order (all local heads).",
    _i32(
        q_lo="first entry in `q_list` (it starts with 0, 1, 2, …: tiles that lie together are their own interval)",
        q_hi="one past the last entry",
        sequence="index in `sequences`",
        formation="Formation",
        local_lo="READY: first own KV tile (index in `kv_tiles`)",
        local_hi="READY: one past the last own KV tile",
        num_arrivals="READY: arrivals of the committed prefix that belong to the row",
        num_kv_tiles="KV tiles of the row in all",
        tau_min="READY: fewest KV tiles a task claims while more are to come",
        tau_max="READY: most KV tiles a task claims",
        kv_list="STATIC: first entry in `kv_list` (indices in `kv_tiles`, plan order)",
        target_space="Space of the result: OUT or STATE",
        target_list="STATE: first entry in `target_list`, one a query tile (indices in `states`)",
        role="Role",
        task="task of the graph",
        tiles_after="KV tiles of the rows behind it in the queue, once a query tile: how much work is left",
    ),
)

REDUCTION = Descriptor(
    "ReductionDesc",
    "reductions",
    "One combine of partial states, in queue order (first all that feed other ranks or reductions, then final ones).",
    _i32(
        q_tile="index in `q_tiles`",
        target_space="Space of the result: OUT or STATE",
        target="OUT: the same as q_tile; STATE: index in `states`",
        state_list="first entry in `state_list` (indices in `states`, merge order)",
        num_states="entries",
        task="task of the graph",
        pad0="0",
        pad1="0",
    ),
)

SIGNAL = Descriptor(
    "SignalDesc",
    "signals",
    "What a signal word of this rank means, for messages and timelines; kernels use the index alone.\n"
    "Signal 0 of every rank is its READY, signal 1 its DONE (expected: the ranks that read from it).",
    _i32(
        kind="SignalKind",
        item="TILE: index in `q_tiles` or `kv_tiles`; PREFIX: in `sequences`; STATE, RESULT: in `states`; else 0",
        space="Space of the item; NONE for READY, DONE and PREFIX",
        expected="value at completion",
    ),
)

#: The tables of descriptors, in the order in which a plan packs them.
DESCRIPTORS: tuple[Descriptor, ...] = (SEQUENCE, Q_TILE, KV_TILE, STATE, TRANSFER, ROW, REDUCTION, SIGNAL)

#: Plain int32 tables that follow them: name -> what an entry is.
INDEX_TABLES: dict[str, str] = {
    "q_list": "index in q_tiles",
    "kv_list": "index in kv_tiles",
    "target_list": "index in states",
    "state_list": "index in states",
    "staged_list": "index in kv_tiles: own tiles that peers pull, in the order in which they are staged",
    "mask_data": "parameters of a sequence's mask, by MaskKind: SLIDING_WINDOW: left, right; DOCUMENT: first position "
    "of each document, ascending; SHARED_PREFIX: prefix, then the same; BLOCK_SPARSE: block, words a row, then one bit "
    "a key block for each query block",
}

TABLE_NAMES: tuple[str, ...] = tuple(d.table for d in DESCRIPTORS) + tuple(INDEX_TABLES)

ENUMS: tuple[type[IntEnum], ...] = (Space, Formation, Role, SignalKind, MaskKind)

#: Fields of the header before the tables of one rank's blob; then one (offset in bytes, rows) pair a table.
HEADER_FIELDS: tuple[Field, ...] = (
    Field("layout_hash", "u64", "LAYOUT_HASH of the packer"),
    Field("fingerprint", "u64", "fingerprint of the whole plan, the same on all ranks"),
    Field("rank", "i32", "this rank"),
    Field("world", "i32", "number of ranks"),
    Field("num_local_q_tiles", "i32", "own query tiles"),
    Field("num_local_kv_tiles", "i32", "own KV tiles"),
    Field("num_local_q_tokens", "i32", "tokens of the local query tensor"),
    Field("num_local_kv_tokens", "i32", "tokens of the local KV tensor"),
    Field("num_history_reductions", "i32", "rows of `reductions` before the final ones"),
    Field("num_arrivals", "i32", "entries of the arrival map"),
    Field("num_pulled_kv_tokens", "i32", "tokens of the buffer of pulled KV tiles, one full place a tile"),
    Field("units_per_row", "i32", "claim words a row: most query tiles of any row of any rank, times the query heads"),
)


def _header_fields() -> tuple[Field, ...]:
    tables = []
    for name in TABLE_NAMES:
        tables.append(Field(f"{name}_offset", "i64", f"bytes from the start of the blob to `{name}`"))
    for name in TABLE_NAMES:
        tables.append(Field(f"num_{name}", "i32", f"rows of `{name}`"))
    fields = HEADER_FIELDS + tuple(tables)
    size = sum(WIRE_TYPES[f.type][1] for f in fields)
    pads = tuple(Field(f"pad{i}", "i32", "0") for i in range((-size % 16) // 4))
    return fields + pads


HEADER = Descriptor("PlanHeader", "header", "Start of one rank's packed plan.", _header_fields())


def describe() -> str:
    """The whole layout as text: the input of :data:`LAYOUT_HASH`."""
    lines = []
    for d in (HEADER, *DESCRIPTORS):
        lines.append(f"{d.name} {d.size} " + " ".join(f"{f.name}:{f.type}" for f in d.fields))
    for e in ENUMS:
        lines.append(e.__name__ + " " + " ".join(f"{m.name}={m.value}" for m in e))
    lines.append("index " + " ".join(INDEX_TABLES))
    return "\n".join(lines)


#: First 8 bytes of sha256 over :func:`describe`, as an unsigned integer.
LAYOUT_HASH: int = int.from_bytes(hashlib.sha256(describe().encode()).digest()[:8], "little")
