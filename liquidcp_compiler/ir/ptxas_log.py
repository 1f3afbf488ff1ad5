"""What ptxas says that must not be true of a kernel that is shipped."""

from __future__ import annotations

import re

#: Advisories of lost speed: setmaxnreg ignored (C7508); wgmma serialised (C7510, C7520).
REFUSED_ADVISORIES = ("C7508", "C7510", "C7520")

_ADVISORY = re.compile(rf"\((?:{'|'.join(REFUSED_ADVISORIES)})\)[^\n]*")


def refused_advisories(log: str) -> list[str]:
    """The advisories in ``log`` that refuse a kernel, each as its line without what stands before the number."""
    return _ADVISORY.findall(log)
