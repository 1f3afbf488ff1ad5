"""What a launch that gave up says: the error block of the kernel, in words."""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.errors import DeviceWaitError, LiquidCPError, PlanError, PlanMismatchError, ScheduleError
from liquidcp_compiler.ir.launch import CtaRole, ErrorCode
from liquidcp_compiler.ir.layout import SignalKind, Space
from liquidcp_compiler.ir.plan import Plan

_TASK_TABLES = {CtaRole.COMM: "transfers", CtaRole.COMPUTE: "rows", CtaRole.STAGE: "staged_list"}
_ITEM_TABLES = {Space.Q: "q_tiles", Space.KV: "kv_tiles", Space.STATE: "states"}


def launch_error(plan: Plan | None, block: np.ndarray) -> LiquidCPError | None:
    """The exception for a filled error block (one element of ``ERROR_BLOCK.dtype``); None if its code is 0.

    Without the plan (None: it is gone) tasks and words are given by number.
    """
    e = {name: int(block[name][0]) for name in block.dtype.names or ()}
    code, role = ErrorCode(e["code"]), CtaRole(e["role"])
    if code == ErrorCode.NONE:
        return None
    if code == ErrorCode.LAYOUT:
        return PlanError(
            f"rank {e['rank']}: the plan in device memory has layout {e['seen']:016x}, the kernel has "
            f"{e['expected']:016x}; they come from different versions: make both anew"
        )
    if code == ErrorCode.FINGERPRINT:
        return PlanMismatchError(
            f"rank {e['rank']} runs plan {e['expected']:08x}, its peer {e['peer']} has staged for {e['seen']:08x} (low "
            "32 bits of their fingerprints); plan the same batch with the same options on every rank"
        )
    task = task_words(plan, e["rank"], role, e["task"])
    if code == ErrorCode.ARRIVALS:
        return ScheduleError(
            e["rank"],
            task,
            f"publishes tile {e['seen']} of sequence {e['index']}, which has only {e['expected']} arrivals",
        )
    return DeviceWaitError(
        f"rank {e['rank']}, CTA {e['cta']} ({role.name.lower()}), {task}: waited {e['waited_ns'] / 1e9:.3g} s for "
        f"{word_words(plan, code, e['peer'], e['index'])}: expected {e['expected']}, seen {e['seen']}. "
        "All ranks have left the launch; call recover(), and the next one can run"
    )


def task_words(plan: Plan | None, rank: int, role: CtaRole, task: int) -> str:
    """The task that a CTA was at, by its printed name."""
    table = _TASK_TABLES.get(role)
    if plan is None and table is not None and task >= 0:
        return f"entry {task} of {table}"
    if plan is None:
        return "no task"
    if table is None or not 0 <= task < len(plan.table(table, rank)):
        return "no task"
    if table == "staged_list":
        tile = plan.table("kv_tiles", rank)["tile"][plan.table(table, rank)[task]]
        return f"staging of kv {tile}"
    return plan.task_name(rank, table, task)


def word_words(plan: Plan | None, code: ErrorCode, peer: int, index: int) -> str:
    """The protocol word that was waited for."""
    if code == ErrorCode.READY:
        return f"READY of rank {peer}, which has not staged its keys and values"
    if code == ErrorCode.DONE:
        return f"DONE of rank {peer}, which has not pulled all that the launch before last staged for it"
    if code == ErrorCode.PIPELINE:
        return f"barrier {index} of its own shared memory, which is a fault of the kernel: please report it"
    if plan is None:
        return f"{code.name} {index} of rank {peer}"
    if code == ErrorCode.LOCK:
        return f"the running state of query tile {plan.table('q_tiles', peer)['tile'][index]}"
    if code == ErrorCode.PREFIX:
        sequence = plan.table("sequences", peer)["sequence"][index]
        return f"KV tiles in the committed prefix of sequence {sequence} on rank {peer}"
    signal = plan.table("signals", peer)[index]
    kind, space = SignalKind(int(signal["kind"])), Space(int(signal["space"]))
    item = ""
    if space in _ITEM_TABLES:
        column = "state" if space == Space.STATE else "tile"
        item = f" {space.name.lower()} {plan.table(_ITEM_TABLES[space], peer)[column][signal['item']]}"
    return f"signal {index} ({kind.name}{item}) of rank {peer}"
