"""The LIQUIDCP_* variables: read when asked, typed, and misspellings are errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from liquidcp_compiler import options
from liquidcp_compiler.errors import InvalidField


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with options.scope(CACHE_DIR=None, DUMP_IR=None, VERIFY=None):
        assert options.verify() == "final"
        assert options.dump_ir() is None
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert options.cache_dir() == tmp_path / "liquidcp"
        for ignored in ("", "relative"):
            monkeypatch.setenv("XDG_CACHE_HOME", ignored)
            monkeypatch.setenv("HOME", str(tmp_path))
            assert options.cache_dir() == tmp_path / ".cache" / "liquidcp"


def test_values_are_read_at_each_call(tmp_path: Path) -> None:
    with options.scope(VERIFY="off", CACHE_DIR=str(tmp_path), DUMP_IR="~/dumps"):
        assert options.verify() == "off"
        assert options.cache_dir() == tmp_path
        assert options.dump_ir() == Path.home() / "dumps"
        with options.scope(VERIFY="final", DUMP_IR=""):
            assert options.verify() == "final"
            assert options.dump_ir() is None
        assert options.verify() == "off"


def test_scope_restores_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIQUIDCP_VERIFY", "final")
    monkeypatch.delenv("LIQUIDCP_DUMP_IR", raising=False)

    def use() -> None:
        with options.scope(VERIFY="off", DUMP_IR="somewhere"):
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert os.environ["LIQUIDCP_VERIFY"] == "final"
    assert "LIQUIDCP_DUMP_IR" not in os.environ


@pytest.mark.parametrize("value", ["always", "EACH", " off", "1"])
def test_a_wrong_choice_names_the_variable_and_the_choices(value: str) -> None:
    with options.scope(VERIFY=value), pytest.raises(InvalidField, match="each, final, off") as caught:
        options.verify()
    assert (caught.value.field, caught.value.value) == ("LIQUIDCP_VERIFY", value)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with options.scope(DUMP_IR=str(tmp_path / "file")), pytest.raises(InvalidField, match="LIQUIDCP_DUMP_IR"):
        options.dump_ir()


def test_folders_are_separated_as_in_path(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with options.scope(KERNELS=None):
        assert options.kernels() == ()
    with options.scope(KERNELS=os.pathsep.join(("", str(tmp_path / "two"), str(tmp_path / "one")))):
        assert options.kernels() == (tmp_path / "two", tmp_path / "one")
    with options.scope(KERNELS=str(tmp_path / "three")), pytest.raises(InvalidField, match="LIQUIDCP_KERNELS"):
        options.kernels()


def test_no_home_folder_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with options.scope(CACHE_DIR=None), pytest.raises(InvalidField, match="LIQUIDCP_CACHE_DIR"):
        options.cache_dir()


def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIQUIDCP_VERFY", "off")
    with pytest.raises(InvalidField, match="LIQUIDCP_VERFY.*LIQUIDCP_VERIFY"):
        options.verify()


def test_scope_refuses_an_unknown_name() -> None:
    with pytest.raises(InvalidField, match="LIQUIDCP_NOTHING"), options.scope(NOTHING="1"):
        pass


def test_the_table_describes_itself() -> None:
    for option in options.OPTIONS:
        assert option.name.startswith(options.PREFIX)
        assert option.help.endswith(".")
        assert (option.kind == "choice") == (option.default in option.choices)
