"""Plan files: equal after a round trip, refused when of another version, torn or changed."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from liquidcp_compiler import DecodeProblem, Plan, PrefillProblem, plan
from liquidcp_compiler.errors import PlanError
from liquidcp_compiler.ir import plan_file
from liquidcp_compiler.ir.layout import LAYOUT_HASH, TABLE_NAMES
from liquidcp_compiler.ir.plan_file import HEADER_NAME, load_plan, save_plan

PREFILL = PrefillProblem(lengths=(700, 1, 129), num_heads_q=4, num_heads_kv=2, head_dim=64)
DECODE = DecodeProblem(requests=((300, 1), (0, 3)), num_heads_q=4, num_heads_kv=2, head_dim=64)
EMPTY = PrefillProblem(lengths=(), num_heads_q=4, num_heads_kv=2, head_dim=64)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_plan(plan(PREFILL, 2), tmp_path / "plan.npz")


def rewrite(path: Path, member: str, data: np.ndarray) -> None:
    """Replace one array of the archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    buffer = io.BytesIO()
    np.save(buffer, data, allow_pickle=False)
    members[f"{member}.npy"] = buffer.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def rewrite_header(path: Path, **changes: object) -> None:
    with np.load(path) as archive:
        header = json.loads(archive[HEADER_NAME].tobytes()) | changes
    rewrite(path, HEADER_NAME, np.frombuffer(json.dumps(header).encode(), np.uint8))


@pytest.mark.parametrize("problem", [PREFILL, DECODE, EMPTY], ids=["prefill", "decode", "empty"])
def test_round_trip(tmp_path: Path, problem) -> None:
    before = plan(problem, 2)
    before.save(tmp_path / "a.npz")
    after = Plan.load(tmp_path / "a.npz")
    assert (after.problem, after.world, after.tile, after.spec, after.pipeline, after.fingerprint) == (
        (before.problem, before.world, before.tile, before.spec, before.pipeline, before.fingerprint)
    )
    for name in TABLE_NAMES:
        np.testing.assert_array_equal(after.tables[name], before.tables[name])
        np.testing.assert_array_equal(after.offsets[name], before.offsets[name])
    assert [after.blob(r) for r in range(2)] == [before.blob(r) for r in range(2)]


def test_equal_plans_give_equal_bytes(tmp_path: Path) -> None:
    first = save_plan(plan(PREFILL, 2), tmp_path / "a.npz").read_bytes()
    assert save_plan(plan(PREFILL, 2), tmp_path / "b.npz").read_bytes() == first


def test_no_pickle_and_no_leftovers(saved: Path) -> None:
    with np.load(saved, allow_pickle=False) as archive:
        assert not any(archive[name].dtype.hasobject for name in archive.files)
    assert [p.name for p in saved.parent.iterdir()] == ["plan.npz"]


def test_another_format_is_named(saved: Path) -> None:
    rewrite_header(saved, format=7, version="9.9")
    with pytest.raises(PlanError, match=r"format 7, written by version '9\.9'.*reads format 1"):
        load_plan(saved)


def test_another_layout_is_named(saved: Path) -> None:
    rewrite_header(saved, layout="0123456789abcdef")
    with pytest.raises(PlanError, match=f"0123456789abcdef.*{LAYOUT_HASH:016x}"):
        load_plan(saved)


def test_a_changed_table_is_found(saved: Path) -> None:
    with np.load(saved) as archive:
        rows = archive["table.rows"].copy()
    rows["tau_min"][0] += 1
    rewrite(saved, "table.rows", rows)
    with pytest.raises(PlanError, match="changed after it was written"):
        load_plan(saved)


def test_changed_offsets_are_found(saved: Path) -> None:
    with np.load(saved) as archive:
        offsets = archive["offsets.rows"].copy()
    offsets[1] += 1
    rewrite(saved, "offsets.rows", offsets)
    with pytest.raises(PlanError, match="offsets or rank headers were changed"):
        load_plan(saved)


def test_a_changed_problem_is_found(saved: Path) -> None:
    problem = PREFILL.to_json() | {"softmax_scale": 2.0}
    rewrite_header(saved, problem=problem)
    with pytest.raises(PlanError, match="changed after it was written"):
        load_plan(saved)


@pytest.mark.parametrize("key", list(plan_file._KEYS))
def test_a_missing_key_is_named(saved: Path, key: str) -> None:
    rewrite_header(saved, **{key: None})
    with pytest.raises(PlanError, match=f"no valid {key}"):
        load_plan(saved)


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.99])
def test_a_torn_file_is_refused(saved: Path, keep: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
    with pytest.raises(PlanError, match="torn or not a plan file"):
        load_plan(saved)


def test_a_flipped_byte_is_found(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[len(data) // 3] ^= 0xFF
    saved.write_bytes(data)
    with pytest.raises(PlanError):
        load_plan(saved)


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(PlanError, match=r"without header\.json"):
        load_plan(tmp_path / "other.npz")
    with pytest.raises(PlanError, match="no such plan file"):
        load_plan(tmp_path / "missing.npz")


def test_a_failed_write_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("liquidcp_compiler.ir.atomic_file.os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        save_plan(plan(DECODE, 2), saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["plan.npz"]
