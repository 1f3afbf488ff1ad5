"""The environment variables of LiquidCP: one table, read when a value is needed and never at import.

Nothing else in the project looks at ``os.environ``. A variable that is set to the empty string counts as
unset, and a variable that starts with ``LIQUIDCP_`` but is not in the table is an error, so that a
misspelling is not ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from liquidcp_compiler.errors import InvalidField

PREFIX = "LIQUIDCP_"

VerifyMode = Literal["each", "final", "off"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One environment variable; ``default`` is text for people, ``folders`` are separated as in ``PATH``."""

    name: str
    kind: Literal["folder", "folders", "choice"]
    default: str
    help: str
    choices: tuple[str, ...] = ()


CACHE_DIR = Option(
    name="LIQUIDCP_CACHE_DIR",
    kind="folder",
    default="$XDG_CACHE_HOME/liquidcp, else ~/.cache/liquidcp",
    help="Folder that keeps compiled kernels between runs.",
)
DUMP_IR = Option(
    name="LIQUIDCP_DUMP_IR",
    kind="folder",
    default="unset: nothing is written",
    help="Folder that receives the graph's text after each pass and the generated source.",
)
KERNELS = Option(
    name="LIQUIDCP_KERNELS",
    kind="folders",
    default="unset: none",
    help="Folders of kernels that `liquidcp kernels build` made, looked through in this order before compiling.",
)
VERIFY = Option(
    name="LIQUIDCP_VERIFY",
    kind="choice",
    default="final",
    help="When the verifier runs: before and after each pass, on the final graph only, or never.",
    choices=("each", "final", "off"),
)
OPTIONS: tuple[Option, ...] = (CACHE_DIR, DUMP_IR, KERNELS, VERIFY)


def cache_dir() -> Path:
    """The folder of the kernel cache; it may not exist yet. Raises InvalidField."""
    chosen = read_folder(CACHE_DIR)
    if chosen is not None:
        return chosen
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the XDG rules say to ignore a relative path
        return Path(xdg) / "liquidcp"
    try:
        return Path.home() / ".cache" / "liquidcp"
    except RuntimeError as error:
        raise InvalidField("HOME", "", "a folder", f"There is no home folder; set {CACHE_DIR.name}") from error


def dump_ir() -> Path | None:
    """The folder for dumps, or None when nothing is dumped. Raises InvalidField."""
    return read_folder(DUMP_IR)


def kernels() -> tuple[Path, ...]:
    """The folders with prebuilt kernels. Raises InvalidField for one that does not exist."""
    parts = [part for part in _read(KERNELS).split(os.pathsep) if part]
    folders = tuple(Path(part).expanduser().absolute() for part in parts)
    for folder in folders:
        if not folder.is_dir():
            raise InvalidField(KERNELS.name, str(folder), "existing folders, separated as in PATH", KERNELS.help)
    return folders


def cuda_library_folders() -> tuple[Path, ...]:
    """Where CUDA's own variables say that its libraries lie; for messages, nothing is loaded from there."""
    search = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
    toolkits = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    return (*map(Path, search), *(Path(toolkit) / "lib64" for toolkit in toolkits if toolkit))


def verify() -> VerifyMode:
    """When the verifier runs. Raises InvalidField."""
    return cast(VerifyMode, read_choice(VERIFY))


def read_folder(option: Option) -> Path | None:
    """The absolute path that a folder variable names (``~`` is expanded), or None when it is unset."""
    text = _read(option)
    if not text:
        return None
    path = Path(text).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise InvalidField(option.name, text, "a folder, existing or to be made", "A file of that name is in the way")
    return path


def read_choice(option: Option) -> str:
    """The value of a choice variable, or its default when it is unset."""
    text = _read(option)
    if not text:
        return option.default
    if text not in option.choices:
        raise InvalidField(option.name, text, ", ".join(option.choices), option.help)
    return text


@contextmanager
def scope(**values: str | None) -> Iterator[None]:
    """Set variables for the length of a ``with`` block, named without the prefix: ``scope(VERIFY="off")``.

    None unsets a variable. For tests and notebooks; the change is process-wide.
    """
    names = {PREFIX + name: value for name, value in values.items()}
    _reject_unknown(names)
    before = {name: os.environ.get(name) for name in names}
    _assign(names)
    try:
        yield
    finally:
        _assign(before)


def _read(option: Option) -> str:
    _reject_unknown(os.environ)
    return os.environ.get(option.name, "")


def _reject_unknown(names: Iterable[str]) -> None:
    known = {option.name for option in OPTIONS}
    for name in names:
        if name.startswith(PREFIX) and name not in known:
            raise InvalidField("environment variable", name, ", ".join(sorted(known)), "Unset it or mend its name")


def _assign(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
