"""Write, and with nvcc compile, every kernel that can be generated for full-size tiles.

    python -m liquidcp_compiler.codegen.build_all OUT [--nvcc /usr/local/cuda/bin/nvcc]

``OUT`` receives one self-contained .cu a kernel and, with ``--nvcc``, a cubin for each architecture and a table of what
each costs. Fails if one does not compile, spills or has an advisory that ``ir/ptxas_log.py`` refuses.
``tools/build_kernels.py`` does the same with NVRTC, in parallel.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from liquidcp_compiler.codegen.emitter import GeneratedKernel, emit
from liquidcp_compiler.codegen.support import DTYPES, HEAD_DIMS, MASKS
from liquidcp_compiler.errors import CodegenError, KernelCostError
from liquidcp_compiler.ir.kernel_spec import KernelSpec
from liquidcp_compiler.ir.layout import MaskKind
from liquidcp_compiler.ir.problem import DType
from liquidcp_compiler.ir.ptxas_log import refused_advisories

#: Architecture of a cubin -> options that name it (the ``-arch`` shorthand also compiles for plain sm_90).
ARCH_OPTIONS: dict[str, str] = {
    "sm_80": "-gencode=arch=compute_80,code=sm_80",
    "sm_90a": "-gencode=arch=compute_90a,code=sm_90a",
    "sm_100a": "-gencode=arch=compute_100a,code=sm_100a",
}
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


#: Head sizes that are covered with every mask: the smallest, the usual, the largest.
_MAIN_HEAD_DIMS = (64, 128, 256)
#: Masks that the covering set has with pairs of heads.
_MASKS_WITH_PAIRS = MASKS[::2]


def specs() -> Iterator[KernelSpec]:
    """Every supported specification with tiles of 128 rows: what is shipped. Those with and without pairs of heads have
    one portable kernel in common."""
    choices = itertools.product((False, True), DTYPES, HEAD_DIMS, MASKS, (False, True))
    for pairs, dtype, head_dim, mask, softcap in choices:
        yield _spec(dtype, head_dim, mask, softcap, pairs)


def covering_specs() -> Iterator[KernelSpec]:
    """A fifth of :func:`specs`: each head_dim and each mask with every pair of dtype and softcap, each head_dim with
    four masks, and the main ones with all six."""
    masks = itertools.cycle(MASKS)
    for i, head_dim in enumerate(HEAD_DIMS):
        pairs = list(itertools.product(DTYPES, (False, True)))
        pairs = pairs[i % 2 :] + pairs[: i % 2]  # else every second mask would always meet the same pairs
        used = [(*pair, next(masks)) for pair in pairs]
        if head_dim in _MAIN_HEAD_DIMS:
            used += [(DTYPES[0], False, mask) for mask in MASKS if all(mask != other for *_, other in used)]
        for dtype, softcap, mask in used:
            yield _spec(dtype, head_dim, mask, softcap, mask in _MASKS_WITH_PAIRS)


def kernel_jobs(wanted: Iterable[KernelSpec], archs: Sequence[str]) -> list[tuple[KernelSpec, str]]:
    """(specification, architecture) of each kernel that is to be compiled, by architecture: each kernel once."""
    listed = list(wanted)
    return list({(emit(spec, arch).name, arch): (spec, arch) for arch in archs for spec in listed}.values())


def _spec(dtype: str, head_dim: int, mask: MaskKind, softcap: bool, pairs: bool) -> KernelSpec:
    return KernelSpec(
        head_dim=head_dim,
        dtype=DType(dtype),
        block_q=128,
        block_kv=128,
        mask=mask,
        softcap=softcap,
        reductions=False,
        head_pairs=pairs,
    )


def compile_with_nvcc(kernel: GeneratedKernel, source: Path, arch: str, nvcc: str) -> str:
    """Compile one file to ``<source>.<arch>.cubin``; returns a line on its cost.

    Raises CodegenError; KernelCostError for a kernel that must not be shipped.
    """
    cubin = source.with_suffix(f".{arch}.cubin")
    command = [nvcc, "-std=c++20", ARCH_OPTIONS[arch], "-cubin", "-Xptxas", "-v", "-o", str(cubin), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    spills, registers = _SPILLS.search(done.stderr), _REGISTERS.search(done.stderr)
    if done.returncode or spills is None or registers is None:
        raise CodegenError(f"{kernel.name} does not compile for {arch}:\n{done.stderr}")
    if spills.groups() != ("0", "0"):
        raise KernelCostError(kernel.name, arch, spills.group())
    if advisories := refused_advisories(done.stderr):
        raise KernelCostError(kernel.name, arch, "; ".join(advisories))
    return f"{kernel.name}  {arch}  {registers[1]} registers  {kernel.smem_bytes} bytes of shared memory"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the command line."""
    parser = argparse.ArgumentParser(prog="build_all", description="Write every kernel as one file.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--nvcc", help="also compile, with this nvcc")
    parser.add_argument("--arch", nargs="*", choices=tuple(ARCH_OPTIONS), default=tuple(ARCH_OPTIONS))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    written: set[Path] = set()
    for spec, arch in kernel_jobs(specs(), options.arch):
        kernel = emit(spec, arch)
        source = options.out / f"{kernel.name}.cu"
        if source not in written:
            written.add(source)
            source.write_text(kernel.self_contained(), encoding="utf-8")
            print(source)
        if options.nvcc:
            print(compile_with_nvcc(kernel, source, arch, options.nvcc))


if __name__ == "__main__":
    main()
