"""Compilation in memory: headers, options, errors, and independence of the machine's own CUDA set-up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from liquidcp_compiler.errors import InvalidField, NvrtcError
from liquidcp_runtime import cubin, driver_api, nvrtc

HEADERS = {
    "liquidcp/common/two.cuh": "#pragma once\n__device__ inline int two() { return 2; }\n",
    "liquidcp/common/four.cuh": (
        "#pragma once\n#include <liquidcp/common/two.cuh>\n__device__ inline int four() { return two() * two(); }\n"
    ),
}
SOURCE = """#include <liquidcp/common/four.cuh>
template <typename T> concept Small = sizeof(T) <= 4;
template <Small T> __device__ T same(T value) { return value; }
extern "C" __global__ void kernel(int* x) { *x = same(four()); }
"""
BROKEN = {"liquidcp/bad.cuh": "#pragma once\n__device__ int broken() { return missing_name; }\n"}
BROKEN_SOURCE = '#include <liquidcp/bad.cuh>\nextern "C" __global__ void kernel(int* x) { *x = broken(); }\n'


def test_compiles_from_headers_in_memory() -> None:
    result = nvrtc.compile_cubin(SOURCE, HEADERS, "sm_90a", options=["-DUNUSED=1"])
    assert list(cubin.resources(result.cubin)) == ["kernel"]
    assert "Compiling entry function 'kernel' for 'sm_90a'" in result.log
    assert result.arch == "sm_90a"
    assert result.nvrtc_version == nvrtc.nvrtc_version() >= (12, 0)
    assert result.options == ("--gpu-architecture=sm_90a", *nvrtc.BASE_OPTIONS, "-DUNUSED=1")
    assert "-lineinfo" in result.options
    assert result.seconds > 0


def test_same_input_gives_the_same_bytes() -> None:
    first, second = (nvrtc.compile_cubin(SOURCE, HEADERS, "sm_80").cubin for _ in range(2))
    assert first == second


def test_defines_reach_the_source() -> None:
    source = "#if VALUE != 7\n#error wrong value\n#endif\n"
    nvrtc.compile_cubin(source, {}, "sm_80", options=["-DVALUE=7"])
    with pytest.raises(NvrtcError, match="wrong value"):
        nvrtc.compile_cubin(source, {}, "sm_80", options=["-DVALUE=8"])


def test_error_carries_the_log_and_the_saved_source(tmp_path: Path) -> None:
    with pytest.raises(NvrtcError) as caught:
        nvrtc.compile_cubin(BROKEN_SOURCE, BROKEN, "sm_80", name="broken.cu", dump_dir=tmp_path / "dump")
    error = caught.value
    assert "liquidcp/bad.cuh(2): error" in error.log
    assert "missing_name" in error.log
    assert error.source_path == str(tmp_path / "dump" / "broken.cu")
    assert error.source_path in str(error)
    assert Path(error.source_path).read_text() == BROKEN_SOURCE
    assert (tmp_path / "dump" / "liquidcp" / "bad.cuh").read_text() == BROKEN["liquidcp/bad.cuh"]


def test_error_without_a_folder_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NvrtcError, match="missing_name") as caught:
        nvrtc.compile_cubin(BROKEN_SOURCE, BROKEN, "sm_80")
    assert caught.value.source_path == ""
    assert list(tmp_path.iterdir()) == []


def test_a_success_saves_nothing(tmp_path: Path) -> None:
    nvrtc.compile_cubin(SOURCE, HEADERS, "sm_80", dump_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_working_folder_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "liquidcp").mkdir()
    (tmp_path / "liquidcp" / "only_on_disk.cuh").write_text("#define FOUND 1\n")
    monkeypatch.chdir(tmp_path)
    for include in ("<liquidcp/only_on_disk.cuh>", '"liquidcp/only_on_disk.cuh"'):
        with pytest.raises(NvrtcError, match="only_on_disk"):
            nvrtc.compile_cubin(f"#include {include}\n", {}, "sm_80")


def test_needs_neither_cuda_home_nor_a_sound_cpath(tmp_path: Path) -> None:
    (tmp_path / "bogus" / "liquidcp" / "common").mkdir(parents=True)
    (tmp_path / "bogus" / "liquidcp" / "common" / "two.cuh").write_text("#error taken from CPATH\n")
    code = (
        "from liquidcp_runtime import nvrtc\n"
        f"result = nvrtc.compile_cubin({SOURCE!r}, {HEADERS!r}, 'sm_80')\n"
        "print(len(result.cubin) > 0)"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
    env |= {"CPATH": str(tmp_path / "bogus"), "CPLUS_INCLUDE_PATH": str(tmp_path / "bogus")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


@pytest.mark.parametrize("arch", ["", "90a", "compute_90", "sm_90b", "sm_", "sm_90a ", "sm_90a --pch"])
def test_malformed_arch_is_refused(arch: str) -> None:
    with pytest.raises(InvalidField, match="arch"):
        nvrtc.compile_cubin(SOURCE, HEADERS, arch)


def test_unknown_arch_names_the_library_and_its_newest_arch() -> None:
    with pytest.raises(NvrtcError) as caught:
        nvrtc.compile_cubin(SOURCE, HEADERS, "sm_999")
    assert nvrtc.library_path() in str(caught.value)
    assert f"sm_{nvrtc.supported_archs()[-1]}" in str(caught.value)
    assert Path(nvrtc.library_path()).is_file()


def test_an_old_nvrtc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (11, 8))
    monkeypatch.setattr(nvrtc, "supported_archs", lambda: (80, 90))
    with pytest.raises(NvrtcError, match=r"NVRTC 11\.8 at ") as caught:
        nvrtc.check_arch("sm_90a")
    assert "needs NVRTC 12.0" in str(caught.value)


@pytest.mark.parametrize(
    "option",
    ["--gpu-architecture=sm_80", "-arch=sm_80", "-arch", "--std=c++17", "-std=c++17", "-I/usr/include", "-I"]
    + ["--include-path=/usr/include", "-include-path", "--pch", "-pch", "--create-pch=x", "--use-pch=x"],
)
def test_reserved_options_are_refused(option: str) -> None:
    with pytest.raises(InvalidField, match="options"):
        nvrtc.compile_cubin(SOURCE, HEADERS, "sm_80", options=[option])


@pytest.mark.parametrize("name", ["/a.cuh", "a/../b.cuh", "./a.cuh", "a//b.cuh", "a\\b.cuh", "", "kernel.cu", "a/"])
def test_header_names_are_canonical(name: str) -> None:
    with pytest.raises(InvalidField, match="headers"):
        nvrtc.compile_cubin(SOURCE, {name: ""}, "sm_80")


@pytest.mark.parametrize("name", ["", "a/b.cu", "/a.cu", ".."])
def test_source_name_is_a_file_name(name: str) -> None:
    with pytest.raises(InvalidField, match="name"):
        nvrtc.compile_cubin(SOURCE, HEADERS, "sm_80", name=name)


@pytest.mark.parametrize("source", [SOURCE, BROKEN_SOURCE])
def test_the_program_is_destroyed_on_each_path(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = driver_api.call

    def spy(name: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(driver_api, "call", spy)
    try:
        nvrtc.compile_cubin(source, {**HEADERS, **BROKEN}, "sm_80")
    except NvrtcError:
        assert source == BROKEN_SOURCE
    assert calls.count("nvrtcCreateProgram") == calls.count("nvrtcDestroyProgram") == 1
