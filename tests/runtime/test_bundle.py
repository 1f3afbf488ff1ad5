"""Prebuilt kernels: built, refused, found, and passed over where they do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liquidcp_compiler.errors import InvalidField, KernelCostError, KernelStoreWarning, NvrtcError
from liquidcp_compiler.ir.kernel_path import TensorBoxes
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.ptxas_log import refused_advisories
from liquidcp_runtime import bundle, nvrtc
from liquidcp_runtime.bundle import INDEX, Bundle
from liquidcp_runtime.bundle_build import build_bundle
from liquidcp_runtime.cache import KernelCache
from liquidcp_runtime.cubin_build import Origin, build_cubin
from liquidcp_runtime.cubin_key import source_key
from liquidcp_runtime.kernel_cost import check_shipped, kernel_cost
from tests.small_kernels import IGNORED_SETMAXNREG, SPILLING, SmallKernel, a_spec, constant_kernel, emit_constant

ARCH = "sm_90a"
SPEC = a_spec()
KERNEL = constant_kernel(name=SPEC.name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle of ``KERNEL`` for two architectures, beside an empty cache."""
    monkeypatch.setenv("LIQUIDCP_CACHE_DIR", str(tmp_path / "cache"))
    build_bundle(tmp_path / "bundle", [SPEC], [ARCH, "sm_80"], emit=emit_constant())
    return tmp_path / "bundle"


def index(folder: Path) -> dict[str, Any]:
    return json.loads((folder / INDEX).read_text())


def rewrite(folder: Path, **changes: Any) -> None:
    (folder / INDEX).write_text(json.dumps({**index(folder), **changes}))


def test_the_index_says_what_the_kernels_are(folder: Path) -> None:
    data = index(folder)
    assert data["layout_hash"] == bundle.layout_hash()
    assert [kernel["arch"] for kernel in data["kernels"]] == [ARCH, "sm_80"]
    for kernel, read in zip(data["kernels"], Bundle.read(folder).kernels, strict=True):
        cubin = (folder / read.file_name).read_bytes()
        assert KernelSpec.from_json(kernel["spec"]) == SPEC
        assert kernel["source_key"] == source_key(KERNEL, kernel["arch"])
        assert kernel["nvrtc"] == ".".join(map(str, nvrtc.nvrtc_version()))
        assert (kernel["size"], kernel["num_threads"]) == (len(cubin), 1)
        assert read.resources == kernel_cost(cubin, SPEC.name)
    assert "/" not in "".join(path.name for path in folder.iterdir())
    assert str(folder) not in (folder / INDEX).read_text()


def test_a_bundle_comes_before_the_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_cubin(KERNEL, ARCH, [folder]).origin == Origin.BUNDLE
    assert build_cubin(KERNEL, ARCH).origin == Origin.COMPILED
    monkeypatch.setenv("LIQUIDCP_KERNELS", f"{folder.parent}/none:{folder}")
    with pytest.raises(InvalidField, match="LIQUIDCP_KERNELS"):
        build_cubin(KERNEL, ARCH)
    monkeypatch.setenv("LIQUIDCP_KERNELS", f":{folder}")
    assert build_cubin(KERNEL, ARCH).origin == Origin.BUNDLE
    kernels = KernelCache(emit_constant(), bundles=[str(folder)])
    for _ in range(2):
        kernels.build(kernels.source(SPEC, "sm_80"), "sm_80")
    assert (kernels.counts.compiled, kernels.counts.from_disk, kernels.counts.from_bundle) == (0, 0, 1)


