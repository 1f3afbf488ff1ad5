"""Small problems and graphs that several tests use."""

from __future__ import annotations

from liquidcp_compiler.driver import compile_plan
from liquidcp_compiler.ir.graph import SyncedGraph
from liquidcp_compiler.ir.problem import DecodeProblem, PrefillProblem, Request
from liquidcp_compiler.passes.coalesce import Coalesce
from liquidcp_compiler.passes.dcp import Dcp
from liquidcp_compiler.passes.insert_sync import InsertSync
from liquidcp_compiler.passes.insert_transfers import InsertTransfers
from liquidcp_compiler.passes.order import Order
from liquidcp_compiler.passes.split_kv import SplitKv
from liquidcp_compiler.passes.zigzag_all import ZigzagAll


def prefill_problem(lengths=(300, 70), **fields) -> PrefillProblem:
    """A small prefill problem: 4 query heads on 2 KV heads of 16."""
    return PrefillProblem(lengths=lengths, **({"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 16} | fields))


def decode_problem(requests=((300, 3), (0, 5), (700, 20)), **fields) -> DecodeProblem:
    """A small mixed batch: 4 query heads on 2 KV heads of 16."""
    made = [Request(history=h, query=q) for h, q in requests]
    return DecodeProblem(requests=made, **({"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 16} | fields))


def zigzag_passes(tile: int = 32, formation: str = "ready") -> tuple:
    """The default prefill pipeline with small tiles."""
    return (ZigzagAll(tile=tile), InsertTransfers(), Coalesce(formation=formation), SplitKv(), Order(), InsertSync())


def decode_passes(num_splits: int = 2) -> tuple:
    """The default decode pipeline with small tiles and a fixed split."""
    split = SplitKv(policy="fixed", num_splits=num_splits)
    return (Dcp(tile=32), InsertTransfers(), split, Order(), InsertSync())


def prefill_graph(world: int = 4, formation: str = "ready", **fields) -> SyncedGraph:
    """A synced graph of :func:`prefill_problem`."""
    return compile_plan(prefill_problem(**fields), world, passes=zigzag_passes(formation=formation), verify="off").graph


def decode_graph(world: int = 2, **fields) -> SyncedGraph:
    """A synced graph of :func:`decode_problem`."""
    return compile_plan(decode_problem(**fields), world, passes=decode_passes(), verify="off").graph
