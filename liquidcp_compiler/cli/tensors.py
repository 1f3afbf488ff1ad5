"""Q, K, V and sinks of a run: random ones, or those of a file."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liquidcp_compiler.errors import InvalidField, TensorError
from liquidcp_compiler.ir.problem import DType, Problem

if TYPE_CHECKING:
    from torch import Tensor

NAMES = ("q", "k", "v", "sinks")
Inputs = tuple["Tensor", "Tensor", "Tensor", "Tensor | None"]


def random_tensors(problem: Problem, seed: int) -> Inputs:
    """Normal q [total_q, num_heads_q, head_dim], k and v [total_kv, num_heads_kv, head_dim] in the problem's dtype,
    and fp32 sinks [num_heads_q] where the problem has them."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    dtype, kv = problem.dtype.torch, (problem.total_kv, problem.num_heads_kv, problem.head_dim)
    q = normal(problem.total_q, problem.num_heads_q, problem.head_dim).to(dtype)
    k, v = normal(*kv).to(dtype), normal(*kv).to(dtype)
    return q, k, v, normal(problem.num_heads_q) if problem.sinks else None


def load_tensors(path: Path, problem: Problem) -> Inputs:
    """q, k, v and, for problems with sinks, sinks of a file that holds them by name.

    ``.pt``: what ``torch.save({"q": q, "k": k, "v": v}, path)`` wrote, loaded without running anything of it.
    ``.npz``: numpy arrays without pickle; numpy has no bf16, so a bf16 problem takes fp32 arrays, which are rounded.

    Raises InvalidField for a file that is not one of these, TensorError for what is wrong with a tensor.
    """
    from liquidcp_runtime.tensor_check import check_sinks, packed

    readers = {".pt": _read_pt, ".pth": _read_pt, ".npz": _read_npz}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise InvalidField("--tensors", str(path), "a file name that ends in " + ", ".join(readers))
    if not path.is_file():
        raise InvalidField("--tensors", str(path), "a file that exists")
    found = readers[suffix](path, problem)
    for name in found:
        if name not in NAMES:
            raise InvalidField(f"{path.name}: {name}", "given", "only " + ", ".join(NAMES))
    for name in NAMES[:3]:
        if name not in found:
            raise TensorError(name, "value", "missing", f"a tensor {name} in {path.name}")
    sinks = found.get("sinks")
    check_sinks(problem, sinks)
    q, k, v = packed(problem, found["q"], found["k"], found["v"])
    return q, k, v, sinks


def _read_pt(path: Path, problem: Problem) -> dict[str, Any]:
    import torch

    allowed = 'what torch.save({"q": q, "k": k, "v": v}, path) writes, tensors alone'
    try:
        found = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, zipfile.BadZipFile) as error:
        if "CUDA" in str(error) and "torch.cuda" in str(error):
            raise TensorError(path.name, "device", "cuda", "cpu", "save the tensors with .cpu()") from error
        # torch's own message goes on about how to load it all the same.
        raise InvalidField("--tensors", str(path), allowed, str(error).split("\n")[0][:200]) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InvalidField("--tensors", type(found).__name__, allowed)
    return found


def _read_npz(path: Path, problem: Problem) -> dict[str, Any]:
    import numpy as np
    import torch

    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        found = {name: torch.from_numpy(array) for name, array in arrays.items()}
    except (OSError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        allowed = "what numpy.savez(path, q=q, k=k, v=v) writes, numbers alone"
        raise InvalidField("--tensors", str(path), allowed, str(error)[:200]) from error
    if problem.dtype is DType.BF16:
        for name in NAMES[:3]:
            if name in found and found[name].dtype == torch.float32:
                found[name] = found[name].bfloat16()
    return found
