"""A compiled kernel in the current CUDA context: load, ask for its limits, launch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from liquidcp_compiler.errors import DriverError, OutOfResources, UnsupportedError
from liquidcp_compiler.ir.kernel_path import PORTABLE, TensorBoxes
from liquidcp_runtime import driver_api

#: Compute capability -> architecture to compile for. A cubin for sm_80 runs on every 8.x.
_ARCHS = {(8, None): "sm_80", (9, 0): "sm_90a", (10, 0): "sm_100a"}


def arch_of(device: torch.device) -> str:
    """The architecture whose cubin runs on ``device``. Raises UnsupportedError for one that no kernel is made for."""
    major, minor = torch.cuda.get_device_capability(device)
    arch = _ARCHS.get((major, minor), _ARCHS.get((major, None)))
    if arch is None:
        supported = ", ".join(f"{a}.{'x' if b is None else b}" for a, b in _ARCHS)
        raise UnsupportedError("compute capability", f"{major}.{minor}", supported, "The CPU world runs everywhere")
    return arch


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedKernel:
    """One kernel, loaded. ``function`` is a CUfunction; ``smem_bytes`` is dynamic shared memory of a CTA.

    ``registers`` and ``local_bytes`` are a thread's; local memory other than 0 means spills. ``path`` and ``boxes``:
    see ``ir.kernel_path``; a kernel with boxes takes tensor maps.
    """

    name: str
    module: Any
    function: Any
    num_threads: int
    smem_bytes: int
    registers: int
    local_bytes: int
    num_sms: int
    path: str = PORTABLE
    boxes: TensorBoxes | None = None

    def co_resident_ctas(self, sm_margin: int = 0) -> int:
        """CTAs that run at the same time on all but ``sm_margin`` SMs of the device.

        Raises OutOfResources if not even one fits an SM.
        """
        per_sm = driver_api.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", self.function, self.num_threads, self.smem_bytes
        )
        if per_sm < 1:
            raise OutOfResources("CTAs of an SM", 1, 0, "This kernel does not fit the device; take a smaller block_q")
        return int(per_sm) * (self.num_sms - sm_margin)

    def launch_cooperative(self, num_ctas: int, arguments: ctypes.Array, stream: int) -> None:
        """Launch with what :func:`kernel_arguments` made; the driver copies the parameters.

        All CTAs run at the same time or the launch fails. Raises DriverError.
        """
        result = driver_api.bindings().cuLaunchCooperativeKernel(
            self.function,
            num_ctas, 1, 1,
            self.num_threads, 1, 1,
            self.smem_bytes,
            stream,
            ctypes.addressof(arguments),
        )  # fmt: skip
        driver_api.check(result, "cuLaunchCooperativeKernel", DriverError)


def kernel_arguments(params: np.ndarray, maps: np.ndarray | None = None) -> ctypes.Array:
    """Addresses of a kernel's parameters, as a launch takes them; good for as long as the arrays live.

    ``params``: one element of a ``LaunchStruct`` dtype; ``maps``: the second parameter of a kernel with ``boxes``, of
    ``TENSOR_MAPS.dtype``.
    """
    addresses = [params.ctypes.data] if maps is None else [params.ctypes.data, maps.ctypes.data]
    return (ctypes.c_void_p * len(addresses))(*addresses)


def load_kernel(
    cubin: bytes,
    name: str,
    *,
    num_threads: int,
    smem_bytes: int,
    device: torch.device,
    path: str = PORTABLE,
    boxes: TensorBoxes | None = None,
) -> LoadedKernel:
    """Load ``cubin`` into torch's context of ``device`` (torch owns it; nothing here makes one).

    Raises DriverError; OutOfResources if the device has less shared memory than a CTA needs.
    """
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)  # makes torch's context exist and be the current one
        limit = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        if smem_bytes > limit:
            raise OutOfResources("shared memory of a CTA", smem_bytes, limit, "Take a smaller tile or head_dim")
        module = driver_api.call("cuModuleLoadData", cubin)
        function = driver_api.call("cuModuleGetFunction", module, name.encode())
        attributes = driver_api.bindings().CUfunction_attribute
        driver_api.call(
            "cuFuncSetAttribute",
            function,
            attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            smem_bytes,
        )

        def read(attribute: Any) -> int:
            return int(driver_api.call("cuFuncGetAttribute", attribute, function))

        return LoadedKernel(
            name=name,
            module=module,
            function=function,
            num_threads=num_threads,
            smem_bytes=smem_bytes,
            registers=read(attributes.CU_FUNC_ATTRIBUTE_NUM_REGS),
            local_bytes=read(attributes.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            num_sms=torch.cuda.get_device_properties(device).multi_processor_count,
            path=path,
            boxes=boxes,
        )
