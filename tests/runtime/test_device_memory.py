"""Memory of worlds with a GPU, looked at on the CPU: sizes, uploads, heaps, slots, options."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from liquidcp_compiler.driver import plan as make_plan
from liquidcp_compiler.errors import InvalidField, OutOfResources, PlanError, UnsupportedError
from liquidcp_compiler.ir.graph_builder import GraphBuilder
from liquidcp_compiler.ir.launch import FAULT_PLAN, PAGE_DONE, FaultKind
from liquidcp_compiler.ir.plan import Plan
from liquidcp_runtime.control import Control
from liquidcp_runtime.device_options import DeviceOptions
from liquidcp_runtime.kernel_faults import DROPS, Faults
from liquidcp_runtime.link_model import LinkModel
from liquidcp_runtime.memory_sizes import MemorySizes
from liquidcp_runtime.plan_slot import PlanSlot
from liquidcp_runtime.plan_support import check_supported
from liquidcp_runtime.plan_upload import PlanUploads, upload
from liquidcp_runtime.symmetric_heap import SymmetricHeap
from tests.emulator.world import NoStreams
from tests.numerics import decode, prefill

CPU = torch.device("cpu")


def plan_of(*lengths: int, world: int = 3, **fields) -> Plan:
    return make_plan(prefill(*lengths, **fields), world)


def test_sizes_hold_every_rank_and_the_largest_of_several() -> None:
    small, large = MemorySizes.of(plan_of(100)), MemorySizes.of(plan_of(3000, 17))
    both = MemorySizes.largest((small, large))
    assert small.fits(both)
    assert large.fits(both)
    assert not large.fits(small)
    assert large.beyond(small)[0] == "blob"
    plan = plan_of(3000, 17)
    assert large.blob == max(len(plan.blob(r)) for r in range(3))
    row_bytes = plan.problem.num_heads_kv * plan.problem.head_dim * 4
    assert large.stage == max(int(h["num_local_kv_tokens"]) for h in plan.headers) * row_bytes


def test_a_plan_without_pulls_stages_nothing() -> None:
    assert MemorySizes.of(plan_of(300, world=1)).stage == 0
    assert MemorySizes.of(plan_of(300, world=1)).kv == 0


def test_blobs_of_all_ranks_are_uploaded_whole() -> None:
    plan = plan_of(700, 5)
    for stride in (None, 1 << 14):
        uploaded = upload(plan, CPU, torch.zeros(3 << 14, dtype=torch.uint8), stride)
        for rank in range(3):
            assert uploaded.blob(plan, rank).numpy().tobytes() == plan.blob(rank)
            assert (uploaded.address(rank) - uploaded.address(0)) % 16 == 0


def test_a_plan_that_is_gone_leaves_its_buffer_to_the_next() -> None:
    uploads = PlanUploads(CPU)
    plan = plan_of(700)
    address = uploads.get(plan).address(0)
    assert uploads.get(plan).address(0) == address
    other = plan_of(701)
    assert uploads.get(other).address(0) != address
    del plan
    gc.collect()
    assert uploads.get(plan_of(702)).address(0) == address


def test_a_heap_of_fixed_size_says_what_it_lacks() -> None:
    heap = SymmetricHeap(2, 2, CPU, heap_bytes=1 << 16)
    assert heap.fits(15 << 10)
    with pytest.raises(OutOfResources, match=r"^heap_bytes: \d+ needed, 65536 available"):
        heap.grow(1 << 15)
    growing = SymmetricHeap(2, 2, CPU, None)
    assert not growing.fits(1)
    growing.grow(1000)
    assert growing.fits(1000)


def test_recovery_starts_an_epoch_in_which_everybody_is_done() -> None:
    control, heap = Control(2, CPU), SymmetricHeap(2, 2, CPU, None)
    control.words.copy_(torch.tensor([7, 6, 0]))
    control.error.fill_(1)
    heap.recover(control.recover())
    assert control.words.tolist() == [9, 0, 0]
    assert int(control.error_block()["code"][0]) == 0
    assert heap.pages[:, :2].tolist() == [[0, 0], [0, 0]]
    assert (heap.pages[:, PAGE_DONE:] == (8 << 32 | 1)).all()


def test_a_slot_takes_what_fits_and_refuses_the_rest() -> None:
    small, large = plan_of(100), plan_of(1000)
    slot = PlanSlot([small, large], 3, torch.empty(3, 2, 2, 0, dtype=torch.uint8), CPU, NoStreams())  # type: ignore[arg-type]
    address = slot.uploaded.address(1)
    slot.load(large)
    assert slot.plan is large
    assert slot.uploaded.address(1) == address
    assert slot.uploaded.blob(large, 1).numpy().tobytes() == large.blob(1)
    with pytest.raises(OutOfResources, match="of the slot"):
        slot.load(plan_of(2000))
    with pytest.raises(PlanError, match="full"):
        slot.load(plan_of(100, mask={"type": "full"}))
    with pytest.raises(InvalidField, match="^scale"):
        slot.load(plan_of(100, softmax_scale=1.0))
    with pytest.raises(PlanError, match="2 ranks"):
        slot.load(plan_of(100, world=2))
    assert slot.plan is large


def test_a_slot_is_not_reserved_for_plans_that_it_could_never_take() -> None:
    stage = torch.empty(3, 2, 2, 0, dtype=torch.uint8)
    for other, error in ((plan_of(100, mask={"type": "full"}), PlanError), (plan_of(100, num_heads_q=4), InvalidField)):
        with pytest.raises(error):
            PlanSlot([plan_of(100), other], 3, stage, CPU, NoStreams())  # type: ignore[arg-type]


def test_decode_plans_are_refused_with_what_is_supported() -> None:
    with pytest.raises(UnsupportedError, match="The CPU world runs every plan"):
        check_supported(make_plan(decode((300, 1)), 2))


def test_plans_that_relay_keys_are_refused() -> None:
    """Kernels pull what the peer has staged, and it stages its own tiles only."""
    b = GraphBuilder(prefill(384, mask={"type": "full"}), world=3)
    for rank in range(3):
        b.own((128 * rank, 128 * rank + 128), rank=rank)
    for distance in (1, 2):
        for rank in range(3):
            b.transfer(kv=(rank - distance) % 3, src=(rank - 1) % 3, dst=rank)
    for rank in range(3):
        b.compute(rank, q=rank, kv=[0, 1, 2])
    with pytest.raises(UnsupportedError, match="relayed"):
        check_supported(make_plan(b.finish(), 3))


def test_a_buffer_goes_with_its_world_if_the_plan_lives_on() -> None:
    plan, uploads = plan_of(700), PlanUploads(CPU)
    buffer = weakref.ref(uploads.get(plan).blobs)
    del uploads
    gc.collect()
    assert buffer() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_comm_ctas", 0),
        ("ctas_per_rank", -1),
        ("heap_bytes", 0),
        ("sm_margin", -1),
        ("path", "fastest"),
        ("path", ["portable"]),
        ("wait_budget", 0.0),
        ("entry_budget", float("nan")),
        ("trace_capacity", 0),
        ("trace", "no"),
        ("poison", 1),
        ("faults", {}),
        ("link", 375e9),
        ("bundles", "folder"),
    ],
)
def test_options_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(InvalidField, match=f"^{field} is"):
        DeviceOptions(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("drop", "tick"), ("max_delay_us", -1.0), ("max_stage_delay_us", 1e9), ("seed", -1), ("stop_rank", -2)],
)
def test_faults_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(InvalidField, match=f"^{field} is"):
        Faults(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("bytes_per_s", 0), ("bytes_per_s", float("inf")), ("latency_s", -1.0)])
def test_links_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(InvalidField, match=f"^{field} is"):
        LinkModel(**{field: value})


@pytest.mark.parametrize("drop", DROPS)
def test_faults_reach_the_device_as_they_are(drop: str) -> None:
    block = Faults(seed=5, max_delay_us=2.5, drop=drop, drop_rank=1, drop_index=3, stop_rank=2, stop_after=4).struct()
    assert block.dtype == FAULT_PLAN.dtype
    assert FaultKind(int(block["drop_kind"][0])).name.lower() == drop
    values = {name: int(block[name][0]) for name in ("seed", "max_delay_ns", "drop_rank", "drop_index", "stop_rank")}
    assert values == {"seed": 5, "max_delay_ns": 2500, "drop_rank": 1, "drop_index": 3, "stop_rank": 2}
    assert np.array_equal(block["stop_after"], [4])
