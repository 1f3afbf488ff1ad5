"""One process a rank over gloo: right numbers, and errors on every rank instead of hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from liquidcp_compiler.errors import InvalidField

SCRIPT = Path(__file__).parent / "helpers" / "process_rank.py"
PATIENCE_S = 300


def run_ranks(scenario: str, size: int, folder: Path) -> list[dict]:
    """What each rank printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), scenario]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]
    try:
        texts = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for out, err in texts:
        assert out.strip(), err
    return [json.loads(out.splitlines()[-1]) for out, _ in texts]


@pytest.mark.slow
def test_four_processes_get_the_right_numbers(tmp_path: Path) -> None:
    answers = run_ranks("exact", 4, tmp_path)
    for answer in answers:
        *exact, rounded = answer["errors"]
        for out, lse in exact:
            assert out <= 3e-6
            assert lse <= 1e-5
        assert rounded[0] <= 3e-2
        assert rounded[1] <= 1e-5


@pytest.mark.slow
def test_different_plans_are_refused_on_every_rank(tmp_path: Path) -> None:
    for answer in run_ranks("mismatch", 3, tmp_path):
        assert answer["error"] == "PlanMismatchError"
        assert "[256]" in answer["message"]
        assert "[255]" in answer["message"]


@pytest.mark.slow
def test_a_wrong_tensor_on_one_rank_stops_all(tmp_path: Path) -> None:
    answers = run_ranks("wrong_tensor", 2, tmp_path)
    assert [a["error"] for a in answers] == ["PlanError", "TensorError"]
    assert "rank 1 cannot start: v: shape" in answers[0]["message"]


@pytest.mark.slow
def test_a_tile_that_does_not_come_is_named(tmp_path: Path) -> None:
    answers = run_ranks("silent_peer", 2, tmp_path)
    assert answers[0]["error"] == "DeadlockError"
    assert "transfer kv" in answers[0]["message"]
    assert "rank 1" in answers[0]["message"]


@pytest.mark.slow
def test_a_peer_that_dies_is_an_error_with_the_name_of_a_transfer(tmp_path: Path) -> None:
    answer, _ = run_ranks("dead_peer", 2, tmp_path)
    assert answer["error"] == "ScheduleError"
    assert "transfer kv" in answer["message"]


@pytest.mark.slow
def test_a_rank_that_never_calls_run_is_an_error_on_the_others(tmp_path: Path) -> None:
    answer, _ = run_ranks("absent_peer", 2, tmp_path)
    assert answer["error"] == "DeadlockError"
    assert "rank 0" in answer["message"]


def test_bad_timeouts_are_refused() -> None:
    import torch.distributed as dist

    from liquidcp_runtime.process_world import ProcessWorld

    class Group(dist.ProcessGroup):
        """Enough of a group to be refused."""

    with pytest.raises(InvalidField, match="timeout_s"):
        ProcessWorld(Group(0, 1), timeout_s=0.0)
