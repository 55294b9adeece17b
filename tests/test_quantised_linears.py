"""QuantisedLinears: products by stored levels, natively or in plain ops, are those by the weight they stand for."""

from __future__ import annotations

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.decoding import built

from specc.config import BITS
from specc.passes.quantise_draft import QuantiseDraft, quantised
from specc.passes.quantised_linears import QuantisedLinears, native, spread
from specc.program import Level

_linear = torch.ops.aten.linear.default
KINDS = tuple(BITS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_forms_agree(kind: str, rows: int, bias: bool) -> None:
    """The product with the levels, and the one with the weight that they stand for."""
    torch.manual_seed(1)
    x, more = torch.randn(2, rows, 96), [torch.randn(40)] if bias else []
    bits = BITS[kind]
    stored = quantised(torch.randn(40, 96), bits)
    expected = torch.nn.functional.linear(x, torch.ops.specc.dequantise(*stored, bits), *more)
    for form in (spread, native):
        torch.testing.assert_close(form(x, *stored, *more, bits=bits), expected, rtol=1e-5, atol=1e-4)


def test_forms_are_chosen_by_rows() -> None:
    """What the back end chooses for the stored dtype is what is written."""
    asked = []
    program = hand(Level.STATIC)
    x = program.input("x", (1, 4, 32), torch.float32)
    y = op(program, _linear, x, program.constant("drafter.w", torch.randn(8, 32)))
    y.meta["specc_model"] = "drafter"
    program.give(y=y)
    QuantiseDraft(kind="int4").run(program)
    given = {"x": torch.randn(1, 4, 32)}
    expected = built(program)(given)["y"]
    program.level = Level.ENGINE

    def skinny(out: int, size: int, rows: int, dtype: torch.dtype) -> bool:
        asked.append((out, size, rows, dtype))
        return True

    assert QuantisedLinears(skinny=skinny).run(program) == 1
    assert asked == [(8, 32, 4, torch.int32)]
    assert not program.graph.find_nodes(op="call_function", target=_linear)
    torch.testing.assert_close(built(program)(given)["y"], expected)
