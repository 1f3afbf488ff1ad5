"""What a compiled kernel costs, read from the cubin itself.

The log of a compiler may be empty (NVRTC 13 can return none) and a bundled cubin
has none, so registers, shared memory and spills come from the ELF file: its symbol table, its ``.nv.info``
attributes and, for the size of each spill, the instructions. Checked against ptxas 12.9 and 13.0 for sm_80
and sm_90a; nothing here needs a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from liquidcp_compiler.errors import InvalidField

_MACHINE_CUDA = 190
_TYPE_SYMTAB, _TYPE_NOBITS = 2, 8
_SYMBOL_FUNC, _OTHER_ENTRY = 2, 0x10

# Attributes of .nv.info (per file: payload starts with a symbol) and .nv.info.<kernel>.
_ATTR_MAX_THREADS = 0x05
_ATTR_REQUIRED_THREADS = 0x10
_ATTR_FRAME_SIZE = 0x11
_ATTR_MIN_STACK_SIZE = 0x12
_ATTR_REGCOUNT = 0x2F
_ATTR_ANNOTATIONS = 0x55
_FORMAT_SIZED = 4
_ANNOTATION_SPILL = 1

# From sm_90 on, a kernel's static shared memory begins with a kilobyte that the system keeps.
_RESERVED_SMEM = ".nv.shared.reserved.0"
_RESERVED_SMEM_BYTES = 1024

# 128-bit instructions: opcode in the low 12 bits; the width of a local access in bits 73 to 75.
_OPCODE_STORE_LOCAL, _OPCODE_LOAD_LOCAL = 0x387, 0x983
_WIDTH_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)


@dataclass(frozen=True, kw_only=True)
class KernelResources:
    """Costs of one kernel.

    ``static_smem_bytes`` is what the kernel declares, without the kilobyte that sm_90 reserves;
    ``local_bytes`` is the stack of a thread: spilled registers, indexed arrays and called functions.
    ``spill_store_bytes`` and ``spill_load_bytes`` are what ptxas reports: the widths of the spilling
    instructions, each counted once. ``max_threads`` is the CTA size that ``__launch_bounds__`` promises, None
    without one.
    """

    registers: int
    static_smem_bytes: int
    local_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    max_threads: int | None


@dataclass(frozen=True, kw_only=True)
class _Section:
    name: str
    kind: int
    size: int
    link: int
    info: int
    data: bytes  # empty for a section without bits


@dataclass(frozen=True, kw_only=True)
class _Symbol:
    name: str
    is_kernel: bool
    section_idx: int


def resources(cubin: bytes) -> dict[str, KernelResources]:
    """Costs of each kernel in ``cubin``, by name, sorted. Raises InvalidField for bytes that are no cubin."""
    try:
        return _resources(cubin)
    except InvalidField:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidField("cubin", cubin[:16], "a whole cubin file", f"It is torn: {error}") from error


def _resources(cubin: bytes) -> dict[str, KernelResources]:
    sections = _read_sections(cubin)
    by_name = {section.name: section for section in sections}
    symbols = _read_symbols(sections)
    per_symbol = _file_attributes(by_name, len(symbols))
    has_reserved = _RESERVED_SMEM in by_name
    result = {}
    for idx, symbol in enumerate(symbols):
        if not symbol.is_kernel:
            continue
        text = sections[symbol.section_idx]
        attributes = list(_attributes(by_name.get(f".nv.info.{symbol.name}")))
        shared = by_name.get(f".nv.shared.{symbol.name}")
        stores, loads = _spills(text.data, attributes)
        result[symbol.name] = KernelResources(
            registers=_registers(text, per_symbol[_ATTR_REGCOUNT].get(idx)),
            static_smem_bytes=0 if shared is None else shared.size - _RESERVED_SMEM_BYTES * has_reserved,
            local_bytes=max(per_symbol[attr].get(idx, 0) for attr in (_ATTR_FRAME_SIZE, _ATTR_MIN_STACK_SIZE)),
            spill_store_bytes=stores,
            spill_load_bytes=loads,
            max_threads=_max_threads(attributes),
        )
    return dict(sorted(result.items()))


def _read_sections(cubin: bytes) -> list[_Section]:
    if cubin[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", cubin, 18)[0] != _MACHINE_CUDA:
        raise InvalidField("cubin", cubin[:16], "a cubin (a 64-bit little-endian ELF file for CUDA)")
    segments_offset, table_offset = struct.unpack_from("<QQ", cubin, 32)
    segment_size, num_segments, _, num_sections, names_idx = struct.unpack_from("<5H", cubin, 54)
    if len(cubin) < segments_offset + segment_size * num_segments:
        raise IndexError("its table of segments ends behind the file")
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table_offset + 64 * idx) for idx in range(num_sections)]
    names_offset = headers[names_idx][4]
    return [_read_section(cubin, header, names_offset) for header in headers]


def _read_section(cubin: bytes, header: tuple[int, ...], names_offset: int) -> _Section:
    name_offset, kind, _, _, offset, size, link, info, _, _ = header
    data = b"" if kind == _TYPE_NOBITS else cubin[offset : offset + size]
    if kind != _TYPE_NOBITS and len(data) != size:
        raise IndexError("a section ends behind the file")
    name = _text_at(cubin, names_offset + name_offset)
    return _Section(name=name, kind=kind, size=size, link=link, info=info, data=data)


def _text_at(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    if end < 0:
        raise IndexError("a name ends behind the file")
    return data[offset:end].decode()


def _read_symbols(sections: list[_Section]) -> list[_Symbol]:
    tables = [section for section in sections if section.kind == _TYPE_SYMTAB]
    if not tables:
        raise IndexError("there is no symbol table")
    names = sections[tables[0].link].data
    symbols = []
    for name_offset, info, other, section_idx, _, _ in struct.iter_unpack("<IBBHQQ", tables[0].data):
        is_kernel = info & 0xF == _SYMBOL_FUNC and bool(other & _OTHER_ENTRY)
        symbols.append(_Symbol(name=_text_at(names, name_offset), is_kernel=is_kernel, section_idx=section_idx))
    return symbols


def _attributes(section: _Section | None) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each attribute of a section as (attribute, payload as u32 words); short attributes carry one word."""
    if section is None:
        return
    position = 0
    while position < section.size:
        form, attribute, value = struct.unpack_from("<BBH", section.data, position)
        position += 4
        if form != _FORMAT_SIZED:
            yield attribute, (value,)
            continue
        yield attribute, struct.unpack_from(f"<{value // 4}I", section.data, position)
        position += value


