"""Generated kernels: what is generated, that it compiles, and what is refused. No GPU."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from liquidcp_compiler.codegen import emitter, support
from liquidcp_compiler.codegen.build_all import compile_with_nvcc, covering_specs, kernel_jobs, specs
from liquidcp_compiler.codegen.build_all import main as build_all
from liquidcp_compiler.codegen.emitter import CONFIG_HEADER, LAYOUT_HEADER, emit, static_headers
from liquidcp_compiler.errors import CodegenError, KernelCostError, NvrtcError
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.launch import RANK_MAPS, TENSOR_MAP, TENSOR_MAPS, LaunchStruct, Param
from liquidcp_compiler.ir.layout import LAYOUT_HASH, MaskKind
from liquidcp_compiler.ir.problem import DType
from liquidcp_runtime.cubin import KernelResources, resources
from liquidcp_runtime.nvrtc import compile_cubin

CAUSAL = KernelSpec(
    head_dim=128,
    dtype=DType.BF16,
    block_q=128,
    block_kv=128,
    mask=MaskKind.CAUSAL,
    softcap=False,
    reductions=False,
    head_pairs=True,
)
#: Kernels whose generated text is looked at by people: name -> specification.
CANONICAL = {
    "bf16_d128_causal": CAUSAL,
    "fp16_d64_full": replace(CAUSAL, dtype=DType.FP16, head_dim=64, mask=MaskKind.FULL),
    "bf16_d192_document_softcap": replace(CAUSAL, head_dim=192, mask=MaskKind.DOCUMENT, softcap=True),
    "bf16_d256_block_sparse": replace(CAUSAL, head_dim=256, mask=MaskKind.BLOCK_SPARSE),
}
ARCHS = ("sm_80", "sm_90a", "sm_100a")
NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"

#: Rooms of the device headers, lowest first; a header includes its own room and lower ones only.
ROOMS = ("generated", "common", "ptx", "sync", "attention", "tasks", "hopper", "kernel")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/build_kernels.py."""
    path = Path(__file__).parents[2] / "tools" / "build_kernels.py"
    spec = importlib.util.spec_from_file_location("build_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "build_kernels", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CANONICAL)
def test_generated_text(name: str, golden: Callable[[str, str], None]) -> None:
    kernel = emit(CANONICAL[name])
    text = f"{kernel.source}\n// ---- {CONFIG_HEADER}\n{kernel.headers[CONFIG_HEADER]}"
    golden(f"{name}.cu", text.replace(f"{LAYOUT_HASH:016x}", "(layout hash)"))


def check_compiles(spec: KernelSpec, arch: str) -> None:
    """Neither spills nor warnings, and what it needs is what the emitter says."""
    kernel = emit(spec, arch)
    compiled = compile_cubin(kernel.source, kernel.headers, arch, name=f"{kernel.name}.cu")
    cost = resources(compiled.cubin)[kernel.name]
    assert cost.local_bytes == cost.spill_store_bytes == cost.spill_load_bytes == 0
    assert cost.max_threads == kernel.num_threads
    assert cost.registers * kernel.num_threads <= 65536
    # What an sm_90 gives a CTA; what an sm_80 does, and what the smallest sm_8x does.
    limit = 227 if kernel.path == "hopper" else 99 if spec.head_dim <= 192 else 163
    assert kernel.smem_bytes + cost.static_smem_bytes <= limit * 1024
    assert "warning" not in compiled.log


@pytest.mark.slow
@pytest.mark.parametrize("spec", [CAUSAL, CANONICAL["bf16_d256_block_sparse"]], ids=lambda s: s.name)
def test_compiles_without_spills(spec: KernelSpec) -> None:
    check_compiles(spec, "sm_80")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("spec", list(covering_specs()), ids=lambda s: s.name)
def test_the_covering_set_compiles_without_spills(spec: KernelSpec, arch: str) -> None:
    check_compiles(spec, arch)


@pytest.mark.parametrize(("block_q", "block_kv"), [(64, 64), (64, 128), (128, 64)])
@pytest.mark.parametrize("head_dim", [80, 256])
@pytest.mark.slow
def test_other_tiles_compile_without_spills(block_q: int, block_kv: int, head_dim: int) -> None:
    check_compiles(replace(CAUSAL, block_q=block_q, block_kv=block_kv, head_dim=head_dim), "sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("block", [64, 128])
def test_self_contained_needs_no_headers(block: int) -> None:
    kernel = emit(replace(CAUSAL, block_q=block, block_kv=block))
    text = kernel.self_contained()
    assert "#include" not in text
    assert text.count("struct alignas(16) RowDesc") == 1
    assert kernel.name in resources(compile_cubin(text, {}, "sm_80").cubin)


@pytest.mark.slow
@pytest.mark.parametrize("name", CANONICAL)
def test_a_dumped_kernel_is_one_file_for_a_plain_compiler(name: str, tmp_path: Path) -> None:
    """With nvcc where there is one, as its own header says; else with NVRTC, which sees no other file."""
    kernel = emit(CANONICAL[name])
    source = tmp_path / f"{kernel.name}.cu"
    source.write_text(kernel.self_contained())
    if Path(NVCC).exists():
        assert compile_with_nvcc(kernel, source, "sm_90a", NVCC).startswith(kernel.name)
    else:
        assert kernel.name in resources(compile_cubin(source.read_text(), {}, "sm_90a").cubin)


def test_every_supported_kernel_has_its_own_name() -> None:
    names = {arch: [emit(spec, arch).name for spec, _ in kernel_jobs(specs(), [arch])] for arch in ARCHS}
    assert names["sm_80"] == names["sm_100a"] == list(dict.fromkeys(spec.name for spec in specs()))
    assert len(names["sm_80"]) == 2 * 13 * 6 * 2
    assert sum(name.endswith("_hopper_pairs") for name in names["sm_90a"]) == 2 * len(support.HOPPER_HEAD_DIMS) * 6 * 2
    for every in names.values():
        assert len(set(every)) == len(every)
        assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in every)


def test_the_covering_set_covers() -> None:
    every, few = list(specs()), list(covering_specs())
    assert len(few) == len(set(few)) <= 60
    assert set(few) <= set(every)
    for fields in (("mask", "dtype", "softcap"), ("head_dim", "dtype", "softcap")):
        assert {tuple(getattr(s, f) for f in fields) for s in few} == {
            tuple(getattr(s, f) for f in fields) for s in every
        }
    for head_dim in {s.head_dim for s in every}:
        assert len({s.mask for s in few if s.head_dim == head_dim}) >= (6 if head_dim in (64, 128, 256) else 4)


def test_build_all_writes_every_kernel(tmp_path: Path) -> None:
    build_all([str(tmp_path)])
    assert {p.stem for p in tmp_path.glob("*.cu")} == {emit(spec, arch).name for spec in specs() for arch in ARCHS}


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
    kernel = emit(CANONICAL["bf16_d128_causal"])
    if cost is None:
        assert "168 registers" in compile_with_nvcc(kernel, tmp_path / "kernel.cu", "sm_90a", str(compiler))
        return
    with pytest.raises(KernelCostError, match=f"{kernel.name} for sm_90a .*{cost}"):
        compile_with_nvcc(kernel, tmp_path / "kernel.cu", "sm_90a", str(compiler))


def test_the_build_tool_refuses_kernels_that_are_slow(tool: ModuleType) -> None:
    costs = {"registers": 255, "static_smem_bytes": 0, "local_bytes": 0, "max_threads": 256}
    good = KernelResources(spill_store_bytes=0, spill_load_bytes=0, **costs)

    def fault(cost: KernelResources, log: str = "") -> str:
        return tool.BuiltKernel(name="k", arch="sm_90a", resources=cost, smem_bytes=0, seconds=1.0, log=log).fault

    assert fault(good) == ""
    assert fault(replace(good, spill_store_bytes=4)) == fault(replace(good, local_bytes=8)) == "k spills on sm_90a"
    assert "C7510" in fault(good, log="ptxas info    : (C7510) Potential Performance Loss: wgmma serialised")


@pytest.mark.slow
def test_the_build_tool_prints_a_line_a_kernel(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(
        tool, "build_many", lambda wanted, archs, jobs: [tool.build(CANONICAL["fp16_d64_full"], *archs)]
    )
    assert tool.main(["--arch", "sm_90a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["forward_fp16_d64_full_q128_kv128_hopper_pairs", "sm_90a"]
    assert lines[2].startswith("1 kernels in ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", DType.FP32),
        ("head_dim", 48),
        ("head_dim", 100),
        ("block_q", 16),
        ("block_kv", 256),
        ("mask", MaskKind.NONE),
        ("reductions", True),
    ],
)
def test_refuses_what_it_cannot_generate(field: str, value: object) -> None:
    with pytest.raises(CodegenError, match=rf"\b{field} = .*; supported: "):
        emit(replace(CAUSAL, **{field: value}))


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Head size 128 has a Hopper path."""
    monkeypatch.setattr(support, "HOPPER_HEAD_DIMS", (128,))


@pytest.mark.usefixtures("hopper")
def test_the_architecture_chooses_the_path() -> None:
    """By what it and the specification can have; a name of its own, since its cubins are others."""
    other = replace(CAUSAL, head_dim=192)
    assert [emit(CAUSAL, arch).path for arch in ARCHS] == ["portable", "hopper", "portable"]
    assert emit(other, "sm_90a").path == emit(replace(CAUSAL, block_q=64), "sm_90a").path == "portable"
    assert emit(CAUSAL, "sm_90a", path="portable") == emit(CAUSAL, "sm_80") == emit(CAUSAL)
    kernel = emit(CAUSAL, "sm_90a", trace=True)
    assert kernel.name == f"{CAUSAL.name}_hopper_pairs_trace"
    assert emit(replace(CAUSAL, head_pairs=False), "sm_90a").name == f"{CAUSAL.name}_hopper"
    assert f"{kernel.name}(const __grid_constant__ liquidcp::KernelParams params,\n" in kernel.source
    assert "const __grid_constant__ liquidcp::TensorMaps maps)" in kernel.source
    assert re.search(r"//   path +Hopper: wgmma and TMA, sm_90a\n", kernel.source)
    assert (kernel.num_threads, kernel.boxes is None) == (384, False)


def test_a_portable_kernel_takes_no_maps() -> None:
    kernel = emit(CAUSAL)
    assert (kernel.path, kernel.boxes, "TensorMaps" in kernel.source) == ("portable", None, False)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("changes", "arch", "path", "words"),
    [
        ({}, "sm_90a", "fastest", "path = fastest; supported: portable, hopper"),
        ({}, "sm_100a", "hopper", "arch = sm_100a; supported: sm_90a"),
        ({"head_dim": 192}, "sm_90a", "hopper", "d192_.*; supported: head_dim 128 with"),
        ({"block_kv": 64}, "sm_90a", "hopper", "kv64; supported: .* block_q = block_kv = 128"),
    ],
)
def test_a_path_that_there_is_not_is_refused(changes: dict[str, int], arch: str, path: str, words: str) -> None:
    with pytest.raises(CodegenError, match=words):
        emit(replace(CAUSAL, **changes), arch, path=path)


def test_tensor_maps_lie_as_the_device_reads_them() -> None:
    """The second parameter of Hopper kernels: the copy engine wants 64 bytes of alignment for each map."""
    layout = emitter.render_layout()
    for struct in (TENSOR_MAP, RANK_MAPS, TENSOR_MAPS):
        assert f"struct alignas(64) {struct.name} {{" in layout
    assert "struct alignas(8) KernelParams {" in layout
    offsets = {name: entry[1] for name, entry in (RANK_MAPS.dtype.fields or {}).items()}
    assert offsets == {"q": 0, "k": 128, "v": 256, "out": 384, "kv_buffer_k": 512, "kv_buffer_v": 640}
    assert (TENSOR_MAP.size, TENSOR_MAPS.size) == (128, 8 * 768)


@pytest.mark.parametrize(
    "fields", [(Param("pad", "u64", "0", 16), Param("map", "TensorMap", "")), (Param("map", "TensorMap", ""),)]
)
def test_a_struct_of_less_alignment_than_its_members_is_refused(fields: tuple[Param, ...]) -> None:
    with pytest.raises(TypeError, match="map is not naturally aligned"):
        LaunchStruct("Wrong", "", fields, (TENSOR_MAP,))
    with pytest.raises(TypeError, match="map is not naturally aligned"):
        LaunchStruct("Wrong", "", (Param("pad", "u64", "0"), *fields), (TENSOR_MAP,), alignment=64)


def test_layout_header_carries_the_hash() -> None:
    assert f"LAYOUT_HASH = 0x{LAYOUT_HASH:016x}ull" in emit(CAUSAL).headers[LAYOUT_HEADER]


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


@pytest.mark.slow
def test_headers_stand_alone() -> None:
    """Those of one path with the configuration of that path."""
    portable = {"compute.cuh", "portable_compute.cuh"}
    for arch, others in (("sm_80", {"hopper", "hopper_compute.cuh"}), ("sm_90a", portable)):
        headers = emit(CAUSAL, arch).headers
        for name in headers:
            if not others & set(name.split("/")):
                compile_cubin(f"#include <{name}>\n", headers, arch, name="one_header.cu")


def test_headers_are_short_and_include_downwards_only() -> None:
    for name, text in static_headers().items():
        assert len(text.splitlines()) < 300, name
        assert text.startswith("#pragma once\n"), name
        room = ROOMS.index(name.split("/")[1])
        for line in re.findall(r"#include.*", text):
            match = re.fullmatch(r"#include <liquidcp/(\w+)/\w+\.cuh>", line)
            assert match is not None, f"{name}: {line}"
            assert ROOMS.index(match[1]) <= room, f"{name}: {line}"
