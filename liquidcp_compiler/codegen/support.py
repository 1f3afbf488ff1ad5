"""What kernels can be generated for."""

from __future__ import annotations

from liquidcp_compiler.errors import CodegenError
from liquidcp_compiler.ir.kernel_path import HOPPER, PATHS, PORTABLE
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.layout import MaskKind

DTYPES = ("bf16", "fp16")
HEAD_DIMS = tuple(range(64, 257, 16))
BLOCK_SIZES = (64, 128)
MASKS = tuple(kind for kind in MaskKind if kind != MaskKind.NONE)

#: The one architecture that has the Hopper path, and what that path has kernels for.
HOPPER_ARCH = "sm_90a"
HOPPER_HEAD_DIMS: tuple[int, ...] = tuple(range(64, 161, 16))
HOPPER_BLOCK = 128


def check_spec(spec: KernelSpec) -> None:
    """Raise CodegenError, naming the field and what is supported, for a specification without a kernel."""
    _require("dtype", spec.dtype.value, DTYPES)
    _require("head_dim", spec.head_dim, HEAD_DIMS)
    _require("block_q", spec.block_q, BLOCK_SIZES)
    _require("block_kv", spec.block_kv, BLOCK_SIZES)
    if spec.mask not in MASKS:
        _require("mask", spec.mask.name.lower(), tuple(m.name.lower() for m in MASKS))
    _require("reductions", spec.reductions, (False,))


def hopper_supports(spec: KernelSpec) -> bool:
    """Has the Hopper path a kernel for ``spec``? For bf16 and fp16, tiles of 128 rows and some head sizes it has."""
    return (
        spec.dtype.value in DTYPES
        and spec.block_q == spec.block_kv == HOPPER_BLOCK
        and spec.head_dim in HOPPER_HEAD_DIMS
    )


def choose_path(spec: KernelSpec, arch: str, path: str | None) -> str:
    """The path of the kernel for ``spec`` on ``arch``: ``path``, or the best there is where that is None.

    Raises CodegenError for a path that there is not, or not on this architecture or for this specification.
    """
    if path is None:
        return HOPPER if arch == HOPPER_ARCH and hopper_supports(spec) else PORTABLE
    _require("path", path, PATHS)
    if path == HOPPER and arch != HOPPER_ARCH:
        raise CodegenError(f"the Hopper path has no kernel for arch = {arch}; supported: {HOPPER_ARCH}")
    if path == HOPPER and not hopper_supports(spec):
        head_dims = ", ".join(map(str, HOPPER_HEAD_DIMS)) or "none"
        raise CodegenError(
            f"the Hopper path has no kernel for {spec.name}; supported: head_dim {head_dims} with block_q = block_kv = "
            f"{HOPPER_BLOCK} and {' or '.join(DTYPES)}. The portable path has one"
        )
    return path


def _require(field: str, value: object, supported: tuple[object, ...]) -> None:
    if value not in supported:
        raise CodegenError(
            f"no kernel can be generated for {field} = {value}; supported: {', '.join(map(str, supported))}. "
            "The CPU interpreter runs every plan"
        )
