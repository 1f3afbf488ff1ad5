"""Generated kernels: what is generated, that it compiles, and what is refused. No GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from liquidcp_compiler.codegen import emitter
from liquidcp_compiler.codegen.build_all import compile_with_nvcc, specs
from liquidcp_compiler.codegen.build_all import main as build_all
from liquidcp_compiler.codegen.emitter import CONFIG_HEADER, LAYOUT_HEADER, emit, static_headers
from liquidcp_compiler.errors import CodegenError, KernelCostError, NvrtcError
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.layout import LAYOUT_HASH, MaskKind
from liquidcp_compiler.ir.problem import DType
from liquidcp_runtime.cubin import resources
from liquidcp_runtime.nvrtc import compile_cubin

READY = KernelSpec(
    head_dim=128,
    dtype=DType.BF16,
    block_q=128,
    block_kv=128,
    mask=MaskKind.CAUSAL,
    softcap=False,
    reductions=False,
)
STATIC = replace(READY, dtype=DType.FP16, head_dim=64, mask=MaskKind.FULL)

#: Rooms of the device headers, lowest first; a header includes its own room and lower ones only.
ROOMS = ("generated", "common", "ptx", "sync", "attention", "tasks", "kernel")


@pytest.mark.parametrize(("name", "spec"), [("ready", READY), ("static", STATIC)])
def test_generated_text(name: str, spec: KernelSpec, golden: Callable[[str, str], None]) -> None:
    kernel = emit(spec)
    text = f"{kernel.source}\n// ---- {CONFIG_HEADER}\n{kernel.headers[CONFIG_HEADER]}"
    golden(f"{name}.cu", text.replace(f"{LAYOUT_HASH:016x}", "(layout hash)"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("spec", [READY, STATIC], ids=lambda s: s.name)
def test_compiles_without_spills(spec: KernelSpec, arch: str) -> None:
    kernel = emit(spec)
    compiled = compile_cubin(kernel.source, kernel.headers, arch, name=f"{kernel.name}.cu")
    cost = resources(compiled.cubin)[kernel.name]
    assert cost.local_bytes == cost.spill_store_bytes == cost.spill_load_bytes == 0
    assert cost.max_threads == kernel.num_threads == 2 * spec.block_q
    assert cost.registers * kernel.num_threads <= 65536
    assert kernel.smem_bytes + cost.static_smem_bytes <= 99 * 1024  # what the smallest sm_8x gives a CTA
    assert "warning" not in compiled.log


@pytest.mark.parametrize("block", [64, 128])
def test_self_contained_needs_no_headers(block: int) -> None:
    kernel = emit(replace(READY, block_q=block, block_kv=block))
    text = kernel.self_contained()
    assert "#include" not in text
    assert text.count("struct alignas(16) RowDesc") == 1
    assert kernel.name in resources(compile_cubin(text, {}, "sm_80").cubin)


def test_every_supported_kernel_has_its_own_name() -> None:
    names = [emit(spec).name for spec in specs()]
    assert len(set(names)) == len(names) == 8
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)


def test_build_all_writes_every_kernel(tmp_path) -> None:
    build_all([str(tmp_path)])
    assert {p.stem for p in tmp_path.glob("*.cu")} == {spec.name for spec in specs()}


PTXAS = "ptxas info    : {} bytes spill stores, 0 bytes spill loads\nptxas info    : Used 168 registers\n"


@pytest.mark.parametrize(
    ("log", "cost"),
    [
        (PTXAS.format(0), None),
        (PTXAS.format(8), "8 bytes spill stores"),
        (f"ptxas info    : (C7510) Potential Performance Loss: wgmma is serialized\n{PTXAS.format(0)}", "C7510"),
    ],
)
def test_build_all_refuses_kernels_that_lose_speed(tmp_path, log: str, cost: str | None) -> None:
    (tmp_path / "log").write_text(log)
    compiler = tmp_path / "nvcc"
    compiler.write_text(f"#!/bin/sh\ncat {tmp_path}/log >&2\n")
    compiler.chmod(0o755)
    kernel = emit(READY)
    if cost is None:
        assert "168 registers" in compile_with_nvcc(kernel, tmp_path / "kernel.cu", "sm_90a", str(compiler))
        return
    with pytest.raises(KernelCostError, match=f"{kernel.name} for sm_90a .*{cost}"):
        compile_with_nvcc(kernel, tmp_path / "kernel.cu", "sm_90a", str(compiler))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", DType.FP32),
        ("head_dim", 96),
        ("block_q", 16),
        ("block_kv", 256),
        ("mask", MaskKind.SLIDING_WINDOW),
        ("mask", MaskKind.NONE),
        ("softcap", True),
        ("reductions", True),
    ],
)
def test_refuses_what_it_cannot_generate(field: str, value: object) -> None:
    with pytest.raises(CodegenError, match=rf"\b{field} = .*; supported: "):
        emit(replace(READY, **{field: value}))


def test_layout_header_carries_the_hash() -> None:
    assert f"LAYOUT_HASH = 0x{LAYOUT_HASH:016x}ull" in emit(READY).headers[LAYOUT_HEADER]


@pytest.mark.parametrize(
    ("field", "wrong", "error"),
    [("i32 tau_min", "u8 tau_min", "hidden padding"), ("i32 tau_min", "i64 tau_min", "differs from the packer's")],
)
def test_a_layout_that_differs_from_the_packer_does_not_compile(field: str, wrong: str, error: str) -> None:
    layout = emitter.render_layout()
    assert field in layout
    headers = {**static_headers(), LAYOUT_HEADER: layout.replace(field, wrong)}
    with pytest.raises(NvrtcError, match=error):
        compile_cubin(f"#include <{LAYOUT_HEADER}>\n", headers, "sm_80")


def test_headers_stand_alone() -> None:
    kernel = emit(READY)
    for name in kernel.headers:
        compile_cubin(f"#include <{name}>\n", kernel.headers, "sm_80", name="one_header.cu")


def test_headers_are_short_and_include_downwards_only() -> None:
    for name, text in static_headers().items():
        assert len(text.splitlines()) < 300, name
        assert text.startswith("#pragma once\n"), name
        room = ROOMS.index(name.split("/")[1])
        for line in re.findall(r"#include.*", text):
            match = re.fullmatch(r"#include <liquidcp/(\w+)/\w+\.cuh>", line)
            assert match is not None, f"{name}: {line}"
            assert ROOMS.index(match[1]) <= room, f"{name}: {line}"
