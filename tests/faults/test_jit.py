"""Compilation at run time: stale and damaged caches, foreign headers and libraries, kernels of one name."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import liquidcp_runtime
from liquidcp_compiler import options
from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import InvalidField, KernelStoreWarning
from liquidcp_compiler.ir.problem import DecodeProblem, Request
from liquidcp_runtime import cache, cubin_build, cubin_key, kernel_warmup, nvrtc
from liquidcp_runtime.cubin_build import Origin, build_cubin
from liquidcp_runtime.cubin_cache import CubinCache
from liquidcp_runtime.cubin_key import CubinKey
from liquidcp_runtime.file_lock import file_lock
from tests.small_kernels import SmallKernel, a_spec, constant_kernel, emit_constant, entry_names

ROOT = Path(__file__).parents[2]
ARCH = "sm_90a"
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("cache_dir")


def key_of(kernel: SmallKernel, arch: str = ARCH, version: tuple[int, int] = (12, 9)) -> CubinKey:
    return cubin_key.cubin_key(kernel, arch, version)


def test_a_lock_that_is_never_free_is_no_error(cache_dir: Path) -> None:
    """fault J11: who has waited long enough compiles, and says nothing."""
    key = key_of(constant_kernel())
    (cache_dir / "cubins").mkdir(parents=True)
    with file_lock(cache_dir / "cubins" / f"{key.digest}.lock", 0) as held, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert held
        assert CubinCache(lock_wait=0.02).get(key, lambda: b"cubin") == (b"cubin", True)
        assert CubinCache(lock_wait=0.02).get(key, lambda: b"other") == (b"cubin", False)


def test_the_slower_of_two_writers_takes_the_faster_ones_cubin() -> None:
    """fault J1: two that compile in spite of the lock end with the same bytes."""
    key, store = key_of(constant_kernel()), CubinCache()

    def build_while_another_is_faster() -> bytes:
        assert CubinCache(lock_wait=0).get(key, lambda: b"faster") == (b"faster", True)
        return b"slower"

    assert store.get(key, build_while_another_is_faster) == (b"faster", True)


def spoil_cubin(entry: Path) -> None:
    data = bytearray((entry / "kernel.cubin").read_bytes())
    data[len(data) // 2] ^= 1
    (entry / "kernel.cubin").write_bytes(data)


def cut_cubin(entry: Path) -> None:
    os.truncate(entry / "kernel.cubin", 100)


def cut_meta(entry: Path) -> None:
    os.truncate(entry / "meta.json", 40)


def other_meta(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps({**meta, "arch": "sm_80"}))


def remove_cubin(entry: Path) -> None:
    (entry / "kernel.cubin").unlink()


def file_in_its_place(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("not a folder")


@pytest.mark.parametrize("damage", [spoil_cubin, cut_cubin, cut_meta, other_meta, remove_cubin, file_in_its_place])
def test_a_damaged_entry_is_found_and_rebuilt(cache_dir: Path, damage: Callable[[Path], None]) -> None:
    """fault J1"""
    first = build_cubin(constant_kernel(), ARCH)
    (name,) = entry_names(cache_dir)
    damage(cache_dir / "cubins" / name)
    with pytest.warns(KernelStoreWarning, match=f"{name} is damaged"):
        second = build_cubin(constant_kernel(), ARCH)
    assert (second.origin, second.cubin) == (Origin.COMPILED, first.cubin)
    assert build_cubin(constant_kernel(), ARCH).origin == Origin.DISK
    assert entry_names(cache_dir) == [name]


def test_what_killed_writers_left_is_cleared(cache_dir: Path) -> None:
    """fault J7"""
    old, new = (cache_dir / "cubins" / f".{'0' * 64}.1.{which}.tmp" for which in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "kernel.cubin").write_bytes(b"half")
    os.utime(old, (0, 0))
    CubinCache().get(key_of(constant_kernel()), lambda: b"cubin")
    assert (old.exists(), new.exists()) == (False, True)


PRINT_KEY = """
import sys
import liquidcp_compiler, liquidcp_runtime
from liquidcp_compiler.codegen.build_all import specs
from liquidcp_compiler.codegen.emitter import emit
from liquidcp_runtime.cubin_key import cubin_key
assert liquidcp_compiler.__file__.startswith(sys.argv[1]) and liquidcp_runtime.__file__.startswith(sys.argv[1])
kernel = emit(next(specs()))
assert not any(sys.argv[1] in text for text in (kernel.source, *kernel.headers.values()))
print(cubin_key(kernel, "sm_90a", (12, 9)).digest)
"""


def test_the_key_knows_no_install_path(tmp_path: Path) -> None:
    """fault J3: the same package at two places, and any working folder."""
    keys = []
    for place in ("here", "there/deeper"):
        folder = tmp_path / place
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "liquidcp_compiler", folder / "liquidcp_compiler", ignore=ignored)
        shutil.copytree(ROOT / "runtime", folder / "liquidcp_runtime", ignore=ignored)
        command, env = [sys.executable, "-c", PRINT_KEY, str(folder)], {**os.environ, "PYTHONPATH": str(folder)}
        keys.append(subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True).stdout)
    assert keys[0] == keys[1]
    assert len(keys[0]) == 65


def test_an_upgraded_compiler_compiles_again(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> None:
    """fault J5"""
    assert build_cubin(constant_kernel(), ARCH).origin == Origin.COMPILED
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (13, 7))
    assert build_cubin(constant_kernel(), ARCH).origin == Origin.COMPILED
    assert len(entry_names(cache_dir)) == 2


@pytest.fixture
def fake_device(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, str]]:
    """The CPU passes for a device of sm_90a; what is loaded there is written down."""
    loaded: list[tuple[bytes, str]] = []

    def load(cubin: bytes, name: str, **_: object) -> tuple[bytes, str]:
        loaded.append((cubin, name))
        return loaded[-1]

    monkeypatch.setattr(cache, "load_kernel", load)
    for module in (cache, kernel_warmup):
        monkeypatch.setattr(module, "arch_of", lambda device: ARCH)
    return loaded


def test_kernels_of_one_name_each_run_their_own_code(fake_device) -> None:
    """fault J4: in one cache and in two, cold and from disk."""
    one, other = a_spec(), a_spec(dtype="fp16")
    shared = liquidcp_runtime.KernelCache(lambda spec, arch: constant_kernel(1 + (spec == other), "constant"))
    apart = [liquidcp_runtime.KernelCache(emit_constant(value, "constant")) for value in (1, 2)]
    found: list[Any] = [shared.get(spec, CPU) for spec in (one, other)]
    again: list[Any] = [kernels.get(one, CPU) for kernels in apart]
    assert found == again
    assert found[0] != found[1]
    assert [name for _, name in found] == ["constant", "constant"]
    assert [b.counts.from_disk for b in apart] == [1, 1]


def test_specifications_of_one_text_share_a_kernel(fake_device) -> None:
    """fault J4: what counts is the content."""
    kernels = liquidcp_runtime.KernelCache(emit_constant(1, "constant"))
    assert kernels.get(a_spec(), CPU) is kernels.get(a_spec(dtype="fp16"), CPU)
    assert len(fake_device) == 1


UNWRITABLE = {
    "under a file": lambda tmp_path: tmp_path / "file" / "cache",
    "file system without new folders": lambda tmp_path: Path(f"/proc/{tmp_path.name}/cache"),
}


@pytest.mark.parametrize("where", UNWRITABLE)
def test_a_folder_that_cannot_be_written_costs_one_warning(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault J7: the kernels go to a folder of the process."""
    (tmp_path / "file").write_text("")
    folder = UNWRITABLE[where](tmp_path)
    monkeypatch.setenv("LIQUIDCP_CACHE_DIR", str(folder))
    kernel = constant_kernel(name=where.replace(" ", "_"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [build_cubin(k, ARCH).origin for k in (kernel, kernel, replace(kernel, source=kernel.source + "\n"))]
    assert found == [Origin.COMPILED, Origin.DISK, Origin.COMPILED]
    (message,) = (str(warning.message) for warning in said)
    for words in (str(folder), "cannot be written", "LIQUIDCP_CACHE_DIR"):
        assert words in message


def test_a_full_disk_is_no_error(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault J7: here the folder of the process is on the same full disk."""

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    key = key_of(constant_kernel(name="full"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert CubinCache().get(key, lambda: b"cubin") == (b"cubin", True)
        assert CubinCache().get(key, lambda: b"again") == (b"again", True)
    assert sum("cannot be written" in str(warning.message) for warning in said) == 1
    assert list((cache_dir / "cubins").glob(".*.tmp")) == []


def test_entries_are_read_where_nothing_can_be_written(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault J7: a cache that was filled before, on a file system that is read-only now."""
    key = key_of(constant_kernel())
    CubinCache().get(key, lambda: b"cubin")

    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("mkdir", "rename", "fsync"):
        monkeypatch.setattr(os, name, read_only)
    assert CubinCache().get(key, lambda: b"other") == (b"cubin", False)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_no_error(cache_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """fault J7: everybody compiles, and one entry results."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    assert [build_cubin(constant_kernel(), ARCH).origin for _ in range(2)] == [Origin.COMPILED, Origin.DISK]
    assert len(entry_names(cache_dir)) == 1


def test_a_lock_file_that_lies_around_locks_nothing(cache_dir: Path) -> None:
    """fault J7"""
    key = key_of(constant_kernel())
    (cache_dir / "cubins").mkdir(parents=True)
    (cache_dir / "cubins" / f"{key.digest}.lock").write_text("4711")
    assert CubinCache(lock_wait=3600).get(key, lambda: b"cubin") == (b"cubin", True)


def test_a_cache_folder_set_after_import_counts(tmp_path: Path, fake_device) -> None:
    """fault J11: the folder is read when it is used."""
    kernels = liquidcp_runtime.KernelCache(emit_constant())
    with options.scope(CACHE_DIR=str(tmp_path / "later")):
        kernels.get(a_spec(), CPU)
    assert len(entry_names(tmp_path / "later")) == 1
    with options.scope(CACHE_DIR=None):
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = str(tmp_path / "xdg")
        try:
            assert CubinCache().root == tmp_path / "xdg" / "liquidcp" / "cubins"
        finally:
            os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)


COMPILE_REAL = """
import hashlib
from liquidcp_compiler.codegen.build_all import specs
from liquidcp_compiler.codegen.emitter import emit
from liquidcp_runtime.cubin_build import build_cubin
built = build_cubin(emit(next(specs())), "sm_90a")
print(built.origin.value, hashlib.sha256(built.cubin).hexdigest())
"""
INCLUDE_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "NVCC_APPEND_FLAGS")


@pytest.mark.slow
def test_headers_of_the_machine_have_no_effect(tmp_path: Path) -> None:
    """fault J9: no toolkit, then include paths full of wrong headers of the right names; the same bytes."""
    from liquidcp_compiler.codegen.emitter import static_headers

    for name in (*static_headers(), "cuda_fp16.h", "cuda_bf16.h", "vector_types.h", "stdint.h", "cuda_runtime.h"):
        (tmp_path / "bogus" / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bogus" / "include" / name).write_text("#error a header of the machine was read\n")
    bare = {name: value for name, value in os.environ.items() if name not in INCLUDE_VARIABLES}
    bogus = {name: str(tmp_path / "bogus" / "include") for name in INCLUDE_VARIABLES[:3]}
    bogus |= {"CUDA_HOME": str(tmp_path / "bogus"), "NVCC_APPEND_FLAGS": f"-I{tmp_path / 'bogus' / 'include'}"}
    found = []
    for i, changes in enumerate(({}, bogus)):
        env = {**bare, **changes, "LIQUIDCP_CACHE_DIR": str(tmp_path / f"cache{i}")}
        command = [sys.executable, "-c", COMPILE_REAL]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1]
    assert found[0][0] == "compiled"


OLD_NVRTC = """
extern "C" int nvrtcVersion(int* major, int* minor) { *major = 11; *minor = 8; return 0; }
extern "C" int nvrtcGetNumSupportedArchs(int* count) { *count = 2; return 0; }
extern "C" int nvrtcGetSupportedArchs(int* archs) { archs[0] = 75; archs[1] = 80; return 0; }
"""
USE_OLD = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # as another package of the process may have done
from liquidcp_runtime import nvrtc
try:
    nvrtc.check_arch("sm_90a")
except nvrtc.NvrtcError as error:
    print(error)
"""


def test_an_older_library_that_is_found_first_is_named(tmp_path: Path) -> None:
    """fault J10: version and path of the one in use, what it can do, and where the other one lies."""
    other = nvrtc.library_path()
    old = tmp_path / "libnvrtc.so.12"
    (tmp_path / "old.cpp").write_text(OLD_NVRTC)
    build = ["g++", "-shared", "-fPIC", "-Wl,-soname,libnvrtc.so.12", "-o", str(old), str(tmp_path / "old.cpp")]
    subprocess.run(build, check=True)
    command = [sys.executable, "-c", USE_OLD, str(old)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in (f"NVRTC 11.8 at {old}", "sm_80", "needs NVRTC 12.0", f"Other NVRTC libraries found: {other}"):
        assert words in done.stdout


@pytest.mark.slow
def test_decoding_never_compiles_again(fake_device) -> None:
    """fault J13: 200 steps with growing histories, then a chunk of a prompt: one kernel a static configuration."""
    kernels = liquidcp_runtime.KernelCache(emit_constant())
    fields: dict[str, Any] = {"num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64}
    steps = [DecodeProblem(requests=(Request(history=5 + n, query=1),), **fields) for n in range(200)]
    steps.append(DecodeProblem(requests=(Request(history=205, query=1), Request(history=64, query=100)), **fields))
    specs = [make_plan(step, 2).spec for step in steps]
    for spec in specs:
        kernels.get(spec, CPU)
    assert kernels.counts == cache.KernelCounts(compiled=len(set(specs)), from_disk=0, from_bundle=0)
    assert len(set(specs[:200])) == 1
    assert len(set(specs)) <= 2


def test_warmup_builds_every_kernel_once(fake_device, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault J13: ahead and without a device; later nothing is compiled."""
    specs = [a_spec(), a_spec(dtype="fp16"), a_spec()]
    ahead = liquidcp_runtime.KernelCache(emit_constant())
    warm = liquidcp_runtime.warmup(specs, arch=ARCH, kernels=ahead)
    assert [(kernel.name, kernel.arch, kernel.origin) for kernel in warm] == [
        (spec.name, ARCH, Origin.COMPILED) for spec in specs[:2]
    ]
    assert all(kernel.resources.registers > 0 and kernel.resources.spill_load_bytes == 0 for kernel in warm)
    assert fake_device == []

    def compiler(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(cubin_build, "compile_kernel", compiler)
    kernels = liquidcp_runtime.KernelCache(emit_constant())
    for spec in specs:
        kernels.get(spec, CPU)
    assert kernels.counts == cache.KernelCounts(compiled=0, from_disk=2, from_bundle=0)
    assert len(fake_device) == 2


def test_warmup_says_for_which_device() -> None:
    for given in ({}, {"arch": ARCH, "device": 0}):
        with pytest.raises(InvalidField, match="exactly one"):
            liquidcp_runtime.warmup([], **given)
    with pytest.raises(InvalidField, match="a CUDA device"):
        liquidcp_runtime.warmup([], device="cpu")
