"""Samplers of lengths, measured histograms, and the serving trace; files are made here, in the public forms."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.workloads import (
    DATASETS,
    Histogram,
    LogNormal,
    Measured,
    Packed,
    Rounding,
    load_lengths,
    load_trace,
    sample_batch,
)

K = 1024


def draw(sampler, count: int, seed: int = 0) -> np.ndarray:
    return np.array(list(islice(sampler.documents(np.random.default_rng(seed)), count)))


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("budget", [64 * K, 128 * K, 256 * K])
def test_batches_fill_their_budget(name, budget):
    batch = sample_batch(name, budget, seed=3)
    assert sum(batch) == budget
    assert all(n > 0 and n % 256 == 0 for n in batch)
    assert all(n % 2048 == 0 for n in batch[:-1] if n >= 8 * K)


def test_a_seed_gives_the_same_batch_again():
    assert sample_batch("github", 64 * K, 7) == sample_batch("github", 64 * K, 7)
    assert sample_batch("github", 64 * K, 7) != sample_batch("github", 64 * K, 8)
    rng = np.random.default_rng(7)
    first, second = sample_batch("github", 64 * K, rng), sample_batch("github", 64 * K, rng)
    assert first == sample_batch("github", 64 * K, 7)
    assert first != second


@pytest.mark.parametrize(("name", "mean"), [("arxiv", 11930), ("freelaw", 3860), ("github", 1344), ("pile-cc", 1108)])
def test_means_are_the_published_ones(name, mean):
    assert draw(DATASETS[name], 100_000).mean() == pytest.approx(mean, rel=0.03)


def test_prolong_is_mostly_long_and_has_a_longer_mix_from_256k():
    lengths = draw(DATASETS["prolong"], 20_000)
    assert lengths.max() == 65536
    assert lengths[lengths == 65536].sum() / lengths.sum() == pytest.approx(0.6, abs=0.03)
    batches = [sample_batch("prolong", 256 * K, seed) for seed in range(200)]
    assert [256 * K] in batches, "a document of 512K, cut to the budget"


@given(length=st.integers(1, 100_000), multiple=st.sampled_from([1, 256]), long=st.sampled_from([256, 2048]))
def test_rounding_goes_to_the_nearest_multiple(length, multiple, long):
    rounded = Rounding(multiple=multiple, long_multiple=long).round(length)
    unit = long if length >= 8192 else multiple
    assert rounded % unit == 0
    assert rounded >= unit
    assert abs(rounded - length) <= unit / 2 or rounded == unit


def test_the_last_document_is_cut_or_dropped():
    sampler = Measured(lengths=np.array([3000]))
    keep = {"multiple": 1, "long_multiple": 1}
    assert sample_batch(sampler, 8000, 0, Rounding(**keep)) == [3000, 3000, 2000]
    assert sample_batch(sampler, 8000, 0, Rounding(**keep, last="drop")) == [3000, 3000]
    assert sample_batch(sampler, 6000, 0, Rounding(**keep, last="drop")) == [3000, 3000]
    assert sample_batch(sampler, 2000, 0, Rounding(**keep, last="drop")) == [2000], "never an empty batch"
    assert sample_batch(sampler, 8100, 0) == [3072, 3072, 1792]


def test_log_normal_clips():
    lengths = draw(LogNormal(mean=1000, sigma=2.0, least=100, most=5000), 5000)
    assert (lengths.min(), lengths.max()) == (100, 5000)


def test_packs_are_filled_exactly():
    sampler = Packed(long=((700, 0.5),), fill=Measured(lengths=np.array([300])), pack=1000)
    lengths = draw(sampler, 2000)
    assert set(lengths.tolist()) == {700, 300, 100}
    assert abs((lengths == 700).sum() - (lengths == 100).sum()) < 150


def test_histograms_stay_inside_their_bins():
    lengths = draw(Histogram(low=np.array([0, 10]), high=np.array([2, 20]), weight=np.array([1.0, 3.0])), 4000)
    assert set(lengths.tolist()) == {1, *range(10, 20)}
    assert (lengths >= 10).mean() == pytest.approx(0.75, abs=0.03)
    clipped = Histogram(low=np.array([10]), high=np.array([20]), weight=np.array([1.0]), most=12)
    assert draw(clipped, 500).max() == 12


@pytest.mark.parametrize(
    ("name", "text", "lengths"),
    [
        ("bins.json", '{"[0,2)": 0.25, "[8,9)": 0.75}', {1, 8}),
        ("list.json", "[5, 7]", {5, 7}),
        ("table.csv", 'range,number,percentage(%)\n"[0, 1]",10,1\n"[4, 5]",20,99\n', {1, 4, 5}),
    ],
)
def test_measured_lengths_from_a_file(tmp_path, name, text, lengths):
    path = tmp_path / name
    path.write_text(text)
    assert set(draw(load_lengths(path), 2000).tolist()) == lengths
    assert draw(load_lengths(path, most=4), 500).max() <= 4
    assert sum(sample_batch(load_lengths(path), 4096, 0)) == 4096


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "file of lengths is"),
        ("a.json", "3", "file of lengths is"),
        ("a.json", '{"0-32": 0.5}', "bin is '0-32'"),
        ("a.json", '{"[0,32)": -1}', r"\[0,32\) is -1"),
        ("a.json", '{"[0,32)": "x"}', r"\[0,32\) is 'x'"),
        ("a.json", '{"[32,8)": 1}', r"bin is \(32, 8\)"),
        ("a.json", '{"[0,8)": 0}', "at least one"),
        ("a.json", "{}", "at least one"),
        ("a.json", "[]", "at least one"),
        ("a.json", "[4, 0]", r"\[1\] is 0"),
        ("a.json", "[4, true]", r"\[1\] is True"),
        ("a.csv", "x,y\n", "columns"),
        ("a.csv", 'range,number\n"[0, 1]",4\n"0 to 5",4\n', "line 3"),
        ("a.csv", 'range,number\n"[0, 1]",many\n', "line 2"),
        ("none.json", None, "readable"),
    ],
)
def test_files_of_lengths_that_make_no_sense(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidField, match=message):
        load_lengths(path)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: sample_batch("books", 4096, 0), "dataset"),
        (lambda: sample_batch("arxiv", 100, 0), "token_budget"),
        (lambda: sample_batch("arxiv", 4096, -1), "seed"),
        (lambda: Rounding(multiple=0), "multiple"),
        (lambda: Rounding(last="keep"), "last"),  # type: ignore[arg-type]
        (lambda: LogNormal(mean=0, sigma=1), "mean"),
        (lambda: LogNormal(mean=10, sigma=-1), "sigma"),
        (lambda: LogNormal(mean=10, sigma=1, least=5, most=4), "most"),
        (lambda: Packed(long=((5, 1.5),), fill=DATASETS["arxiv"]), "long"),
        (lambda: Measured(lengths=np.array([0])), "lengths"),
    ],
)
def test_options_that_make_no_sense(make, field):
    with pytest.raises(InvalidField, match=field):
        make()


def request(**fields) -> str:
    data = {"timestamp": 0, "input_length": 513, "output_length": 4, "hash_ids": [0, 9]}
    return json.dumps({k: v for k, v in (data | fields).items() if v is not None})


def trace_file(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_traces_are_columns(tmp_path):
    lines = [request(), "", request(timestamp=3000, input_length=512, hash_ids=[0], user="kept out"), ""]
    trace = load_trace(trace_file(tmp_path, *lines))
    assert len(trace) == 2
    assert trace.timestamp.tolist() == [0, 3000]
    assert trace.input_length.tolist() == [513, 512]
    assert trace.output_length.tolist() == [4, 4]
    assert [trace.blocks(i).tolist() for i in range(2)] == [[0, 9], [0]]
    assert {x.dtype for x in (trace.timestamp, trace.input_length, trace.hash_ids, trace.hash_ptr)} == {
        np.dtype("int64")
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 3 is"),
        ("[1]", r"line 3 is"),
        (request(timestamp=None), r"line 3.timestamp is None"),
        (request(timestamp=-1), r"line 3.timestamp is -1"),
        (request(timestamp=4), r"line 3.timestamp is 4; allowed: at least 5"),
        (request(timestamp=5, input_length=0), r"line 3.input_length is 0"),
        (request(timestamp=5, input_length=1.5), r"line 3.input_length is 1.5"),
        (request(timestamp=5, output_length=True), r"line 3.output_length is True"),
        (request(timestamp=5, hash_ids=[1]), r"line 3.hash_ids is 1; allowed: 2 ids"),
        (request(timestamp=5, hash_ids=[1, "x"]), r"line 3.hash_ids"),
        (request(timestamp=5, hash_ids=7), r"line 3.hash_ids"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    with pytest.raises(InvalidField, match=message):
        load_trace(trace_file(tmp_path, request(timestamp=5), "", line))


def test_traces_that_are_none(tmp_path):
    with pytest.raises(InvalidField, match="at least one request"):
        load_trace(trace_file(tmp_path))
    with pytest.raises(InvalidField, match="readable"):
        load_trace(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(InvalidField, match="line 1"):
        load_trace(tmp_path / "b.jsonl")


@pytest.mark.parametrize("most", [True, 1.5, float("nan"), "5", 0])
def test_a_clip_is_a_whole_number(tmp_path, most):
    for text in ("[5, 6]", '{"[0,32)": 1}'):
        path = tmp_path / "lengths.json"
        path.write_text(text)
        with pytest.raises(InvalidField, match="most"):
            load_lengths(path, most=most)


@pytest.mark.parametrize(
    "text", ['{"[0,' + "9" * 5000 + ')": 1}', '{"[0,32)": 1' + "0" * 400 + "}", '{"[0,32)": 1e308}']
)
def test_numbers_beyond_all_lengths_are_named(tmp_path, text):
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(InvalidField, match="lengths.json"):
        load_lengths(path)