def test_the_first_bundle_that_has_the_kernel_wins(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    build_bundle(other, [SPEC], [ARCH], emit=emit_constant(name="something_else"))
    assert build_cubin(KERNEL, ARCH, [other, folder]).origin == Origin.BUNDLE


RUN_BARE = """
import sys
sys.modules["cuda.bindings.nvrtc"] = None  # as where it is not installed
import liquidcp_runtime.cubin_build as build
from liquidcp_compiler.codegen.build_all import specs
from liquidcp_compiler.codegen.emitter import emit
first, second, *_ = map(emit, specs())
print(build.build_cubin(first, "sm_80").origin.value)
try:
    build.build_cubin(second, "sm_80")
except build.NvrtcError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_bundle_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from liquidcp_compiler.codegen.build_all import specs

    build_bundle(tmp_path / "bundle", [next(specs())], ["sm_80"])
    monkeypatch.setenv("LIQUIDCP_KERNELS", str(tmp_path / "bundle"))
    done = subprocess.run([sys.executable, "-c", RUN_BARE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "bundle"
    for words in ("is in no bundle", "LIQUIDCP_KERNELS", "sm_80"):
        assert words in second


def test_the_path_and_boxes_of_a_kernel_come_back(tmp_path: Path) -> None:
    boxes = TensorBoxes(q_rows=128, kv_rows=112, out_rows=64)
    kernels = {"sm_80": KERNEL, ARCH: replace(KERNEL, path="hopper", boxes=boxes)}
    build_bundle(tmp_path / "bundle", [SPEC], list(kernels), emit=lambda _, arch: kernels[arch])
    found = {k.arch: (k.path, k.boxes) for k in Bundle.read(tmp_path / "bundle").kernels}
    assert found == {"sm_80": ("portable", None), ARCH: ("hopper", boxes)}


def test_an_index_from_before_there_were_paths_is_of_portable_kernels(folder: Path) -> None:
    old = [{name: entry[name] for name in entry.keys() - {"path", "boxes"}} for entry in index(folder)["kernels"]]
    rewrite(folder, kernels=old)
    assert {(k.path, k.boxes) for k in Bundle.read(folder).kernels} == {("portable", None)}


def one_warning(folder: Path, kernel: SmallKernel = KERNEL) -> str:
    """What is said when the kernel is built twice from a bundle that does not serve."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert build_cubin(kernel, ARCH, [folder]).origin == Origin.COMPILED
        assert build_cubin(kernel, ARCH, [folder]).origin == Origin.DISK
    (warning,) = said
    assert warning.category is KernelStoreWarning
    assert str(folder) in str(warning.message)
    return str(warning.message)


def test_a_bundle_of_another_layout_is_passed_over(folder: Path) -> None:
    rewrite(folder, layout_hash="0" * 16)
    assert "0000000000000000" in one_warning(folder)


def test_a_bundle_of_other_sources_is_passed_over(folder: Path) -> None:
    assert "other sources" in one_warning(folder, constant_kernel(2, SPEC.name))


def test_a_damaged_cubin_is_passed_over(folder: Path) -> None:
    path = folder / Bundle.read(folder).kernels[0].file_name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert "damaged" in one_warning(folder)


def test_a_missing_cubin_is_passed_over(folder: Path) -> None:
    (folder / Bundle.read(folder).kernels[0].file_name).unlink()
    assert "No such file" in one_warning(folder)


def test_a_kernel_that_no_bundle_names_is_compiled_without_a_word(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build_cubin(constant_kernel(name="another"), ARCH, [folder]).origin == Origin.COMPILED


def no_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def torn_index(folder: Path) -> None:
    (folder / INDEX).write_text((folder / INDEX).read_text()[:100])


def other_format(folder: Path) -> None:
    rewrite(folder, format=2)


def list_as_index(folder: Path) -> None:
    (folder / INDEX).write_text("[]")


def unknown_field(folder: Path) -> None:
    rewrite(folder, kernels=[{**index(folder)["kernels"][0], "way": "x"}])


def unknown_path(folder: Path) -> None:
    rewrite(folder, kernels=[{**index(folder)["kernels"][0], "path": "x"}])


def torn_boxes(folder: Path) -> None:
    rewrite(folder, kernels=[{**index(folder)["kernels"][0], "boxes": {"columns": 64}}])


def name_with_a_folder(folder: Path) -> None:
    rewrite(folder, kernels=[{**index(folder)["kernels"][0], "name": "../../x"}])


@pytest.mark.parametrize(
    "spoil",
    [no_index, torn_index, other_format, list_as_index, unknown_field, unknown_path, torn_boxes, name_with_a_folder],
)
def test_a_folder_that_is_no_bundle_is_refused(folder: Path, spoil: Callable[[Path], None]) -> None:
    spoil(folder)
    with pytest.raises(InvalidField, match="liquidcp kernels build"):
        KernelCache(bundles=[folder])


def test_building_again_replaces_the_bundle(folder: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    build_bundle(folder, [SPEC, SPEC], [ARCH, ARCH], emit=emit_constant(2))
    (kernel,) = Bundle.read(folder).kernels
    assert {path.name for path in folder.iterdir()} == {INDEX, kernel.file_name}
    assert kernel.file_name not in before


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    for output in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(InvalidField, match="output"):
            build_bundle(output, [SPEC], [ARCH], emit=emit_constant())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(("specs", "archs", "field"), [([], [ARCH], "specs"), ([SPEC], [], "archs")])
def test_an_empty_bundle_is_refused(tmp_path: Path, specs: list[KernelSpec], archs: list[str], field: str) -> None:
    with pytest.raises(InvalidField, match=field):
        build_bundle(tmp_path / "bundle", specs, archs, emit=emit_constant())


SPILLS = SmallKernel(name="spills", source=SPILLING)
IGNORED = SmallKernel(name="ignored", source=IGNORED_SETMAXNREG)


@pytest.mark.parametrize(
    ("kernel", "cost"), [(SPILLS, r"\d+ bytes of spill stores and \d+ of spill loads with 32 reg"), (IGNORED, "C7508")]
)
def test_kernels_that_lose_speed_are_not_shipped(tmp_path: Path, kernel: SmallKernel, cost: str) -> None:
    kernels = {SPEC: KERNEL, a_spec(dtype="fp16"): kernel}
    with pytest.raises(KernelCostError, match=f"{kernel.name} for sm_90a .*{cost}") as caught:
        build_bundle(tmp_path / "bundle", kernels, [ARCH], emit=lambda spec, _: kernels[spec])
    assert (caught.value.kernel, caught.value.arch) == (kernel.name, ARCH)
    assert not (tmp_path / "bundle").exists()


def test_spills_are_found_without_a_log() -> None:
    cost = kernel_cost(nvrtc.compile_cubin(SPILLING, {}, ARCH).cubin, "spills")
    with pytest.raises(KernelCostError, match="spill"):
        check_shipped("spills", ARCH, cost, log="")
    check_shipped("spills", ARCH, replace(cost, spill_store_bytes=0, spill_load_bytes=0), log="")


def test_the_kernel_must_be_in_the_cubin() -> None:
    with pytest.raises(InvalidField, match="spills"):
        kernel_cost(nvrtc.compile_cubin(SPILLING, {}, "sm_80").cubin, "other")


@pytest.mark.parametrize(("number", "refused"), [("C7508", 1), ("C7510", 1), ("C7520", 1), ("C7517", 0), ("C75100", 0)])
def test_which_advisories_refuse_a_kernel(number: str, refused: int) -> None:
    log = f"ptxas info    : ({number}) Potential Performance Loss: something\nptxas info    : Used 8 registers\n"
    assert len(refused_advisories(log)) == refused


def test_no_compiler_is_an_error_that_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[int, int]:
        raise NvrtcError("no library")

    monkeypatch.setattr(nvrtc, "nvrtc_version", missing)
    assert build_cubin(KERNEL, ARCH, [folder]).origin == Origin.BUNDLE
    with pytest.raises(NvrtcError, match="LIQUIDCP_KERNELS.*no library"):
        build_cubin(KERNEL, ARCH, [])
