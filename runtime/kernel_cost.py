"""What a kernel costs, and what a shipped kernel must not cost."""

from __future__ import annotations

from liquidcp_compiler.errors import InvalidField, KernelCostError
from liquidcp_compiler.ir.ptxas_log import refused_advisories
from liquidcp_runtime.cubin import KernelResources, resources


def kernel_cost(cubin: bytes, name: str) -> KernelResources:
    """The resources of kernel ``name``. Raises InvalidField for bytes that are no cubin, or one without it."""
    found = resources(cubin)
    if name not in found:
        raise InvalidField("kernel", name, f"a kernel of this cubin: {', '.join(found) or 'it has none'}")
    return found[name]


def check_shipped(name: str, arch: str, cost: KernelResources, log: str) -> None:
    """Raise KernelCostError for a kernel that spills, or of which ``log`` (it may be empty) says that speed is lost."""
    spills = cost.spill_store_bytes + cost.spill_load_bytes
    if spills:
        raise KernelCostError(
            name,
            arch,
            f"{cost.spill_store_bytes} bytes of spill stores and {cost.spill_load_bytes} of spill loads with "
            f"{cost.registers} registers",
        )
    advisories = refused_advisories(log)
    if advisories:
        raise KernelCostError(name, arch, "; ".join(advisories))
