"""Products with a weight of few bits, in the form that is fastest for their rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops import spread_levels
from ..program import Level, Program
from .bind_state import BindState
from .contract import Pass
from .graph import clean_up, emit
from .skinny_linears import ChooseForm, streams

_aten = torch.ops.aten


class QuantisedLinears(Pass):
    """Write `linear` with a stored weight of few bits in plain ops, so that no back end needs an op of ours.

    Before: `V = specc::dequantise(L, S)`, `y: f32[B, T, out] = linear(x, V)`
    After, by what `choose(out, in, rows, dtype of L)` says:
    `linear`   the same product with V computed from L and S, for many rows, and where nothing is compiled;
    `streams`  sums of products with the levels themselves, which a compiler reads as they are stored.
    """

    after = (BindState,)  # the graph that engines keep for other back ends holds `dequantise`
    reads = leaves = Level.ENGINE

    def __init__(self, *, choose: ChooseForm | None = None) -> None:
        self.choose = choose or (lambda out, size, rows, dtype: "linear")

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            x, weight = node.args[:2]
            if weight.target is not torch.ops.specc.dequantise.default:
                continue
            out, size = weight.meta["val"].shape
            stored = weight.args[0].meta["val"].dtype
            form = self.choose(out, size, x.meta["val"].numel() // size, stored)
            made = {"linear": spread, torch.int8: streams_8, torch.uint8: streams_4}
            new = emit(
                program, self, made[form if form == "linear" else stored], x, *weight.args, *node.args[2:], before=node
            )
            node.replace_all_uses_with(new)
            rewrites += 1
        clean_up(program.graph)
        return rewrites


def spread(x: Tensor, levels: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with the weight that is computed from its levels; one factor a row is multiplied in afterwards."""
    if scale.shape[1] > 1:
        return torch.nn.functional.linear(x, spread_levels(levels, scale), bias)
    y = torch.nn.functional.linear(x, levels.to(x.dtype)) * scale.squeeze(1)
    return y if bias is None else y + bias


def streams_8(x: Tensor, levels: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product as sums over the levels, `[out, in]` int8, with the factors behind them."""
    y = streams(x, levels) * scale.squeeze(1)
    return y if bias is None else y + bias


def streams_4(x: Tensor, levels: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product as sums over groups of the levels, `[out, in / 2]` uint8, then over the groups."""
    (out, half), groups = levels.shape, scale.shape[1] // 2
    flat = x.reshape(-1, 2 * half).contiguous()
    rows = flat.shape[0]
    flat = flat.as_strided((rows, 2 * half), (2 * half, 1))  # has x computed once, ahead
    nibbles = (levels & 15).view(out, groups, -1), (levels >> 4).view(out, groups, -1)
    factors = scale[:, :groups], scale[:, groups:]
    sums = []
    for row in range(rows):
        for part, factor, values in zip(nibbles, factors, flat[row].view(2, groups, -1), strict=True):
            sums.append((((part.to(x.dtype) - 8) * values).sum(-1) * factor).sum(-1))
    y = torch.stack(sums).view(rows, 2, out).sum(1).reshape(*x.shape[:-1], out)
    return y if bias is None else y + bias
