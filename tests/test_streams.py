"""The `streams` form: the product, strided inputs, and the same bits for a row whatever the other rows."""

from __future__ import annotations

import pytest
import torch
from helpers.bound import empty_program
from torch import Tensor, nn

from specc.drafter import parse_drafter
from specc.passes import run, step_passes
from specc.passes.skinny_linears import SkinnyLinears, streams
from specc.tree import DraftTree


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("rows", (1, 2, 4, 5, 8, 12, 30))
@pytest.mark.parametrize("out", (64, 63, 61))
def test_streams_is_the_product(rows: int, bias: bool, out: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, out, bias=bias)
    inputs = (torch.randn(1, rows, 24), torch.randn(1, 24, rows).mT, torch.randn(1, rows + 3, 24)[:, 2 : 2 + rows])
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(streams(x, layer.weight, layer.bias), layer(x), atol=1e-6, rtol=1e-5)


def test_compiled_bits_of_a_row_do_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(60, 48), torch.randn(1, 9, 48)
    results = {}
    with torch.no_grad():
        for rows in (1, 4, 8):
            torch._dynamo.reset()

            def product(x: Tensor, rows: int = rows) -> Tensor:
                return streams((x * 1.5)[:, 1 : 1 + rows], weight)

            compiled = torch.compile(product, options={"cpp.max_horizontal_fusion_size": 32})
            results[rows] = compiled(x)
            torch.testing.assert_close(results[rows], product(x), atol=1e-5, rtol=1e-5)
    assert torch.equal(results[1], results[4][:, :1]) and torch.equal(results[4], results[8][:, :4])


def test_the_pass_takes_it() -> None:
    program = empty_program("step")
    passes = step_passes(tree=DraftTree.chain(3), rule="greedy", drafter=parse_drafter("model"))
    run(program, passes[: [p.stem() for p in passes].index("skinny_linears")])
    before = len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))
    assert SkinnyLinears(choose=lambda *_: "streams").run(program) == before > 0
    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
