"""Keys of compiled kernels: whatever changes a cubin changes its key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liquidcp_runtime import cubin_key, nvrtc
from liquidcp_runtime.cubin_key import CubinKey
from tests.small_kernels import SmallKernel, constant_kernel


def key_of(kernel: SmallKernel, arch: str = "sm_90a", version: tuple[int, int] = (12, 9)) -> CubinKey:
    return cubin_key.cubin_key(kernel, arch, version)


def with_headers(*items: tuple[str, str]) -> SmallKernel:
    return replace(constant_kernel(), headers=dict(items))


HEADERS = tuple(constant_kernel().headers.items())
VALUE, UNUSED = HEADERS
VARIANTS = {
    "source": key_of(replace(constant_kernel(), source=constant_kernel().source + " ")),
    "name": key_of(constant_kernel(name="other")),
    "header text": key_of(constant_kernel(2)),
    "header name": key_of(with_headers(VALUE, ("liquidcp/other.cuh", UNUSED[1]))),
    "header order": key_of(with_headers(UNUSED, VALUE)),
    "header missing": key_of(with_headers(VALUE)),
    "text moved between name and text": key_of(with_headers(VALUE, (UNUSED[0] + "#", UNUSED[1][1:]))),
    "arch": key_of(constant_kernel(), "sm_80"),
    "NVRTC version": key_of(constant_kernel(), version=(13, 0)),
}


def test_everything_that_changes_a_cubin_changes_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault J5"""
    digests = {what: key.digest for what, key in VARIANTS.items()} | {"none": key_of(constant_kernel()).digest}
    for i, flag in enumerate(nvrtc.BASE_OPTIONS):
        others = nvrtc.BASE_OPTIONS[:i] + nvrtc.BASE_OPTIONS[i + 1 :]
        for what, flags in ((f"without {flag}", others), (f"{flag} last", (*others, flag))):
            if flags != nvrtc.BASE_OPTIONS:
                monkeypatch.setattr(nvrtc, "BASE_OPTIONS", flags)
                digests[what] = key_of(constant_kernel()).digest
                monkeypatch.undo()
    monkeypatch.setattr(cubin_key, "LAYOUT_HASH", cubin_key.LAYOUT_HASH ^ 1)
    digests["layout hash"] = key_of(constant_kernel()).digest
    assert len(set(digests.values())) == len(digests) == 10 + 2 * len(nvrtc.BASE_OPTIONS)


def test_each_byte_of_a_header_counts() -> None:
    """fault J5"""
    name, text = VALUE
    changed = [text[:i] + chr(ord(text[i]) ^ 1) + text[i + 1 :] for i in range(len(text))]
    assert len({key_of(with_headers((name, t), UNUSED)).digest for t in (text, *changed)}) == len(text) + 1
