"""Skinny products by native code that reads each weight once, at the speed of the memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..program import Level, Program
from .contract import Pass
from .fuse_linears import FuseLinears
from .graph import clean_up, emit
from .read_rows import ReadRows

_aten = torch.ops.aten
IsSkinny = Callable[[int, int, int, torch.dtype], bool]
"""Whether a product of `[rows, in]` by a weight of `[out, in]` is to be native, from out, in, rows and dtype."""


class SkinnyLinears(Pass):
    """Write `linear` over few rows as `specc::skinny_linear`; the stored weight stays as it is, shared by all programs.

    Before: `y: f32[B, T, out] = linear(x, W, bias)`
    After:  `y = specc::skinny_linear(x, W) + bias`, where `skinny(out, in, rows, dtype)` says so (rows = B * T).
    Which products these are is the back end's business, so this runs on the bound graph.
    Results differ from `linear` by rounding only, and not at all between programs of different rows.
    """

    after = (FuseLinears, ReadRows)  # both change shapes and rows
    reads = leaves = Level.ENGINE

    def __init__(self, *, skinny: IsSkinny | None = None) -> None:
        self.skinny = skinny or (lambda out, size, rows, dtype: False)

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            x, weight = node.args[:2]
            if weight.op != "get_attr":
                program.decline(self, node, "the weight is computed")
                continue
            (out, size), value = weight.meta["val"].shape, x.meta["val"]
            if not self.skinny(out, size, value.numel() // size, value.dtype):
                continue
            new = emit(program, self, native, x, weight, *node.args[2:], before=node)
            node.replace_all_uses_with(new)
            rewrites += 1
        clean_up(program.graph)
        return rewrites


def native(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of a whole weight."""
    y = torch.ops.specc.skinny_linear(x.contiguous(), weight.contiguous())
    return y if bias is None else y + bias
