"""Planning ahead of training: worker processes of torch's DataLoader plan the next batches while this one runs.

A batch stays in this process; its problem (lengths and heads) goes to a worker, and the plan comes back.
On a rank, next to a model::

    for batch, plan in PlannedBatches(loader, make_problem, cp_size=8, placement="buddy-ring"):
        tokens = shard_tokens(plan, rank, batch["tokens"])  # [total_q] -> [local tokens]
        labels = shard_tokens(plan, rank, batch["labels"])  # shift labels before sharding, not after
        positions = position_ids(plan, rank)  # for rotary embeddings
        weights = loss_weights(plan, rank, batch["weights"])  # ranks have different numbers of tokens
        loss = (per_token_loss(model(tokens, positions, plan), labels) * weights).sum()

The helpers are in ``liquidcp_runtime``. All ranks of a group must see the same batches in the same order; each then
makes the same plan by itself, and fingerprints are compared before anything runs.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from liquidcp_compiler.driver import PLACEMENTS, check_world, compile_plan
from liquidcp_compiler.errors import BatchPlanError, InvalidField
from liquidcp_compiler.ir.plan import Plan
from liquidcp_compiler.ir.problem import Problem
from liquidcp_compiler.ir.problem_fields import whole_number
from liquidcp_compiler.passes.base import AnyPass

Batch = TypeVar("Batch")
_END: Any = object()


class PlannedBatches(Generic[Batch]):
    """Iterates over (batch, plan), in the order of the source, planning ahead in worker processes.

    Args:
        source: anything that can be iterated, e.g. a DataLoader with workers of its own; or a map-style dataset
            (``__getitem__`` and ``__len__``) whose items are batches. Iterated once for each pass over this object.
        make_problem: the problem of a batch, from its lengths. Runs in this process, so keep it light.
        cp_size: number of ranks.
        placement, passes, deterministic, verify, workspace_limit: as for :func:`liquidcp_compiler.plan`.
        num_workers: processes that plan; 0 plans here, when a batch is asked for.
        prefetch: batches that each worker has in hand, 2 by default; None without workers.
        start_method: how workers start (``fork``, ``spawn``, ``forkserver``); None takes Python's default.

    Raises InvalidField for options that make no sense. While iterating, BatchPlanError with ``batch_idx`` for a batch
    whose problem or plan cannot be made, or before which the source fails; earlier batches come out first.
    """

    def __init__(
        self,
        source: Iterable[Batch] | Any,
        make_problem: Callable[[Batch], Problem],
        cp_size: int,
        *,
        placement: str | AnyPass | None = None,
        passes: tuple[AnyPass, ...] | None = None,
        deterministic: bool = False,
        verify: str | None = None,
        workspace_limit: int | None = None,
        num_workers: int = 2,
        prefetch: int | None = None,
        start_method: str | None = None,
    ) -> None:
        if isinstance(placement, str) and placement not in PLACEMENTS:
            raise InvalidField("placement", placement, ", ".join(PLACEMENTS))
        self.source, self.make_problem = source, make_problem
        self.num_workers = whole_number("num_workers", num_workers)
        self.prefetch, self.start_method = _prefetch(prefetch, self.num_workers), start_method
        methods = multiprocessing.get_all_start_methods() if num_workers else []
        if start_method is not None and start_method not in methods:
            raise InvalidField("start_method", start_method, ", ".join(methods) or "None without workers")
        options = {"placement": placement, "passes": passes, "deterministic": deterministic, "verify": verify}
        self._planner = _Planner(cp_size=check_world(cp_size), options=options | {"workspace_limit": workspace_limit})

    def __len__(self) -> int:
        """Number of batches, where the source knows. Raises TypeError where it does not."""
        if not isinstance(self.source, Sized):
            raise TypeError(f"a source of type {type(self.source).__name__} has no length")
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[Batch, Plan]]:
        from torch.utils.data import DataLoader

        waiting: deque[Any] = deque()
        loader = DataLoader(
            self._planner,  # type: ignore[arg-type] (no Dataset by name: indexing is all that is used of it)
            batch_size=None,
            sampler=self._requests(waiting),  # type: ignore[arg-type] (its items are requests, not numbers)
            collate_fn=_unchanged,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch,
            multiprocessing_context=self.start_method,
        )
        for batch_idx, result in enumerate(_numbered(iter(loader))):
            batch = waiting.popleft()
            if isinstance(result, _Failure):
                raise BatchPlanError(batch_idx, result.kind, result.message, result.details) from result.cause(batch)
            yield batch, Plan(**result)

    def _requests(self, waiting: deque[Any]) -> Iterator[Problem | _Failure]:
        """The problems of the batches, in order; an error takes its batch's place in the queue."""
        batches = _batches(self.source)
        while True:
            try:
                batch = next(batches, _END)
                if batch is _END:
                    return
                problem = self.make_problem(batch)  # its StopIteration is an error too, not the end of the source
            except Exception as error:
                waiting.append(error)
                yield _Failure(kind=type(error).__name__, message=str(error))
                return
            waiting.append(batch)
            yield problem


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why a batch has no plan, in text: exceptions themselves do not all travel between processes."""

    kind: str
    message: str
    details: str = ""

    def cause(self, batch: Any) -> Exception | None:
        """The exception, where it was raised in this process: it then stands in its batch's place."""
        return batch if not self.details and isinstance(batch, Exception) else None


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """What runs in a worker, as a dataset whose index is a problem."""

    cp_size: int
    options: dict[str, Any]

    def __getitem__(self, request: Problem | _Failure) -> dict[str, Any] | _Failure:
        if isinstance(request, _Failure):
            return request
        try:
            plan = compile_plan(request, self.cp_size, **self.options).plan
        except Exception as error:
            return _Failure(kind=type(error).__name__, message=str(error), details=traceback.format_exc())
        values = {f.name: getattr(plan, f.name) for f in fields(plan)}
        return values | {"tables": dict(plan.tables), "offsets": dict(plan.offsets)}


def _unchanged(result: Any) -> Any:
    """In place of torch's own conversion, which would turn the tables into tensors."""
    return result


def _batches(source: Any) -> Iterator[Any]:
    if hasattr(source, "__iter__"):
        return iter(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return (source[i] for i in range(len(source)))
    raise InvalidField("source", type(source).__name__, "something to iterate, or with __getitem__ and __len__")


def _numbered(results: Iterator[Any]) -> Iterator[Any]:
    """The results; a worker that dies raises with the number of the batch that was waited for."""
    batch_idx = 0
    while True:
        try:
            result = next(results)
        except StopIteration:
            return
        except RuntimeError as error:
            raise BatchPlanError(batch_idx, "RuntimeError", f"a worker stopped: {error}") from error
        yield result
        batch_idx += 1


def _prefetch(prefetch: int | None, num_workers: int) -> int | None:
    if num_workers == 0:
        if prefetch is not None:
            raise InvalidField("prefetch", prefetch, "None without workers: nothing is planned ahead")
        return None
    return 2 if prefetch is None else whole_number("prefetch", prefetch, 1)
