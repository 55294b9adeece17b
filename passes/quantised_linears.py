"""Products with a weight of few bits: native ones read the bits as they are stored."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops import spread_levels
from ..program import Level, Program
from .bind_state import BindState
from .contract import Pass
from .graph import clean_up, emit
from .skinny_linears import IsSkinny

_aten = torch.ops.aten


class QuantisedLinears(Pass):
    """Write `linear` with a stored weight of few bits in what the back end can run.

    Before: `V = specc::dequantise(L, S)`, `y: f32[B, T, out] = linear(x, V, bias)`
    After:  `y = specc::levels_linear(x, L, S) + bias`, where `skinny(out, in, rows, dtype of L)` says so; elsewhere the
    same product in plain ops, with V computed from L and S: for many rows, and where nothing is compiled.
    """

    after = (BindState,)  # the graph that engines keep for other back ends holds `dequantise`
    reads = leaves = Level.ENGINE
    required = True

    def __init__(self, *, skinny: IsSkinny | None = None) -> None:
        self.skinny = skinny or (lambda out, size, rows, dtype: False)

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            x, weight = node.args[:2]
            if weight.target is not torch.ops.specc.dequantise.default:
                continue
            (out, size), (levels, scale, bits) = weight.meta["val"].shape, weight.args
            rows = x.meta["val"].numel() // size
            form = native if self.skinny(out, size, rows, levels.meta["val"].dtype) else spread
            bias = [given for given in node.args[2:] if given is not None]
            new = emit(program, self, form, x, levels, scale, *bias, before=node, bits=bits)
            node.replace_all_uses_with(new)
            rewrites += 1
        clean_up(program.graph)
        return rewrites


def spread(x: Tensor, levels: Tensor, scale: Tensor, bias: Tensor | None = None, *, bits: int) -> Tensor:
    """The product with the weight that is computed from its levels."""
    return torch.nn.functional.linear(x, spread_levels(levels, scale, bits), bias)


def native(x: Tensor, levels: Tensor, scale: Tensor, bias: Tensor | None = None, *, bits: int) -> Tensor:
    """The product with the levels themselves."""
    y = torch.ops.specc.levels_linear(x.float().contiguous(), levels, scale.float().contiguous(), bits).to(x.dtype)
    return y if bias is None else y + bias
