"""What kernels can be generated for, and the sizes that follow from a specification."""

from __future__ import annotations

from liquidcp_compiler.errors import CodegenError
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.layout import MaskKind

DTYPES = ("bf16", "fp16")
HEAD_DIMS = tuple(range(64, 257, 16))
BLOCK_SIZES = (64, 128)
MASKS = tuple(kind for kind in MaskKind if kind != MaskKind.NONE)


def check_spec(spec: KernelSpec) -> None:
    """Raise CodegenError, naming the field and what is supported, for a specification without a kernel."""
    _require("dtype", spec.dtype.value, DTYPES)
    _require("head_dim", spec.head_dim, HEAD_DIMS)
    _require("block_q", spec.block_q, BLOCK_SIZES)
    _require("block_kv", spec.block_kv, BLOCK_SIZES)
    if spec.mask not in MASKS:
        _require("mask", spec.mask.name.lower(), tuple(m.name.lower() for m in MASKS))
    _require("reductions", spec.reductions, (False,))


def _require(field: str, value: object, supported: tuple[object, ...]) -> None:
    if value not in supported:
        raise CodegenError(
            f"no kernel can be generated for {field} = {value}; supported: {', '.join(map(str, supported))}. "
            "The CPU interpreter runs every plan"
        )


def num_threads(spec: KernelSpec) -> int:
    """Threads of a CTA: a warp for each 16 query rows, the height of one tensor-core step."""
    return spec.block_q // 16 * 32


def kv_step(spec: KernelSpec) -> int:
    """Rows of a KV tile in shared memory at a time: 64, or 32 where the accumulators leave no registers for more."""
    return 64 if spec.head_dim <= 128 else 32


def smem_row_bytes(spec: KernelSpec) -> int:
    """Bytes from a row in shared memory to the next: rows of a multiple of 8 chunks of 16 bytes are swizzled, others
    padded to an odd number of chunks."""
    chunks = spec.head_dim * 2 // 16
    return 16 * (chunks if chunks % 8 == 0 else chunks | 1)


def smem_bytes(spec: KernelSpec) -> int:
    """Dynamic shared memory of a CTA: the query tile, and two steps each of K and V."""
    return (spec.block_q + 4 * kv_step(spec)) * smem_row_bytes(spec)
