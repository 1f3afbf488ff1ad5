"""What a pass is."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import ClassVar, Generic, TypeVar

from liquidcp_compiler.ir.graph import AnyGraph

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class PassContext:
    """What passes may look at besides the graph.

    Fields:
        world: number of ranks.
        workspace_limit: most bytes of buffers a rank may need, or None.
    """

    world: int
    workspace_limit: int | None = None


@dataclass(frozen=True)
class Pass(Generic[In, Out]):
    """A step from graph to graph. Subclasses are frozen dataclasses whose fields are their options.

    A graph is valid (for its stage) before and after a pass, not during one. ``apply`` never changes its input.
    """

    name: ClassVar[str]

    def apply(self, graph: In, context: PassContext) -> Out:
        """The new graph. Raises PassError if the pass does not fit the graph."""
        raise NotImplementedError

    @property
    def spec(self) -> str:
        """The pass as pipeline text: ``name`` or ``name{option=value,...}`` with the options that differ."""
        options = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                text = str(value)
                quoted = json.dumps(text) if set(text) & set(',{}="') else text
                options.append(f"{f.name.replace('_', '-')}={quoted}")
        return self.name + ("{" + ",".join(options) + "}" if options else "")


AnyPass = Pass[AnyGraph, AnyGraph]
