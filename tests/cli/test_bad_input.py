"""Bad input: exit code 2, nothing on standard output, and one line that says which, what came and what is allowed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from liquidcp_compiler import load_problem
from liquidcp_compiler.cli.tensors import random_tensors

# Changes of the prefill problem, and words of the message.
BAD_PROBLEMS = [
    ({"lengths": [300, -1]}, ["lengths[1] is -1", "whole numbers >= 0"]),
    ({"lengths": [1.5]}, ["lengths[0] is 1.5", "whole numbers"]),
    ({"lengths": "12"}, ["lengths is '12'"]),
    ({"num_heads_q": 4, "num_heads_kv": 3}, ["num_heads_kv is 3", "divisor of num_heads_q = 4"]),
    ({"head_dim": 100}, ["head_dim = 100", "supported"]),
    ({"dtype": "fp8"}, ["dtype is 'fp8'", "bf16, fp16, fp32"]),
    ({"kind": "train"}, ["kind is 'train'", "prefill, decode"]),
    ({"format": 2}, ["format is 2", "allowed: 1"]),
    ({"mask": {"type": "striped"}}, ["mask.type is 'striped'", "causal"]),
    ({"mask": {"type": "block_sparse", "block": 300, "rows": [[]]}, "lengths": [300]}, ["mask block_sparse"]),
    ({"num_heads": 4}, ["num_heads is 4", "no such key"]),
    ({"softmax_scale": 0}, ["softmax_scale is 0", "> 0"]),
]


def check(done, *words: str) -> None:
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.endswith("\n")
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


@pytest.mark.parametrize(("changes", "words"), BAD_PROBLEMS)
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_problems(cli, problem_file, changes: dict, words: list[str], flags: tuple[str, ...]) -> None:
    check(cli("plan", problem_file(**changes), "--world", 2, *flags), *words)


@pytest.mark.parametrize("content", ["", "lengths: [1]", "[1, 2]", '{"format": 1', "\x00\x01"])
def test_files_that_are_no_problem(cli, tmp_path: Path, content: str) -> None:
    path = tmp_path / "problem.json"
    path.write_text(content)
    check(cli("run", path, "--world", 2), "problem")


def test_files_that_cannot_be_read(cli, tmp_path: Path) -> None:
    check(cli("plan", tmp_path / "none.json", "--world", 2), "none.json", "No such file")
    check(cli("plan", tmp_path, "--world", 2), "readable file")


@pytest.mark.parametrize("world", ["0", "-1", "two", "1.5", "99999"])
def test_worlds(cli, problem_file, world: str) -> None:
    check(
        cli("plan", problem_file(), f"--world={world}"), "--world", "valid" if not world.lstrip("-").isdigit() else ""
    )


def test_a_world_that_does_not_divide_the_heads(cli, decode_file: Path) -> None:
    check(cli("plan", decode_file, "--world", 3), "3", "divisor of num_heads_q = 4")


def test_missing_world(cli, problem_file) -> None:
    check(cli("plan", problem_file()), "--world is missing")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--placement", "zig"), ["--placement is 'zig'", "zigzag-all"]),
        (("--placement", "zigzag-all{tiles=3}"), ["zigzag-all.tiles", "no such option"]),
        (("--placement", "dcp"), ["pass dcp", "decode problems"]),
        (("--passes", "zigzag-all,fuse"), ["pass is 'fuse'", "insert-sync"]),
        (("--passes", "zigzag-all"), ["ends placed", "insert-sync"]),
        (("--passes", "zigzag-all", "--placement", "zigzag-all"), ["--passes"]),
        (("--passes", "zigzag-all", "--order", "fifo"), ["--passes", "--order"]),
        (("--order", "shortest-first"), ["order is 'shortest-first'", "fifo, longest-first"]),
        (("--plot", "map.bmp"), ["plot is 'map.bmp'", ".png"]),
        (("--colour",), ["--colour"]),
    ],
)
def test_unknown_names(cli, problem_file, arguments: tuple[str, ...], words: list[str]) -> None:
    check(cli("plan", problem_file(), "--world", 2, *arguments), *words)


def test_unknown_commands_and_choices(cli, problem_file, tmp_path: Path) -> None:
    path = problem_file()
    check(cli("fly"), "fly")
    check(cli("run", path, "--world", 2, "--on", "tpu"), "--on", "tpu", "cpu")
    check(cli("run", path, "--world", 2, "--profile", "calm"), "profile is 'calm'", "slow-cta")
    check(cli("run", path, "--world", 2, "--seed", -1), "--seed")
    check(cli("dump", path, "--world", 2, "--what", "cubin", "-o", tmp_path), "--what", "cubin")
    check(cli("dump", path, "--world", 2, "--what", "plan", "--arch", "sm_80", "-o", tmp_path), "--arch")
    check(cli("dump", path, "--world", 2, "--what", "cuda", "--arch", "hopper", "-o", tmp_path), "arch is 'hopper'")
    check(cli("dump", path, "--world", 2, "--what", "plan", "--path", "portable", "-o", tmp_path), "--path")
    check(cli("dump", path, "--world", 2, "--what", "cuda", "--path", "tensor", "-o", tmp_path), "--path", "hopper")
    on_ampere = ("--path", "hopper", "--arch", "sm_80")
    check(cli("dump", path, "--world", 2, "--what", "cuda", *on_ampere, "-o", tmp_path), "arch = sm_80", "sm_90a")
    check(cli("run", path, "--world", 2, "-o", tmp_path / "out.txt"), "--output", ".pt")
    check(cli("run", path, "--world", 2, "--trace", tmp_path), "a folder, not a file")
    check(cli("run", path, "--world", 2, "--on", "solo", "--profile", "lifo"), "--profile is 'lifo'", "nothing on solo")


def test_a_kernel_that_cannot_be_generated(cli, problem_file, tmp_path: Path) -> None:
    path = problem_file(dtype="fp32")
    check(cli("dump", path, "--world", 2, "--what", "cuda", "-o", tmp_path / "out"), "dtype = fp32")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "liquidcp-graph 9 placed\n", "hello\n", "liquidcp-graph 1 placed\nproblem {}\n"])
def test_graph_files(cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(text)
    check(cli("opt", path, "--passes", "order"), "line ")
    check(cli("opt", tmp_path / "none.txt", "--passes", "order"), "none.txt")


def test_a_plan_of_another_version(cli, problem_file, tmp_path: Path) -> None:
    saved = tmp_path / "plan.npz"
    cli("plan", problem_file(), "--world", 2, "-o", saved)
    with np.load(saved) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header.json"].tobytes()) | {"format": 2, "version": "7.0"}
    arrays["header.json"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(saved, **arrays)
    check(cli("run", saved), "format 2", "7.0", "format 1")


def test_plan_files(cli, problem_file, tmp_path: Path) -> None:
    saved = tmp_path / "plan.npz"
    cli("plan", problem_file(), "--world", 2, "-o", saved)
    check(cli("plan", saved, "--world", 3), "--world is 3", "2")
    check(cli("plan", saved, "--placement", "zigzag-all"), "--placement", "made already")
    check(cli("dump", saved, "--what", "graph", "-o", tmp_path), "plan file holds no graph")
    saved.write_bytes(saved.read_bytes()[:900])
    check(cli("plan", saved), "torn")


def tensors(path: Path) -> dict[str, torch.Tensor]:
    q, k, v, _ = random_tensors(load_problem(path), seed=0)
    return {"q": q, "k": k, "v": v}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": lambda q: q[:-1]}, ["q: shape is (377, 4, 64)", "(378, 4, 64)"]),
        ({"q": lambda q: q.transpose(0, 1)}, ["q: shape", "exchanged"]),
        ({"k": lambda k: k[:, :1]}, ["k: shape is (378, 1, 64)"]),
        ({"v": lambda v: v.float()}, ["v: dtype is torch.float32", "torch.bfloat16"]),
        ({"q": lambda q: q.to("meta")}, ["q: device is meta", "cpu"]),
        ({"q": lambda q: 3}, ["q: type is int", "tensor"]),
        ({"k": None}, ["k: value is missing"]),
        ({"sinks": lambda _: torch.zeros(4)}, ["sinks", "no sinks"]),
        ({"bias": lambda _: torch.zeros(4)}, ["bias", "only q, k, v, sinks"]),
    ],
)
def test_tensors(cli, problem_file, tmp_path: Path, changes: dict, words: list[str]) -> None:
    path, file = problem_file(), tmp_path / "in.pt"
    given = tensors(path)
    for name, change in changes.items():
        if change is None:
            del given[name]
        else:
            given[name] = change(given.get(name))
    torch.save(given, file)
    check(cli("run", path, "--world", 2, "--tensors", file), *words)


def test_tensors_of_wrong_sinks(cli, problem_file, tmp_path: Path) -> None:
    path, file = problem_file(sinks=True), tmp_path / "in.pt"
    torch.save(tensors(path), file)
    check(cli("run", path, "--world", 2, "--tensors", file), "sinks")
    torch.save(tensors(path) | {"sinks": torch.zeros(5)}, file)
    check(cli("run", path, "--world", 2, "--tensors", file), "sinks: shape is (5,)", "(4,)")


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_tensor_files_are_data(cli, problem_file, tmp_path: Path) -> None:
    path, sprung = problem_file(), tmp_path / "sprung"
    torch.save({"q": Trap(sprung)}, tmp_path / "in.pt")
    check(cli("run", path, "--world", 2, "--tensors", tmp_path / "in.pt"), "--tensors", "torch.save")
    np.savez(tmp_path / "in.npz", q=np.array([Trap(sprung)], dtype=object))
    check(cli("run", path, "--world", 2, "--tensors", tmp_path / "in.npz"), "--tensors", "numpy.savez")
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Trap(sprung)))
    check(cli("run", path, "--world", 2, "--tensors", tmp_path / "raw.npz"), "--tensors")
    assert not sprung.exists()


@pytest.mark.parametrize("name", ["in.txt", "missing.pt", "list.pt", "torn.pt", "torn.npz"])
def test_tensor_files_that_are_none(cli, problem_file, tmp_path: Path, name: str) -> None:
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "list.pt").read_bytes()[:200])
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 and no more")
    check(cli("run", problem_file(), "--world", 2, "--tensors", tmp_path / name), "--tensors")


def test_an_output_that_cannot_be_written(cli, problem_file, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check(cli("plan", problem_file(), "--world", 2, "-o", tmp_path / "file" / "plan.npz"), "file")


@pytest.mark.parametrize("on", ["loopback", "solo"])
def test_worlds_without_a_gpu(cli, problem_file, monkeypatch: pytest.MonkeyPatch, on: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check(cli("run", problem_file(), "--world", 2, "--on", on), "CUDA device", "CPU world")
