"""What the printer and the parser of the text form agree on. The grammar is in docs/ir.md."""

from __future__ import annotations

from liquidcp_compiler.ir.layout import Formation, Role, SignalKind, Space
from liquidcp_compiler.ir.tasks import Direction, TaskKind

MAGIC = "liquidcp-graph"

#: Number of the format; a change that an older reader would misread takes the next one.
FORMAT = 1

SPACE_WORDS = {space.name.lower(): space for space in Space if space != Space.NONE}
ROLE_WORDS = {role.name.lower(): role for role in Role if role != Role.NONE}
FORMATION_WORDS = {formation.name.lower(): formation for formation in Formation}
SIGNAL_WORDS = {kind.name.lower(): kind for kind in SignalKind if kind != SignalKind.NONE}
KIND_WORDS = {"transfer": TaskKind.TRANSFER, "compute": TaskKind.COMPUTE, "reduce": TaskKind.REDUCTION}
DIRECTION_WORDS = {"backward": Direction.BACKWARD}

#: (formation, tau_min, tau_max) that the text leaves out.
USUAL_FORMATION = {
    TaskKind.TRANSFER: (Formation.NONE, 0, 0),
    TaskKind.COMPUTE: (Formation.STATIC, 0, 0),
    TaskKind.REDUCTION: (Formation.NONE, 0, 0),
}


def interval(lo: int, hi: int) -> str:
    """``3`` for one number, ``3:8`` for [3, 8)."""
    return str(lo) if hi == lo + 1 else f"{lo}:{hi}"
