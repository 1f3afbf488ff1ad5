"""Pipelines: passes in a row, verified, timed and dumped between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from liquidcp_compiler import options
from liquidcp_compiler.errors import InvalidField, PassError, VerificationError
from liquidcp_compiler.ir.graph import AnyGraph, AuthoredGraph, TaskGraph
from liquidcp_compiler.ir.verifier import verify
from liquidcp_compiler.passes.base import AnyPass, PassContext

#: Called before the first pass (with None) and after every pass: (pass, graph before, graph after).
Callback = Callable[[AnyPass | None, AnyGraph | None, AnyGraph], None]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A tuple of passes and how they are watched.

    Fields:
        passes: applied in order.
        verify: ``each`` checks the first graph and what each pass changed; ``final`` checks the last graph;
            ``off`` checks nothing. None takes LIQUIDCP_VERIFY.
        dump: folder that gets ``00-authored.txt``, ``01-<pass>.txt``, …; None takes LIQUIDCP_DUMP_IR.
    """

    passes: tuple[AnyPass, ...]
    verify: str | None = None
    dump: str | None = None
    callbacks: tuple[Callback, ...] = field(default=())

    def run(self, graph: AnyGraph, context: PassContext) -> tuple[AnyGraph, dict[str, float]]:
        """(last graph, seconds by pass). Raises VerificationError naming the pass whose result breaks a rule."""
        mode = self.verify if self.verify is not None else options.verify()
        if mode not in options.VERIFY.choices:
            raise InvalidField("verify", mode, ", ".join(options.VERIFY.choices))
        watch = [*self.callbacks, *self._watchers(mode, context)]
        for w in watch:
            w(None, None, graph)
        seconds: dict[str, float] = {}
        for p in self.passes:
            before, start = graph, time.perf_counter()
            graph = p.apply(graph, context)
            if not isinstance(graph, AuthoredGraph | TaskGraph):
                raise PassError(p.name, f"returned a {type(graph).__name__}; apply returns the new graph")
            seconds[p.name] = seconds.get(p.name, 0.0) + time.perf_counter() - start
            for w in watch:
                w(p, before, graph)
        if mode == "final":
            _check(graph, None, context, self.passes[-1].name if self.passes else "")
        return graph, seconds

    def _watchers(self, mode: str, context: PassContext) -> list[Callback]:
        watch: list[Callback] = []
        if mode == "each":
            watch.append(lambda p, before, after: _check(after, before, context, p.name if p else ""))
        folder = Path(self.dump) if self.dump else options.dump_ir()
        if folder is not None:
            watch.append(_Dumper(folder))
        return watch

    @property
    def spec(self) -> str:
        """The pipeline as text, e.g. ``zigzag-all,insert-transfers,coalesce``."""
        return ",".join(p.spec for p in self.passes)


def _check(graph: AnyGraph, before: AnyGraph | None, context: PassContext, pass_name: str) -> None:
    try:
        verify(graph, before, workspace_limit=context.workspace_limit)
    except VerificationError as e:
        raise (e.after(pass_name) if pass_name else e) from None


class _Dumper:
    """Writes the text form after every pass."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, p: AnyPass | None, before: AnyGraph | None, after: AnyGraph) -> None:
        from liquidcp_compiler.ir.printer import print_graph

        name = p.name if p else str(after.stage)
        (self.folder / f"{self.count:02d}-{name}.txt").write_text(print_graph(after))
        self.count += 1
