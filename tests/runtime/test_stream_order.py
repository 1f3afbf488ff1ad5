"""The order of a world's work on streams, on the CPU: with streams that only note what they are told."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import PlanError
from liquidcp_runtime import device_world, plan_slot, plan_upload, stream_order
from liquidcp_runtime.device_options import DeviceOptions
from liquidcp_runtime.device_world import DeviceWorld
from liquidcp_runtime.stream_order import StreamOrder
from liquidcp_runtime.symmetric_heap import SymmetricHeap
from tests.numerics import prefill

CPU = torch.device("cpu")


class Stream:
    """A stream by its handle."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream, self.waited = handle, 0

    def wait_event(self, event: object) -> None:
        self.waited += 1


class Event:
    """An event that knows where it was recorded last."""

    def __init__(self) -> None:
        self.recorded: list[Stream] = []
        self.synchronized = 0

    def record(self, stream: Stream) -> None:
        self.recorded.append(stream)

    def synchronize(self) -> None:
        self.synchronized += 1


class Cuda:
    """What torch says of the device: its current stream, and whether that is being captured."""

    def __init__(self) -> None:
        self.stream, self.capturing = Stream(1), False


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    state = Cuda()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(stream_order, "raw_stream", lambda _: state.stream.cuda_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: state.stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    return state


def take_turn(order: StreamOrder) -> int:
    with order.turn() as handle:
        return handle


def end_of(order: StreamOrder) -> Any:
    return order._end


def test_another_stream_waits_for_the_last_turn(cuda: Cuda) -> None:
    order, first, second = StreamOrder(CPU), cuda.stream, Stream(2)
    assert take_turn(order) == take_turn(order) == 1
    assert first.waited == 0
    cuda.stream = second
    assert take_turn(order) == 2
    assert second.waited == 1
    assert end_of(order).recorded == [first, first, second]


def test_a_turn_that_raises_is_waited_for_too(cuda: Cuda) -> None:
    order = StreamOrder(CPU)
    with pytest.raises(RuntimeError), order.turn():
        raise RuntimeError
    cuda.stream = Stream(2)
    take_turn(order)
    assert cuda.stream.waited == 1


def test_a_capture_adds_nothing(cuda: Cuda) -> None:
    order, first = StreamOrder(CPU), cuda.stream
    take_turn(order)
    cuda.stream, cuda.capturing = Stream(2), True
    take_turn(order)
    order.finish()
    assert (cuda.stream.waited, end_of(order).recorded, end_of(order).synchronized) == (0, [first], 0)


class Turns:
    """An order that knows whether somebody has a turn, and how often it was finished."""

    in_capture = False

    def __init__(self) -> None:
        self.depth = self.finished = 0

    @contextmanager
    def turn(self) -> Iterator[int]:
        self.depth += 1
        yield 0
        self.depth -= 1

    def finish(self) -> None:
        self.finished += 1

    def wait(self) -> None: ...

    def capturing(self) -> bool:
        return False


class World(DeviceWorld):
    """Has no kernels, and does not launch."""

    def kernel(self, spec: Any) -> Any:
        return None


def world_of(turns: Turns) -> World:
    return World(2, CPU, DeviceOptions(), order=turns)  # type: ignore[arg-type]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """Copies to device memory and fills of it fail outside of a turn."""
    made = Turns()

    def inside(function: Callable) -> Callable:
        def checked(*args: Any, **options: Any) -> Any:
            assert made.depth == 1, function.__name__
            return function(*args, **options)

        return checked

    for module, name in (
        (device_world, "make_workspace"),
        (device_world, "Control"),
        (plan_slot, "make_workspace"),
        (plan_slot, "upload"),
        (plan_upload, "upload"),
        (SymmetricHeap, "__init__"),
        (SymmetricHeap, "recover"),
    ):
        monkeypatch.setattr(module, name, inside(getattr(module, name)))
    return made


def test_all_work_on_shared_memory_takes_its_turn(turns: Turns) -> None:
    w, plan = world_of(turns), make_plan(prefill(300), 2)
    w.warmup([plan])
    w.reserve(plan).load(plan)
    w.recover()
    assert turns.depth == 0


def test_memory_goes_when_its_last_launch_is_done() -> None:
    turns = Turns()
    w = world_of(turns)
    slot = w.reserve(make_plan(prefill(300), 2))
    for finished, thing in enumerate(("slot", "w"), 1):
        if thing == "slot":
            del slot
        else:
            del w
        gc.collect()
        assert turns.finished == finished


def test_a_slot_runs_in_its_own_world_only() -> None:
    """Its words are of that world's epochs: in a world that is behind they would be taken for later ones."""
    slot = world_of(Turns()).reserve(make_plan(prefill(300), 2))
    with pytest.raises(PlanError, match="another world"):
        world_of(Turns()).launch(slot, [])
