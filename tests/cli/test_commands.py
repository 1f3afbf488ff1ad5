"""Every command: what it prints, as text and as JSON, and what it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from liquidcp_compiler import Plan, load_problem, parse_graph, plan
from liquidcp_compiler.cli import main
from liquidcp_compiler.cli.demo import LENGTHS
from liquidcp_compiler.cli.tensors import random_tensors
from liquidcp_runtime.reference import reference_attention
from tests.perfetto import complete_events, read_perfetto

COMMANDS = ("demo", "plan", "dump", "run", "opt", "doctor")


def test_help_names_every_command(cli) -> None:
    done = cli()
    assert done.code == 0
    assert all(f"\n  {name} " in done.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(cli, name: str) -> None:
    done = cli(name, "--help")
    assert done.code == 0
    assert "--json" in done.out


def test_help_starts_without_heavy_imports() -> None:
    code = (
        "import sys\nfrom liquidcp_compiler.cli import main\nmain(['--help'])\n"
        "print(sorted({'torch', 'numba', 'matplotlib', 'networkx', 'cuda.bindings'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_same_program() -> None:
    command = [sys.executable, "-m", "liquidcp_compiler.cli", "plan", "missing.json", "--world", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: problem file is 'missing.json'")
    assert len(done.stderr.splitlines()) == 1


def test_version(cli) -> None:
    assert cli("--version").out == "liquidcp 0.1.0\n"


def test_plan_prints_a_table_of_ranks(cli, problem_file) -> None:
    done = cli("plan", problem_file(), "--world", 2)
    assert done.code == 0
    assert done.err == ""
    assert "2 ranks, tiles of 128 tokens" in done.out
    rows = [line.split() for line in done.out.splitlines() if line.strip()[:1] in ("0", "1") and "%" in line]
    assert [row[0] for row in rows] == ["0", "1"]
    assert sum(int(row[1]) for row in rows) == 378


def test_plan_as_json(cli, problem_file) -> None:
    path = problem_file()
    data = cli("plan", path, "--world", 2, "--json").json()
    expected = plan(load_problem(path), 2)
    assert data["fingerprint"] == f"{expected.fingerprint:016x}"
    assert [r["rank"] for r in data["ranks"]] == [0, 1]
    assert sum(r["q_tokens"] for r in data["ranks"]) == 378
    assert sum(r["attention_share"] for r in data["ranks"]) == pytest.approx(1.0)
    assert data["bytes_pulled"] == sum(r["bytes_pulled"] for r in data["ranks"])
    assert all(key == key.lower() and "-" not in key and " " not in key for key in data)


def test_plan_draws_and_saves(cli, problem_file, tmp_path: Path) -> None:
    path, picture, saved = problem_file(), tmp_path / "map.png", tmp_path / "deep" / "plan.npz"
    done = cli("plan", path, "--world", 2, "--plot", picture, "-o", saved)
    assert done.code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert Plan.load(saved).fingerprint == plan(load_problem(path), 2).fingerprint
    assert str(picture) in done.out


def test_a_plan_file_is_taken_for_a_problem_file(cli, problem_file, tmp_path: Path) -> None:
    saved = tmp_path / "plan.npz"
    made = cli("plan", problem_file(), "--world", 2, "-o", saved, "--json").json()
    read = cli("plan", saved, "--json").json()
    assert read["fingerprint"] == made["fingerprint"]
    assert read["ranks"] == made["ranks"]
    refused = cli("plan", saved, "--order", "fifo")
    assert refused.code == 2
    assert "--order is 'fifo'; allowed: nothing: the plan file was made already" in refused.err


def test_placement_options_and_passes(cli, problem_file) -> None:
    path = problem_file()
    half = cli("plan", path, "--world", 2, "--placement", "zigzag-all{tile=64}", "--json").json()
    assert half["tile"] == 64
    passes = "zigzag-all{tile=64},insert-transfers,coalesce,split-kv,order,insert-sync"
    assert cli("plan", path, "--world", 2, "--passes", passes, "--json").json()["fingerprint"] == half["fingerprint"]
    static = cli("plan", path, "--world", 2, "--deterministic", "--json").json()
    assert static["counts"]["ready_rows"] == 0


def test_order_of_computes(cli, problem_file) -> None:
    path = problem_file()
    usual, longest = (
        cli("plan", path, "--world", 2, *more, "--json").json()["fingerprint"]
        for more in ((), ("--order", "longest-first"))
    )
    assert longest == f"{plan(load_problem(path), 2, order='longest-first').fingerprint:016x}"
    assert longest != usual
    passes = "zigzag-all,insert-transfers,coalesce,split-kv,order{policy=longest-first},insert-sync"
    assert cli("plan", path, "--world", 2, "--passes", passes, "--json").json()["fingerprint"] == longest
    assert cli("run", path, "--world", 2, "--order", "longest-first").code == 0


def test_dump_writes_graph_plan_and_cuda(cli, problem_file, tmp_path: Path) -> None:
    path, folder = problem_file(), tmp_path / "out"
    what = ("--what", "graph", "--what", "plan", "--what", "cuda")
    data = cli("dump", path, "--world", 2, *what, "--arch", "sm_90a", "-o", folder, "--json").json()
    expected = plan(load_problem(path), 2)
    assert parse_graph((folder / "graph.txt").read_text()).world == 2
    assert Plan.load(folder / "plan.npz").fingerprint == expected.fingerprint
    text = (folder / "plan.txt").read_text()
    for name in expected.tables:
        assert f"  {name}:" in text
    assert "#include <liquidcp" not in Path(data["cuda"][0]["source"]).read_text()
    (compiled,) = data["cuda"][0]["compiled"]
    assert compiled["registers"] > 0
    assert Path(compiled["cubin"]).read_bytes().startswith(b"\x7fELF")
    assert not list(folder.glob(".*"))


def test_dump_gives_the_kernel_of_the_path(cli, problem_file, tmp_path: Path) -> None:
    dump = ("dump", problem_file(), "--world", 2, "--what", "cuda", "-o", tmp_path / "out", "--json")
    ((kernel,),) = (cli(*dump, "--path", "portable").json()["cuda"],)
    assert (kernel["path"], kernel["compiled"]) == ("portable", [])
    assert "portable: mma.sync" in Path(kernel["source"]).read_text()


def test_dumped_graphs_are_the_same_on_every_run(cli, problem_file, tmp_path: Path) -> None:
    path = problem_file()
    for name in ("a", "b"):
        assert cli("dump", path, "--world", 2, "--what", "graph", "-o", tmp_path / name).code == 0
    first, second = ((tmp_path / name / "graph.txt").read_text() for name in ("a", "b"))
    assert first == second
    assert 'loc 0 "problem.json"' in first


def test_run_prints_both_errors(cli, problem_file) -> None:
    done = cli("run", problem_file(), "--world", 2)
    assert done.code == 0
    values = dict(line.split() for line in done.out.splitlines() if line.startswith("max_"))
    assert 0 < float(values["max_rel_error"]) < 0.012
    assert float(values["max_lse_error"]) < 1e-5


@pytest.mark.parametrize("profile", ["lifo", "late-rank"])
def test_run_decode_with_a_profile_as_json(cli, decode_file: Path, profile: str) -> None:
    data = cli("run", decode_file, "--world", 2, "--profile", profile, "--seed", 3, "--json").json()
    assert data["ok"] is True
    assert data["max_rel_error"] <= data["max_rel_error_limit"]
    assert data["seed"] == 3


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
@pytest.mark.parametrize("sinks", [False, True])
def test_run_with_given_tensors(cli, problem_file, tmp_path: Path, suffix: str, sinks: bool) -> None:
    path = problem_file(sinks=sinks)
    problem = load_problem(path)
    q, k, v, extra = random_tensors(problem, seed=5)
    given = {"q": q, "k": k, "v": v} | ({"sinks": extra} if extra is not None else {})
    tensors, result = tmp_path / f"in{suffix}", tmp_path / "out.pt"
    if suffix == ".pt":
        torch.save(given, tensors)
    else:
        np.savez(tensors, **{name: x.float().numpy() for name, x in given.items()})
    data = cli("run", path, "--world", 3, "--tensors", tensors, "-o", result, "--json").json()
    assert data["ok"] is True
    saved = torch.load(result, weights_only=True)
    out, lse = reference_attention(problem, q, k, v, extra)
    torch.testing.assert_close(saved["out"].double(), out, rtol=0.02, atol=0.02)
    torch.testing.assert_close(saved["lse"].double(), lse, rtol=1e-5, atol=1e-5)


def test_run_fails_when_errors_are_too_large(cli, problem_file, monkeypatch: pytest.MonkeyPatch) -> None:
    from liquidcp_compiler.cli import run_command

    right = run_command.run_on

    def wrong(*arguments):
        out, lse, timeline = right(*arguments)
        return out * 1.1, lse, timeline

    monkeypatch.setattr(run_command, "run_on", wrong)
    done = cli("run", problem_file(), "--world", 2)
    assert done.code == 1
    assert "FAIL" in done.out


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_run_saves_a_timeline(cli, decode_file: Path, problem_file, tmp_path: Path, kind: str) -> None:
    path = decode_file if kind == "decode" else problem_file()
    trace = tmp_path / "deep" / "trace.json"
    done = cli("run", path, "--world", 2, "--trace", trace)
    assert done.code == 0
    document = read_perfetto(trace)
    names = {e["name"] for e in complete_events(document)}
    made = plan(load_problem(path), 2)
    tables = ("transfers", "rows", "reductions")
    tasks = {made.task_name(r, t, i) for t in tables for r in range(2) for i in range(len(made.table(t, r)))}
    assert tasks == names - {"wait"}
    assert f"timeline  {trace}" in done.out
    assert "timeline by event core, cost-model" in done.out
    data = cli("run", path, "--world", 2, "--trace", trace, "--json").json()["timeline"]
    assert data["file"] == str(trace)
    assert data["dropped"] == 0
    for rank, row in enumerate(data["ranks"]):
        assert row["rank"] == rank
        assert sum(row["busy_ns"].values()) + row["wait_ns"] + row["unrecorded_ns"] == row["cta_ns"]
        assert 0 <= row["tail_idle_fraction"] <= 1
    stages = {stage for row in data["ranks"] for stage in row["tail_idle"]}
    assert stages == {"comm", "compute"} | ({"reduction"} if kind == "decode" else set())
    assert all(f" {stage} tail" in done.out for stage in stages)


def test_opt_goes_from_text_to_text(cli, problem_file, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    passes = "zigzag-all,insert-transfers,coalesce,split-kv,order,insert-sync"
    cli("dump", problem_file(), "--world", 2, "--what", "graph", "-o", folder)
    authored = tmp_path / "authored.txt"
    authored.write_text(_authored(load_problem(problem_file())))
    done = cli("opt", authored, "--world", 2, "--passes", passes)
    assert done.code == 0
    assert done.out == (folder / "graph.txt").read_text()
    data = cli("opt", authored, "--world", 2, "--passes", "zigzag-all", "--json").json()
    assert data["stage"] == "placed"
    placed = tmp_path / "placed.txt"
    assert cli("opt", authored, "--world", 2, "--passes", "zigzag-all", "-o", placed).code == 0
    assert placed.read_text() == data["text"]
    assert cli("opt", placed, "--passes", passes.partition(",")[2]).out == done.out


def _authored(problem) -> str:
    from liquidcp_compiler import author, print_graph

    return print_graph(author(problem, loc="problem.json"))


def test_doctor_is_content_without_a_gpu(cli) -> None:
    done = cli("doctor")
    assert done.code == 0
    assert "LIQUIDCP_CACHE_DIR" in done.out
    assert "LIQUIDCP_KERNELS" in done.out
    data = cli("doctor", "--json").json()
    assert data["problems"] == []
    assert 90 in data["nvrtc"]["archs"]
    assert set(data["packages"]) >= {"torch", "numba"}


def test_doctor_names_a_wrong_option(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIQUIDCP_VERIFY", "sometimes")
    done = cli("doctor")
    assert done.code == 1
    assert "problem: LIQUIDCP_VERIFY is 'sometimes'" in done.out


@pytest.mark.slow
def test_demo(cli, tmp_path: Path) -> None:
    done = cli("demo", "-o", tmp_path / "demo")
    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    sources = [Path(line.split()[1]) for line in lines if line.startswith("CUDA")]
    assert sources
    assert all(path.exists() for path in sources)
    assert sum(line.startswith("max_rel_error") for line in lines) == 2
    assert "FAIL" not in done.out
    assert " ".join(map(str, LENGTHS)) in done.out
    assert {p.name for p in (tmp_path / "demo" / "prefill").iterdir()} >= {"plan.npz", "regions.png"}


def test_an_interrupt_has_its_own_code(monkeypatch: pytest.MonkeyPatch, capsys, problem_file) -> None:
    from liquidcp_compiler.cli import plan_command

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_command, "load_work", interrupt)
    assert main(["plan", str(problem_file()), "--world", "2"]) == 130
    assert "Traceback" not in capsys.readouterr().err
