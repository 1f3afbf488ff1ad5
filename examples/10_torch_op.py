"""Attention as a torch op inside a compiled layer: another batch is another plan, and nothing compiles again."""

from __future__ import annotations

import torch
from torch import Tensor

import liquidcp_runtime
from liquidcp_compiler import PrefillProblem, plan
from liquidcp_runtime import attention, handle_of
from liquidcp_runtime.reference import error_report

HEADS, HEADS_KV, HEAD_DIM = 4, 2, 64


class Layer(torch.nn.Module):
    """Projections around attention over a packed batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, (HEADS + 2 * HEADS_KV) * HEAD_DIM, bias=False, dtype=torch.bfloat16)
        self.merge = torch.nn.Linear(HEADS * HEAD_DIM, width, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor, world: int, batch: int) -> Tensor:
        """x: [tokens, width]; ``world`` and ``batch`` are handles. Returns [tokens, width]."""
        out, _ = attention(world, batch, *self.project(x))
        return self.merge(out.flatten(1))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Columns of one matrix: views with strides, which attention takes as they are."""
        return self.qkv(x).unflatten(1, (-1, HEAD_DIM)).split([HEADS, HEADS_KV, HEADS_KV], dim=1)


@torch.no_grad()
def main() -> None:
    layer, world = Layer(128), liquidcp_runtime.cpu(4)
    # aot_eager traces as the default backend does and needs no C++ compiler.
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ((700, 300), (10, 640, 350), (77,)):
        problem = PrefillProblem(lengths=lengths, num_heads_q=HEADS, num_heads_kv=HEADS_KV, head_dim=HEAD_DIM)
        batch = plan(problem, 4)  # a handle keeps nothing alive: `batch` does, as long as it is used
        x = torch.randn(problem.total_q, 128).bfloat16()
        y = compiled(x, handle_of(world), handle_of(batch))

        q, k, v = layer.project(x)
        out, lse = attention(world, batch, q, k, v)
        torch.testing.assert_close(y, layer.merge(out.flatten(1)))
        report = error_report(problem, out, lse, q, k, v)
        print(report.explain())
        assert report.ok()


if __name__ == "__main__":
    main()
