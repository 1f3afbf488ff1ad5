"""What all tests share: golden files, poisoned tensors, Hypothesis profiles, a kernel cache of their own."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    import torch

TESTS = Path(__file__).parent
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# One thread a test process, set before torch is imported: the tensors are small, and on a shared machine the threads of
# two workers wait for each other (the length grid took 392 s with torch's default and takes 31 s so).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadlines: the first example of a property may compile something. In CI the same examples run each time.
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if IN_CI else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and IN_CI:
        raise pytest.UsageError("--update-golden is refused in CI: golden files are written by a person who reads them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden("ring.txt", text)`` compares ``text`` with tests/golden/<stem of the test file>/ring.txt.

    A missing file fails and shows the text; ``pytest --update-golden`` writes it. Give the name as a literal
    or an f-string, since tests/test_project.py looks for it there to find files that no test reads any more.
    """
    folder = TESTS / "golden" / request.path.stem
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist; write it with --update-golden if this is right:\n{text}")
        expected = path.read_text()
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "this run", lineterm="")
            pytest.fail("the text has changed (--update-golden takes it):\n" + "\n".join(lines))

    return compare


@pytest.fixture
def poison() -> Callable[..., torch.Tensor]:
    """``poison(*shape, dtype=, device=)``: a tensor for results that shows what was not written.

    Floating-point elements are NaN; integers and booleans hold a value far from any index or count.
    """
    import torch

    def make(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
        if dtype.is_floating_point:
            return torch.full(shape, float("nan"), dtype=dtype, device=device)
        value = True if dtype == torch.bool else torch.iinfo(dtype).max - 7
        return torch.full(shape, value, dtype=dtype, device=device)

    return make


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run without the user's LIQUIDCP_* variables; a cache folder that is set stays, else it is temporary."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # the workers share one cache
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("LIQUIDCP_")]:
            if name != "LIQUIDCP_CACHE_DIR":
                patch.delenv(name)
        if not os.environ.get("LIQUIDCP_CACHE_DIR"):
            patch.setenv("LIQUIDCP_CACHE_DIR", str(shared / "kernel-cache"))
        yield
