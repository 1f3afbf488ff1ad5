"""``liquidcp kernels``: build prebuilt kernels, list them and those of the cache."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from liquidcp_compiler.cli.inputs import JsonOption
from liquidcp_compiler.cli.output import Output

if TYPE_CHECKING:
    from liquidcp_compiler.ir.kernel_spec import KernelSpec
    from liquidcp_runtime.bundle import Bundle
    from liquidcp_runtime.cubin import KernelResources
    from liquidcp_runtime.cubin_entry import CubinEntry

kernels = typer.Typer(help="Build kernels ahead for machines without a compiler; list what is there.")

#: Keys of the table's columns and their headings; what a row does not say is shown as "-".
_COLUMNS = {
    "name": "kernel",
    "arch": "arch",
    "nvrtc": "NVRTC",
    "registers": "registers",
    "local_bytes": "local",
    "spill_bytes": "spills",
    "static_smem_bytes": "smem",
    "smem_bytes": "dynamic",
    "size": "bytes",
    "state": "state",
}


@kernels.command("build")
def build(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the bundle.")],
    arch: Annotated[list[str], typer.Option("--arch", metavar="SM", help="E.g. sm_90a; repeatable.")],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Kernels whose name matches, e.g. '*bf16_d128*'; repeatable."),
    ] = None,
    spec: Annotated[
        list[Path] | None,
        typer.Option("--spec", metavar="FILE", help="A kernel's specification as JSON, or a list; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile kernels into a folder; one that spills is refused, and then nothing is written.

    Without --only and --spec: every kernel that can be generated for full-size tiles.
    """
    from liquidcp_runtime.bundle_build import build_bundle

    out = Output(as_json)
    specs = [s for path in spec or [] for s in _read_specs(path)]
    if only or not spec:
        specs += _select(only or ["*"])
    with out.working(f"compiling {len(set(specs)) * len(set(arch))} kernels"):
        bundle = build_bundle(output, specs, arch)
    _print_bundle(bundle, out)
    out.result(_bundle_data(bundle))


@kernels.command("list")
def list_kernels(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A bundle. Without it: LIQUIDCP_KERNELS and the cache.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the kernels of a bundle, or of all bundles in use and the cache on disk, with what they cost."""
    from liquidcp_compiler import options
    from liquidcp_runtime.bundle import Bundle
    from liquidcp_runtime.cubin_cache import CubinCache

    out = Output(as_json)
    bundles = [Bundle.read(f) for f in (options.kernels() if folder is None else [folder])]
    for bundle in bundles:
        _print_bundle(bundle, out)
    if folder is not None:
        out.result(_bundle_data(bundles[0]))
        return
    cache = CubinCache()
    entries = [_entry_data(entry) for entry in cache.entries()]
    out.heading(f"cache {cache.root}: {len(entries)} kernels")
    _print_rows(entries, out)
    data = [_bundle_data(bundle) for bundle in bundles]
    out.result({"bundles": data, "cache": {"folder": str(cache.root), "kernels": entries}})


def _select(patterns: list[str]) -> list[KernelSpec]:
    from liquidcp_compiler.codegen.build_all import specs
    from liquidcp_compiler.errors import InvalidField

    known = list(specs())
    for pattern in patterns:
        if not any(fnmatchcase(spec.name, pattern) for spec in known):
            names = f"a pattern for one of {len(known)} names such as {known[0].name}"
            raise InvalidField("--only", pattern, names)
    return [spec for spec in known if any(fnmatchcase(spec.name, pattern) for pattern in patterns)]


def _read_specs(path: Path) -> list[KernelSpec]:
    from liquidcp_compiler.errors import InvalidField
    from liquidcp_compiler.ir.kernel_spec import KernelSpec

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return [KernelSpec.from_json(entry) for entry in (data if isinstance(data, list) else [data])]
    except (ValueError, KeyError, TypeError) as error:
        allowed = "JSON of a specification, as `liquidcp kernels list DIR --json` prints under spec"
        raise InvalidField("--spec", str(path), allowed, f"{type(error).__name__}: {error}") from error


def _bundle_data(bundle: Bundle) -> dict[str, Any]:
    from dataclasses import asdict

    rows = []
    for kernel in bundle.kernels:
        parts = asdict(kernel)
        del parts["resources"]
        rows.append({"file": kernel.file_name, **parts, **_cost(kernel.resources), "state": _state(bundle.layout_hash)})
    head = {"folder": str(bundle.folder), "liquidcp": bundle.liquidcp, "layout_hash": bundle.layout_hash}
    return {**head, "kernels": rows}


def _entry_data(entry: CubinEntry) -> dict[str, Any]:
    from dataclasses import asdict

    from liquidcp_compiler.errors import InvalidField
    from liquidcp_runtime.kernel_cost import kernel_cost

    damaged = {"folder": str(entry.path), "state": "damaged"}
    if entry.key is None or entry.cubin is None:
        return damaged
    try:
        cost = _cost(kernel_cost(entry.cubin, entry.key.name))
    except InvalidField:
        return damaged
    parts = {"folder": str(entry.path), **asdict(entry.key), "size": len(entry.cubin)}
    return {**parts, **cost, "state": _state(entry.key.layout_hash)}


def _cost(resources: KernelResources) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(resources), "spill_bytes": resources.spill_store_bytes + resources.spill_load_bytes}


def _state(layout: str) -> str:
    from liquidcp_runtime.cubin_key import layout_hash

    return "usable" if layout == layout_hash() else "other layout"


def _print_bundle(bundle: Bundle, out: Output) -> None:
    out.heading(f"bundle {bundle.folder}: {len(bundle.kernels)} kernels, liquidcp {bundle.liquidcp}")
    _print_rows(_bundle_data(bundle)["kernels"], out)


def _print_rows(rows: list[dict[str, Any]], out: Output) -> None:
    if rows:
        cells = [[str(row.get(column, "-")) for column in _COLUMNS] for row in rows]
        out.table(list(_COLUMNS.values()), cells, left=[0, 1, len(_COLUMNS) - 1])
