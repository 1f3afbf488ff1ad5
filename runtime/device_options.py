"""How a world with a GPU runs plans."""

from __future__ import annotations

from dataclasses import dataclass

from liquidcp_compiler.errors import InvalidField
from liquidcp_compiler.ir.kernel_path import PATHS
from liquidcp_compiler.ir.problem_fields import flag, whole_number
from liquidcp_runtime.kernel_faults import Faults
from liquidcp_runtime.link_model import LinkModel

DEFAULT_WAIT_BUDGET = 5.0
DEFAULT_ENTRY_BUDGET = 600.0
_KINDS = {"link": "a LinkModel, or None", "faults": "Faults, or None", "bundles": "a tuple of folders, or None"}


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """How a world with a GPU runs plans.

    Fields:
        num_comm_ctas: CTAs of each rank that begin by staging and pulling, at most half of them; None: an eighth.
        ctas_per_rank: CTAs of each rank; None: as many as run at once. More than that is refused.
        heap_bytes: size of each rank's symmetric heap (its page, and four staging slots of keys and values that peers
            pull), fixed from the start; None: it grows with the plans.
        bundles: folders of prebuilt kernels to look through first; None takes LIQUIDCP_KERNELS.
        path: ``"portable"`` or ``"hopper"``: how kernels compute (``ir/kernel_path.py``), and an error where the device
            or a plan has no such kernel; None takes the best there is.
        clusters: let two CTAs share every KV tile where query heads come in pairs and a kernel can.
        sm_margin: streaming multiprocessors left free, for NCCL kernels beside ours.
        wait_budget: seconds that a wait inside a kernel may last for something that is on its way.
        entry_budget: seconds that it may last for a peer that may not have been launched yet.
        link: model of the link between GPUs; None does not slow pulls.
        faults: what goes wrong on purpose; a value, even ``Faults()``, builds kernels that can do it.
        trace: record a timeline; ``trace_capacity`` is the number of records a CTA keeps of the last launch.
        poison: fill all buffers with NaN before each launch, so that a read of what nobody wrote is seen.

    Raises InvalidField.
    """

    num_comm_ctas: int | None = None
    ctas_per_rank: int | None = None
    heap_bytes: int | None = None
    bundles: tuple[str, ...] | None = None
    path: str | None = None
    clusters: bool = True
    sm_margin: int = 0
    wait_budget: float = DEFAULT_WAIT_BUDGET
    entry_budget: float = DEFAULT_ENTRY_BUDGET
    link: LinkModel | None = None
    faults: Faults | None = None
    trace: bool = False
    trace_capacity: int = 4096
    poison: bool = False

    def __post_init__(self) -> None:
        for name in ("num_comm_ctas", "ctas_per_rank", "heap_bytes"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if self.path is not None and self.path not in PATHS:
            raise InvalidField("path", self.path, f"{', '.join(PATHS)}, or None")
        whole_number("sm_margin", self.sm_margin, 0)
        whole_number("trace_capacity", self.trace_capacity, 1, 2**24)
        for name in ("wait_budget", "entry_budget"):
            if not 0 < getattr(self, name) < 1e9:
                raise InvalidField(name, getattr(self, name), "seconds, more than 0")
        for name in ("trace", "poison", "clusters"):
            flag(name, getattr(self, name))
        for name, kind in (("link", LinkModel), ("faults", Faults), ("bundles", tuple | list)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InvalidField(name, value, _KINDS[name])
