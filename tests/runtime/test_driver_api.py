"""Statuses become values or errors that name the call."""

from __future__ import annotations

from enum import IntEnum

import pytest

from liquidcp_compiler.errors import DriverError, NvrtcError
from liquidcp_runtime import driver_api


class Status(IntEnum):
    FINE = 0
    BROKEN = 7


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ((Status.FINE,), None),
        ((Status.FINE, 5), 5),
        ((Status.FINE, None), None),
        ((Status.FINE, 5, "a"), (5, "a")),
    ],
)
def test_success_gives_the_values(result: tuple[object, ...], value: object) -> None:
    assert driver_api.check(result, "someCall") == value


def test_failure_names_call_and_status() -> None:
    with pytest.raises(DriverError, match=r"someCall failed: BROKEN \(7\)"):
        driver_api.check((Status.BROKEN, None), "someCall")
    with pytest.raises(NvrtcError, match="someCall"):
        driver_api.check((Status.BROKEN,), "someCall", NvrtcError)


def test_a_real_status_is_named() -> None:
    with pytest.raises(NvrtcError, match=r"nvrtcGetCUBINSize failed: NVRTC_ERROR_INVALID_PROGRAM"):
        driver_api.call("nvrtcGetCUBINSize", 0, library="nvrtc", error=NvrtcError)


def test_a_call_that_does_not_exist_is_named() -> None:
    with pytest.raises(DriverError, match="nvrtcNoSuchCall"):
        driver_api.call("nvrtcNoSuchCall", library="nvrtc")


def test_missing_bindings_say_what_to_install() -> None:
    with pytest.raises(DriverError, match="install cuda-python"):
        driver_api.bindings("no_such_library")  # type: ignore[arg-type]  # the point of the test


def test_a_missing_library_is_one_of_our_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("not found\nmore")

    monkeypatch.setattr(driver_api.bindings("nvrtc"), "nvrtcVersion", fail)
    with pytest.raises(DriverError, match=r"NVRTC library cannot be loaded.*\(not found\)"):
        driver_api.call("nvrtcVersion", library="nvrtc")