def _file_attributes(by_name: dict[str, _Section], num_symbols: int) -> dict[int, dict[int, int]]:
    """The attributes that .nv.info gives per symbol: attribute -> symbol index -> value."""
    found: dict[int, dict[int, int]] = {_ATTR_REGCOUNT: {}, _ATTR_FRAME_SIZE: {}, _ATTR_MIN_STACK_SIZE: {}}
    for attribute, payload in _attributes(by_name.get(".nv.info")):
        if attribute in found:
            symbol_idx, value = payload
            if symbol_idx >= num_symbols:
                raise IndexError("an attribute names a symbol that does not exist")
            found[attribute][symbol_idx] = value
    return found


def _registers(text: _Section, attribute: int | None) -> int:
    # Files of ABI 7 also hold the count in the top byte of sh_info; those of ABI 8 in the attribute alone.
    return text.info >> 24 if attribute is None else attribute


def _max_threads(attributes: list[tuple[int, tuple[int, ...]]]) -> int | None:
    sizes = [x * y * z for attr, (x, y, z) in _of(attributes, _ATTR_MAX_THREADS, _ATTR_REQUIRED_THREADS)]
    return min(sizes, default=None)


def _spills(code: bytes, attributes: list[tuple[int, tuple[int, ...]]]) -> tuple[int, int]:
    """Bytes of the stores and loads that the compiler marked as spills; an annotation is (kind, offset)."""
    totals = {_OPCODE_STORE_LOCAL: 0, _OPCODE_LOAD_LOCAL: 0}
    for _, words in _of(attributes, _ATTR_ANNOTATIONS):
        for kind, offset in zip(words[::2], words[1::2], strict=True):
            low, high = struct.unpack_from("<QQ", code, offset)
            opcode = low & 0xFFF
            if kind == _ANNOTATION_SPILL and opcode in totals:
                totals[opcode] += _WIDTH_BYTES[high >> 9 & 7]
    return totals[_OPCODE_STORE_LOCAL], totals[_OPCODE_LOAD_LOCAL]


def _of(attributes: list[tuple[int, tuple[int, ...]]], *wanted: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    return (entry for entry in attributes if entry[0] in wanted)
