"""How a kernel's CTA is laid out: threads, steps, buffers and shared memory, by compute path."""

from __future__ import annotations

from dataclasses import dataclass

from liquidcp_compiler.ir.kernel_path import HOPPER, TensorBoxes
from liquidcp_compiler.ir.kernel_spec import KernelSpec

#: Columns of 16-bit elements in a row of 128 bytes, the width of a swizzled block of a tile on the Hopper path.
BLOCK_COLUMNS = 64
_ROW_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class KernelShape:
    """The CTA of one kernel.

    Fields: ``num_threads``; ``kv_step``: rows of a KV tile in shared memory at a time; ``smem_bytes``: dynamic shared
    memory. Hopper path: ``cluster``: CTAs that share KV tiles; ``q_buffers``: query tiles, ``stages``: steps of K and
    as many of V in shared memory; registers of a thread that feeds and of one that attends (128 and 256 threads of them
    have 65536).
    """

    num_threads: int
    kv_step: int
    smem_bytes: int
    cluster: int = 1
    q_buffers: int = 1
    stages: int = 2
    producer_registers: int = 0
    consumer_registers: int = 0


def kernel_shape(spec: KernelSpec, path: str) -> KernelShape:
    """The CTA of the kernel for ``spec`` on ``path``, one of ``ir.kernel_path.PATHS``."""
    return hopper_shape(spec) if path == HOPPER else portable_shape(spec)


def tensor_boxes(spec: KernelSpec, path: str, shape: KernelShape) -> TensorBoxes | None:
    """What the tensor maps of a Hopper kernel are encoded for; None for a portable one, which has none."""
    if path != HOPPER:
        return None
    return TensorBoxes(columns=BLOCK_COLUMNS, q_rows=spec.block_q, kv_rows=shape.kv_step // shape.cluster, out_rows=64)


def portable_shape(spec: KernelSpec) -> KernelShape:
    """A warp for each 16 query rows, the height of one tensor-core step; two steps each of K and V.

    Steps are 64 rows, or 32 where the accumulators leave no registers for more.
    """
    kv_step = 64 if spec.head_dim <= 128 else 32
    rows = spec.block_q + 4 * kv_step
    return KernelShape(num_threads=spec.block_q // 16 * 32, kv_step=kv_step, smem_bytes=rows * smem_row_bytes(spec))


def smem_row_bytes(spec: KernelSpec) -> int:
    """Portable path: bytes from a row in shared memory to the next. Rows of a multiple of 8 chunks of 16 bytes are
    swizzled, others padded to an odd number of chunks."""
    chunks = spec.head_dim * 2 // 16
    return 16 * (chunks if chunks % 8 == 0 else chunks | 1)


def hopper_shape(spec: KernelSpec) -> KernelShape:
    """A warpgroup that feeds and two that attend, 64 query rows each.

    Two CTAs share keys where query heads come in pairs. Two query buffers, so that a task's first products hide the end
    of the one before.
    """
    blocks = -(-spec.head_dim // BLOCK_COLUMNS)
    kv_step = 128 if spec.head_dim <= 128 else 64
    stages = 4 if spec.head_dim <= 64 else 2
    rows = 2 * spec.block_q + 2 * stages * kv_step
    return KernelShape(
        num_threads=384,
        kv_step=kv_step,
        smem_bytes=rows * blocks * _ROW_BYTES,
        cluster=2 if spec.head_pairs else 1,
        q_buffers=2,
        stages=stages,
        producer_registers=56,
        consumer_registers=224,
    )
