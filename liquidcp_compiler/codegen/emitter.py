"""Generate the CUDA source of one kernel from its specification.

Templates instantiate and headers implement: the generated texts hold the descriptor layout, the constants and one entry
point; everything else lies in ``include/liquidcp`` and is handed to the compiler as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from liquidcp_compiler.codegen.kernel_shape import KernelShape, kernel_shape, tensor_boxes
from liquidcp_compiler.codegen.support import check_spec, choose_path
from liquidcp_compiler.errors import CodegenError
from liquidcp_compiler.ir.kernel_path import HOPPER, PORTABLE, TensorBoxes
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.launch import (
    LAUNCH_ENUMS,
    LAUNCH_STRUCTS,
    MAX_RANKS,
    MERGE_WORDS,
    NUM_TICKETS,
    PAGE_DONE,
    LaunchStruct,
)
from liquidcp_compiler.ir.layout import (
    DESCRIPTORS,
    ENUMS,
    HEADER,
    INDEX_TABLES,
    LAYOUT_HASH,
    WIRE_TYPES,
    Descriptor,
)
from liquidcp_compiler.version import __version__

if TYPE_CHECKING:
    import jinja2

CONFIG_HEADER = "liquidcp/generated/config.cuh"
LAYOUT_HEADER = "liquidcp/generated/layout.cuh"
WGMMA_HEADER = "liquidcp/generated/wgmma.cuh"
PATH_FACTS = {
    PORTABLE: "portable: mma.sync and cp.async, sm_80 and up",
    HOPPER: "Hopper: wgmma and TMA, sm_90a",
}
#: CTAs of a cluster -> what a Hopper kernel adds to the name of its specification.
HOPPER_SUFFIXES = {1: "_hopper", 2: "_hopper_pairs"}
_INCLUDE = re.compile(r"^#include <([^>]+)>\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a kernel is built with beyond its specification; both off in production.

    Fields: ``faults``: it leaves out signals, delays or stops as the launch's ``FaultPlan`` says; ``trace``: it records
    a timeline.
    """

    faults: bool = False
    trace: bool = False

    @property
    def suffix(self) -> str:
        """What it adds to a kernel's name."""
        return "".join(f"_{name}" for name in ("faults", "trace") if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class GeneratedKernel:
    """Source of one kernel.

    Fields: ``name`` (also of the ``extern "C"`` entry), ``source`` (the short generated .cu), ``headers`` (include name
    -> text, everything that ``source`` includes, generated headers too), ``num_threads`` of a CTA and its dynamic
    shared memory ``smem_bytes``; ``path``, one of ``ir.kernel_path.PATHS``; ``boxes`` of its tensor maps, None if it
    takes none.
    """

    name: str
    source: str
    headers: Mapping[str, str]
    num_threads: int
    smem_bytes: int
    path: str = PORTABLE
    boxes: TensorBoxes | None = None

    def self_contained(self) -> str:
        """One file that a CUDA compiler needs nothing else for: each header in the place of its first include."""
        seen: set[str] = set()

        def inline(text: str) -> str:
            return _INCLUDE.sub(lambda m: expand(m.group(1)), text)

        def expand(name: str) -> str:
            if name in seen:
                return ""
            seen.add(name)
            body = self.headers[name].replace("#pragma once\n", "", 1)
            return f"// ---- {name}\n{inline(body)}\n"

        return inline(self.source)


def emit(
    spec: KernelSpec, arch: str = "sm_80", *, path: str | None = None, faults: bool = False, trace: bool = False
) -> GeneratedKernel:
    """The kernel that ``arch`` would run for ``spec``.

    Args:
        path: how it computes, one of ``ir.kernel_path.PATHS``; None takes the Hopper path where there is one, else the
            portable one.
        faults, trace: see :class:`Variant`.

    Raises CodegenError, naming the field, for what no kernel can be generated for.
    """
    check_spec(spec)
    path = choose_path(spec, arch, path)
    variant = Variant(faults=faults, trace=trace)
    shape = kernel_shape(spec, path)
    name = spec.name + (HOPPER_SUFFIXES[shape.cluster] if path == HOPPER else "") + variant.suffix
    config = _template("config.cuh.j2").render(
        spec=spec, variant=variant, path=path, shape=shape, fp16=spec.dtype.value == "fp16"
    )
    source = _template("kernel.cu.j2").render(
        name=name, version=__version__, path=path, cluster=shape.cluster, facts=_facts(spec, path, shape, variant)
    )
    return GeneratedKernel(
        name=name,
        source=source,
        headers=MappingProxyType({**static_headers(), CONFIG_HEADER: config, **_generated_headers(spec, path, shape)}),
        num_threads=shape.num_threads,
        smem_bytes=shape.smem_bytes,
        path=path,
        boxes=tensor_boxes(spec, path, shape),
    )


def _generated_headers(spec: KernelSpec, path: str, shape: KernelShape) -> dict[str, str]:
    """Layout and, on the Hopper path, the operand lists of its two wgmma instructions."""
    layout = {LAYOUT_HEADER: render_layout()}
    if path == PORTABLE:
        return layout
    kind = "f16" if spec.dtype.value == "fp16" else "bf16"
    return layout | {WGMMA_HEADER: _template("wgmma.cuh.j2").render(n_qk=shape.kv_step, n_pv=spec.head_dim, kind=kind)}


@cache
def static_headers() -> Mapping[str, str]:
    """Include name -> text of every device header that is not generated, sorted by name."""
    root = resources.files("liquidcp_compiler.codegen") / "include"
    found: dict[str, str] = {}

    def walk(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".cuh"):
                found[prefix + entry.name] = entry.read_text(encoding="utf-8")

    walk(root, "")
    return MappingProxyType(dict(sorted(found.items())))


@cache
def render_layout() -> str:
    """The generated header with descriptors, enums and launch structs; the same for every kernel."""
    tables = [{"name": d.table, "type": d.name} for d in DESCRIPTORS]
    tables += [{"name": name, "type": "i32"} for name in INDEX_TABLES]
    return _template("layout.cuh.j2").render(
        layout_hash=f"0x{LAYOUT_HASH:016x}ull",
        constants=[
            ("MAX_RANKS", MAX_RANKS),
            ("PAGE_DONE", PAGE_DONE),
            ("NUM_TICKETS", NUM_TICKETS),
            ("MERGE_WORDS", MERGE_WORDS),
        ],
        enums=[_enum(e) for e in (*ENUMS, *LAUNCH_ENUMS)],
        structs=[_descriptor(d) for d in (HEADER, *DESCRIPTORS)] + [_launch_struct(s) for s in LAUNCH_STRUCTS],
        tables=tables,
    )


def _facts(spec: KernelSpec, path: str, shape: KernelShape, variant: Variant) -> list[tuple[str, str]]:
    extras = [name for name in ("faults", "trace") if getattr(variant, name)]
    return [
        ("dtype", spec.dtype.value),
        ("head_dim", str(spec.head_dim)),
        ("mask", spec.mask.name.lower()),
        ("block_q", str(spec.block_q)),
        ("block_kv", str(spec.block_kv)),
        ("softcap", "yes" if spec.softcap else "no"),
        ("CTA", f"{shape.num_threads} threads, {shape.smem_bytes} bytes of dynamic shared memory"),
        ("cluster", f"{shape.cluster} CTAs"),
        ("built with", " and ".join(extras) or "nothing more"),
        ("path", PATH_FACTS[path]),
        ("layout hash", f"{LAYOUT_HASH:016x}"),
    ]


def _enum(enum: type[IntEnum]) -> dict[str, Any]:
    return {"name": enum.__name__, "members": [{"name": m.name, "value": m.value} for m in enum]}


def _descriptor(d: Descriptor) -> dict[str, Any]:
    fields = [{"name": f.name, "type": WIRE_TYPES[f.type][2], "array": "", "doc": f.doc} for f in d.fields]
    return _struct(d.name, d.doc, fields, d.size, 16)


def _launch_struct(s: LaunchStruct) -> dict[str, Any]:
    fields = [
        {
            "name": f.name,
            "type": f.type,
            "array": "" if f.count == 1 else f"[{f.count}]",
            "doc": f.doc,
        }
        for f in s.fields
    ]
    return _struct(s.name, s.doc, fields, s.size, s.alignment)


def _struct(name: str, doc: str, fields: list[dict[str, Any]], size: int, alignment: int) -> dict[str, Any]:
    return {
        "name": name,
        "doc_lines": doc.splitlines(),
        "fields": fields,
        "size": size,
        "alignment": alignment,
        "sum_of_sizes": _join_sizes(name, [f["name"] for f in fields]),
    }


def _join_sizes(struct: str, names: list[str]) -> str:
    """``sizeof(A::x) + sizeof(A::y)``, wrapped: equal to sizeof(A) exactly if A has no hidden padding."""
    terms = [f"sizeof({struct}::{name})" for name in names]
    lines, line = [], ""
    for term in terms:
        joined = f"{line} + {term}" if line else term
        if len(joined) > 90:
            lines.append(line)
            joined = term
        line = joined
    return " +\n                  ".join([*lines, line])


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("liquidcp_compiler.codegen"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cpp_bool"] = lambda value: "true" if value else "false"
    return environment


def _template(name: str) -> jinja2.Template:
    import jinja2

    try:
        return _environment().get_template(name)
    except jinja2.TemplateNotFound as error:
        raise CodegenError(f"template {name} is not installed; reinstall liquidcp-compiler") from error
