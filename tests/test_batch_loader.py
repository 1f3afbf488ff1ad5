"""Planning ahead in workers, and what a planned batch is taken apart with."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from liquidcp_compiler.batch_loader import PlannedBatches
from liquidcp_compiler.driver import plan
from liquidcp_compiler.errors import BatchPlanError, InvalidField, PlanError, TensorError
from liquidcp_compiler.ir.problem import PrefillProblem
from liquidcp_compiler.passes.base import PassContext
from liquidcp_compiler.passes.megatron_hybrid import MegatronHybrid
from liquidcp_runtime import loss_weights, position_ids, shard_tokens
from liquidcp_runtime.sharding import shard_map
from tests.graphs import decode_problem, prefill_problem

LENGTHS = [[300, 70], [5], [128] * 4, [1000], [33, 2], [600]]


def problem(lengths: list[int]) -> PrefillProblem:
    return prefill_problem(lengths)


def loader(source, **options) -> PlannedBatches:
    return PlannedBatches(source, problem, 2, **options)


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, None), (1, 1), (2, None), (2, 4)])
def test_batches_come_in_order_with_their_own_plans(num_workers, prefetch):
    wanted = [plan(problem(n), 2, placement="all-local").fingerprint for n in LENGTHS]
    got = list(loader(LENGTHS, placement="all-local", num_workers=num_workers, prefetch=prefetch))
    assert [batch for batch, _ in got] == LENGTHS
    assert [made.fingerprint for _, made in got] == wanted
    assert all(made.world == 2 and not made.table("rows", 0).flags.writeable for _, made in got)


def test_batches_are_the_source_s_own_objects():
    batches = [{"lengths": n, "tokens": torch.arange(sum(n))} for n in LENGTHS]
    got = PlannedBatches(batches, lambda b: problem(b["lengths"]), 2, num_workers=2)
    assert all(batch is own for (batch, _), own in zip(got, batches, strict=True))


def test_every_pass_over_it_iterates_the_source_once():
    passes = []

    class Source:
        def __iter__(self):
            passes.append(0)
            for n in LENGTHS:
                passes[-1] += 1
                yield n

    batches = loader(Source(), num_workers=2)
    assert len(list(batches)) == len(list(batches)) == len(LENGTHS)
    assert passes == [len(LENGTHS)] * 2


class Indexed:
    """A map-style dataset, which does not say where it ends but by its length."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> list[int]:
        return [10 + i]


def test_map_style_datasets_and_torch_loaders_are_sources():
    assert [batch for batch, _ in loader(Indexed(), num_workers=0)] == [[10], [11], [12]]
    assert len(loader(Indexed())) == 3
    torch_loader = torch.utils.data.DataLoader(LENGTHS, batch_size=None, collate_fn=list)  # type: ignore[arg-type]
    assert [batch for batch, _ in loader(torch_loader, num_workers=1)] == LENGTHS


def test_sources_without_a_length():
    assert len(list(loader(iter(LENGTHS), num_workers=0))) == len(LENGTHS)
    with pytest.raises(TypeError, match="has no length"):
        len(loader(iter(LENGTHS)))
    with pytest.raises(InvalidField, match="source"):
        list(loader(7, num_workers=0))


def failing(source, **options) -> tuple[list, BatchPlanError]:
    """The batches that came out, and the error after them."""
    got = []
    with pytest.raises(BatchPlanError) as caught:
        got.extend(batch for batch, _ in loader(source, **options))
    return got, caught.value


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_while_planning_names_its_batch(num_workers):
    placement = MegatronHybrid(target_tokens=600)
    got, error = failing([*LENGTHS, [2000], [7]], placement=placement, num_workers=num_workers)
    assert got == LENGTHS
    assert (error.batch_idx, error.kind) == (6, "InvalidField")
    assert str(error).startswith("batch 6: InvalidField: lengths[0] is 2000")
    assert "in place" in error.details, "the worker's traceback"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_make_problem_names_its_batch(num_workers):
    got, error = failing([[5], [6], [-1], [7]], num_workers=num_workers)
    assert (got, error.batch_idx) == ([[5], [6]], 2)
    assert isinstance(error.__cause__, InvalidField)


def test_a_stop_iteration_in_make_problem_is_an_error_and_no_end():
    problems = iter([problem([5])])
    batches = iter(PlannedBatches([[5], [6]], lambda _: next(problems), 2, num_workers=0))
    next(batches)
    with pytest.raises(BatchPlanError, match="StopIteration") as caught:
        next(batches)
    assert caught.value.batch_idx == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_source_names_its_batch(num_workers):
    def source():
        yield [5]
        raise OSError("disk gone")

    got, error = failing(source(), num_workers=num_workers)
    assert (got, error.batch_idx, error.kind) == ([[5]], 1, "OSError")
    assert isinstance(error.__cause__, OSError)


class Deadly(MegatronHybrid):
    """Ends its process, as the system does when memory runs out."""

    def apply(self, graph, context: PassContext):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_an_error_and_no_hang():
    got, error = failing(LENGTHS, placement=Deadly(), num_workers=1)
    assert got == []
    assert error.batch_idx == 0
    assert "a worker stopped" in str(error)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"placement": "none"}, "placement"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 0, "prefetch": 2}, "prefetch"),
        ({"num_workers": 1, "prefetch": 0}, "prefetch"),
        ({"num_workers": 0, "start_method": "spawn"}, "start_method"),
        ({"start_method": "thread"}, "start_method"),
    ],
)
def test_options_that_make_no_sense(options, field):
    with pytest.raises(InvalidField, match=field):
        loader(LENGTHS, **options)


def test_worlds_that_are_none():
    with pytest.raises(InvalidField, match="cp_size"):
        PlannedBatches(LENGTHS, problem, 0)


@pytest.mark.parametrize("placement", ["all-local", "zigzag-all", "magi-chunks", "megatron-hybrid"])
def test_losses_of_uneven_shards_add_up_to_the_mean_over_tokens(placement):
    made = plan(problem([300, 70, 9]), 4, placement=placement)
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(379, generator=generator)
    weights = (torch.rand(379, generator=generator) < 0.7).float()
    local = [(shard_tokens(made, r, losses) * loss_weights(made, r, weights)).sum() for r in range(4)]
    torch.testing.assert_close(sum(local), (losses * weights).sum() / weights.sum())
    averaged = [loss_weights(made, r, weights, averaged_over=4, total=1000.0) for r in range(4)]
    assert sum(float(x.sum()) for x in averaged) / 4 == pytest.approx(float(weights.sum()) / 1000)


def test_position_ids_fit_the_tokens_of_a_shard():
    made = plan(problem([300, 70]), 2, placement="magi-chunks")
    position = torch.cat((torch.arange(300), torch.arange(70)))
    for rank in range(2):
        assert (shard_tokens(made, rank, position) == position_ids(made, rank)).all()
    every = torch.cat([shard_map(made, rank).q_index for rank in range(2)])
    assert np.array_equal(every.sort().values, np.arange(370))


def test_loss_weights_that_make_no_sense():
    made = plan(problem([300]), 2)
    assert (loss_weights(made, 0, torch.zeros(300)) == 0).all()
    with pytest.raises(TensorError, match="300"):
        loss_weights(made, 0, torch.ones(299))
    with pytest.raises(PlanError, match="prefill"):
        loss_weights(plan(decode_problem(), 2), 0, torch.ones(28))
