"""BuddyRing beyond 16 ranks, a scheme of ours: sequences to nodes of 8 ranks first, then the search inside each node.

Sequences that are too long for one node go to an aligned power-of-two group of whole nodes. A node is searched against
the means of the whole batch, on top of the load that such groups give every rank of it.
"""

from __future__ import annotations

import numpy as np

from liquidcp_compiler.ir.intervals import IntArray
from liquidcp_compiler.passes.buddy_loads import NO_LIMIT, Loads, Target, smallest_sizes
from liquidcp_compiler.passes.buddy_search import SearchOptions, search

#: Largest world that is searched as one.
SINGLE_LEVEL = 16
NODE = 8
#: Nodes are balanced to within this part of the tolerances, which leaves the rest to the searches inside them.
NODE_SHARE_OF_TOLERANCE = 0.25
#: Tries to move or exchange, per sequence.
BALANCE_TRIES = 200


def place_flat(lengths: IntArray, legal: IntArray, target: Target, options: SearchOptions) -> tuple[IntArray, IntArray]:
    """(first rank, log2 of the group size) of every sequence, from one search over all ranks."""
    return _search_ranks(lengths, legal, target, options, target.world, (0, 0))


def place_two_level(
    lengths: IntArray, legal: IntArray, target: Target, options: SearchOptions
) -> tuple[IntArray, IntArray]:
    """(first rank, log2 of the group size) of every sequence, node by node.

    ``legal`` holds sizes up to the world; those above a node are used only by sequences too long for one: whose
    minimum size (as of structural sequences, A.1) is larger.
    """
    num_nodes = target.world // NODE
    needed = smallest_sizes(target.loads(lengths, legal, target.world), legal)
    least = np.maximum(needed - 3, 0)
    widest = np.where(target.kappa(lengths) >= NODE * options.structural_threshold, _largest(legal) - 3, 0)
    group = _nodes_of(lengths, least, np.maximum(widest, least), target, num_nodes, options)
    nodes_log = num_nodes.bit_length() - 1 - _depth(group)
    node = (group << nodes_log) - num_nodes
    first, size_log = node * NODE, nodes_log + 3
    wide = nodes_log > 0
    base = _base_loads(lengths, wide, node, nodes_log, target, num_nodes)
    for m in range(num_nodes):
        inside = np.flatnonzero(~wide & (node == m))
        if len(inside):
            start, log = _search_ranks(lengths[inside], legal[inside] & (2 * NODE - 1), target, options, NODE, base[m])
            first[inside], size_log[inside] = m * NODE + start, log
    return first, size_log


def _search_ranks(
    lengths: IntArray, legal: IntArray, target: Target, options: SearchOptions, ranks: int, base: tuple[int, int]
) -> tuple[IntArray, IntArray]:
    kappa = target.kappa(lengths)
    order = np.argsort(-kappa, kind="stable")
    loads = target.loads(lengths[order], legal[order], ranks, base)
    node = search(loads, kappa[order], options).node
    first, size_log = np.empty(len(lengths), np.int64), np.empty(len(lengths), np.int64)
    first[order], size_log[order] = loads.first[node], loads.size_log[node]
    return first, size_log


def _nodes_of(
    lengths: IntArray, least: IntArray, most: IntArray, target: Target, num_nodes: int, options: SearchOptions
) -> IntArray:
    """Group of nodes (a heap number) of every sequence.

    Sequences take 2**least nodes. Where nodes do not balance so, those that may take more (2**most) get twice, four
    times, ... as many: a group may hold all the work that its nodes can take and too few tokens.
    """
    best, best_key = np.zeros(0, np.int64), (1 << 62, 1 << 62)
    for extra in range(int((most - least).max()) + 1):
        group, key = _fill_nodes(lengths, np.minimum(least + extra, most), target, num_nodes, options)
        if key < best_key:
            best, best_key = group, key
        if key == (0, 0):
            break
    return best


def _fill_nodes(
    lengths: IntArray, nodes_log: IntArray, target: Target, num_nodes: int, options: SearchOptions
) -> tuple[IntArray, tuple[int, int]]:
    """(groups, violation of cap and tolerances): the widest first, the others as fillers, then exchanges."""
    from liquidcp_compiler.passes.buddy_balance import balance
    from liquidcp_compiler.passes.buddy_kernels import fill, key_of

    order = np.lexsort((-target.kappa(lengths), -nodes_log))
    loads = _loads_of_nodes(lengths[order], nodes_log[order], target, num_nodes)
    group = np.zeros(len(lengths), np.int64)
    num_wide = int((nodes_log > 0).sum())
    for i in range(num_wide):
        group[i] = _least_loaded_group(loads, group, i, int(nodes_log[order[i]]))
    fill(loads, group, options.smooth_max)
    if key_of(loads, group)[:2].any():
        balance(loads, group, num_wide, BALANCE_TRIES * max(len(group), 1000))
    key = key_of(loads, group)
    result = np.empty_like(group)
    result[order] = group
    return result, (int(key[0]), int(key[1]))


def _loads_of_nodes(lengths: IntArray, nodes_log: IntArray, target: Target, num_nodes: int) -> Loads:
    """The search over nodes as if they were ranks."""
    nodes = Target(
        world=num_nodes,
        scale=target.scale,
        mean_tokens=target.mean_tokens * NODE,
        mean_work=target.mean_work * NODE,
        tolerance_tokens=target.tolerance_tokens * NODE_SHARE_OF_TOLERANCE,
        tolerance_work=target.tolerance_work * NODE_SHARE_OF_TOLERANCE,
        token_cap=min(target.token_cap * NODE, NO_LIMIT),
    )
    return nodes.loads(lengths, np.left_shift(1, nodes_log), num_nodes)


def _least_loaded_group(loads: Loads, group: IntArray, i: int, size_log: int) -> int:
    """The aligned group of 2**size_log nodes whose node of highest load (of either kind) is lowest."""
    from liquidcp_compiler.passes.buddy_kernels import state_of

    tokens, work, _, _ = state_of(loads, group)
    load = np.maximum(tokens / loads.mean_tokens, work / loads.mean_work)
    highest = load.reshape(-1, 1 << size_log).max(1)
    return len(highest) + int(highest.argmin())


def _base_loads(
    lengths: IntArray, wide: np.ndarray, node: IntArray, nodes_log: IntArray, target: Target, num_nodes: int
) -> list[tuple[int, int]]:
    """(tokens, work), scaled, that sequences over whole nodes give every rank of each node."""
    loads = target.loads(lengths, np.ones_like(lengths), num_nodes)
    base = np.zeros((num_nodes, 2), np.int64)
    for i in np.flatnonzero(wide):
        k = int(nodes_log[i])
        base[node[i] : node[i] + (1 << k)] += (loads.tokens[i] >> (k + 3), loads.work[i] >> (k + 3))
    return [(int(t), int(w)) for t, w in base]


def _largest(legal: IntArray) -> IntArray:
    """log2 of the largest legal size."""
    return _depth(legal)


def _depth(heap: IntArray) -> IntArray:
    """Depth of heap numbers: floor(log2), exact for the numbers here."""
    return np.frexp(heap.astype(np.float64))[1].astype(np.int64) - 1
