"""Products with a weight of few bits, in the form that is fastest for their rows."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..ops import levels_of, spread_levels
from ..program import Level, Program
from .bind_state import BindState
from .contract import Pass
from .graph import clean_up, emit
from .skinny_linears import ChooseForm

_aten = torch.ops.aten


class QuantisedLinears(Pass):
    """Write `linear` with a stored weight of few bits in plain ops, so that no back end needs an op of ours.

    Before: `V = specc::dequantise(L, S)`, `y: f32[B, T, out] = linear(x, V)`
    After, by what `choose(out, in, rows, dtype of L)` says:
    `linear`   the same product with V computed from L and S, for many rows, and where nothing is compiled;
    `streams`  sums of products with the levels themselves, which a compiler reads as they are stored.
    Tried on one busy AVX2 core, 49,152 x 576 by 4 rows, least of 30, ms: `linear` 202 and the `streams` of
    `SkinnyLinears` 47 in float32; `_weight_int8pack_mm` 661; sums over int8 147 and over pairs of 4 bits in bytes 235,
    both for loads of 8 bytes into wide registers, which is why levels lie in whole words (that form is not timed yet);
    `_weight_int4pack_mm_for_cpu` in bfloat16 14, but its layout hangs on the processor's kind, and Inductor makes a
    constant of its group size that no engine carries.
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
            (out, size), (levels, scale, bits) = weight.meta["val"].shape, weight.args
            rows = x.meta["val"].numel() // size
            form = _FORMS[self.choose(out, size, rows, levels.meta["val"].dtype)]
            bias = [given for given in node.args[2:] if given is not None]
            new = emit(program, self, form, x, levels, scale, *bias, before=node, bits=bits)
            node.replace_all_uses_with(new)
            rewrites += 1
        clean_up(program.graph)
        return rewrites


def spread(x: Tensor, levels: Tensor, scale: Tensor, bias: Tensor | None = None, *, bits: int) -> Tensor:
    """The product with the weight that is computed from its levels."""
    return torch.nn.functional.linear(x, spread_levels(levels, scale, bits), bias)


def streams(x: Tensor, levels: Tensor, scale: Tensor, bias: Tensor | None = None, *, bits: int) -> Tensor:
    """The product as sums over the words of each row of the weight, one for each row of `x` and two or four runs.

    Inductor fuses the sums into one loop that reads each word once, for all rows, and takes it apart in registers. It
    keeps what a sum reads from being stored ahead only while that is few tensors: hence no sum over all runs.
    """
    runs, (out, part) = 32 // bits, levels.shape
    flat = x.reshape(-1, runs * part).contiguous()
    rows = flat.shape[0]
    flat = flat.as_strided((rows, runs, part), (runs * part, part, 1))  # has x computed once, ahead
    together = range(0, runs, 4 if scale.shape[1] == 1 else 2)
    sums = []
    for row in range(rows):
        for first in together:
            terms = []
            for place in range(first, first + together.step):
                term = levels_of(levels, place, bits).to(x.dtype) * flat[row, place]
                terms.append(term if scale.shape[1] == 1 else term * scale[:, place, None])
            sums.append(functools.reduce(torch.add, terms).sum(-1))
    y = torch.stack(sums).view(rows, len(together), out).sum(1)
    y = (y * scale[:, 0] if scale.shape[1] == 1 else y).reshape(*x.shape[:-1], out)
    return y if bias is None else y + bias


_FORMS = {"linear": spread, "streams": streams}
