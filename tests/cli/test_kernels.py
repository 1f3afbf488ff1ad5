"""``liquidcp kernels``: bundles of prebuilt kernels, and what lies in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from liquidcp_compiler.codegen.build_all import specs
from liquidcp_runtime.cubin_build import build_cubin
from tests.small_kernels import constant_kernel

ONE, OTHER, *_ = specs()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIQUIDCP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.slow
def test_build_and_list(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bundle"
    done = cli("kernels", "build", "-o", folder, "--arch", "sm_80", "--arch", "sm_90a", "--only", ONE.name, "--json")
    assert done.code == 0
    data = done.json()
    assert [(kernel["name"], kernel["arch"]) for kernel in data["kernels"]] == [
        (ONE.name, "sm_80"),
        (f"{ONE.name}_hopper", "sm_90a"),
        (f"{ONE.name}_hopper_pairs", "sm_90a"),
    ]
    for kernel in data["kernels"]:
        assert (kernel["spill_bytes"], kernel["local_bytes"], kernel["state"]) == (0, 0, "usable")
        assert kernel["registers"] > 0
        assert kernel["spec"] == ONE.to_json() | {"head_pairs": kernel["name"].endswith("_pairs")}
        assert (folder / kernel["file"]).is_file()
    assert cli("kernels", "list", folder, "--json").json() == data
    text = cli("kernels", "list", folder).out
    assert ONE.name[:20] in text
    assert "sm_90a" in text
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("LIQUIDCP_KERNELS", str(folder))
    assert cli("kernels", "list", "--json").json()["bundles"] == [data]


@pytest.mark.slow
def test_build_by_specification(cli, tmp_path: Path) -> None:
    one, several = tmp_path / "one.json", tmp_path / "several.json"
    one.write_text(json.dumps(ONE.to_json()))
    several.write_text(json.dumps([ONE.to_json(), OTHER.to_json()]))
    arguments = ("kernels", "build", "-o", tmp_path / "bundle", "--arch", "sm_80", "--json")
    data = cli(*arguments, "--spec", one, "--spec", several).json()
    assert [kernel["name"] for kernel in data["kernels"]] == [ONE.name, OTHER.name]


@pytest.mark.parametrize(("field", "value"), [("head_dim", "64"), ("block_q", 0), ("softcap", "no"), ("reductions", 1)])
def test_a_value_of_the_wrong_type_is_named(cli, tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(ONE.to_json() | {field: value}))
    done = cli("kernels", "build", "-o", tmp_path / "bundle", "--arch", "sm_80", "--spec", path)
    assert done.code == 2
    assert f"{field} is {value!r}" in done.err


def test_list_of_the_cache(cli, tmp_path: Path) -> None:
    assert cli("kernels", "list", "--json").json() == {
        "bundles": [],
        "cache": {"folder": str(tmp_path / "cache" / "cubins"), "kernels": []},
    }
    for value in (1, 2):
        build_cubin(constant_kernel(value), "sm_90a")
    first, second = cli("kernels", "list", "--json").json()["cache"]["kernels"]
    assert (first["name"], first["arch"], first["state"]) == ("constant", "sm_90a", "usable")
    assert first["source_key"] != second["source_key"]
    Path(first["folder"], "kernel.cubin").write_bytes(b"")
    states = [kernel["state"] for kernel in cli("kernels", "list", "--json").json()["cache"]["kernels"]]
    assert states == ["damaged", "usable"]
    done = cli("kernels", "list")
    assert done.code == 0
    assert "damaged" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "FOLDER"], "bundle is "),
        (["build", "-o", "FOLDER/new", "--arch", "sm_80", "--only", "no_such_*"], "--only is 'no_such_*'"),
        (["build", "-o", "FOLDER/new", "--arch", "sm_75x"], "arch is 'sm_75x'"),
        (["build", "-o", "FOLDER/new"], "--arch"),
        (["build", "-o", "FOLDER", "--arch", "sm_80", "--only", ONE.name], "output is "),
        (["build", "-o", "FOLDER/new", "--arch", "sm_80", "--spec", "FOLDER/spec.json"], "--spec is "),
        (["build", "-o", "FOLDER/new", "--arch", "sm_80", "--spec", "FOLDER/none.json"], "No such file"),
        (["paint"], "paint"),
    ],
)
def test_bad_input(cli, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "spec.json").write_text('{"head_dim": 64}')
    done = cli("kernels", *(a.replace("FOLDER", str(tmp_path)) for a in arguments))
    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "new").exists()
