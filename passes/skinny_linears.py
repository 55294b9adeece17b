"""Skinny products in the form that is fastest for their rows."""

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
PARTS = 8
FUSED = 24  # sums in one loop of `streams`: they, the weight's values and one of `x` fill the 32 registers of AVX-512
ChooseForm = Callable[[int, int, int, torch.dtype], str]


class SkinnyLinears(Pass):
    """Write `linear` over few rows in the form that reads its weight fastest; the stored weight stays as it is.

    Before: `y: f32[B, T, out] = linear(x, W)`
    After, by what `choose(out, in, rows, dtype)` says (rows = B * T):
    `linear`      as it stands;
    `split`       `bmm(x spread over 8, W seen as 8 blocks of rows)`: keeps the library out of its packing path;
    `columns`     `mm(x in column order, W.T)`;
    `transposed`  `(W @ x.T).T`;
    `streams`     sums of products that a compiler fuses into one loop over several parts of W at once.
    Which form serves is the back end's business, so this runs on the bound graph.
    Results differ from `linear` by rounding only. Which form wins depends on the processor and on the shape: measured
    on AVX2 `transposed` wins at 4 rows, on AVX-512 it loses there by 1.5x to `split`; `streams` beats both by a fifth,
    but only compiled.
    """

    after = (FuseLinears, ReadRows)  # both change shapes and rows
    reads = leaves = Level.ENGINE

    def __init__(self, *, choose: ChooseForm | None = None) -> None:
        self.choose = choose or usual_form

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            x, weight = node.args[:2]
            if weight.op != "get_attr":
                program.decline(self, node, "the weight is computed")
                continue
            (out, size), value = weight.meta["val"].shape, x.meta["val"]
            rows = value.numel() // size
            form = self.choose(out, size, rows, value.dtype)
            if form == "linear":
                continue
            new = emit(program, self, _ALL[form], x, weight, *node.args[2:], before=node)
            node.replace_all_uses_with(new)
            rewrites += 1
        clean_up(program.graph)
        return rewrites


def usual_form(out: int, size: int, rows: int, dtype: torch.dtype) -> str:
    """The form to take where nothing was measured."""
    fits = dtype == torch.float32 and out % PARTS == 0 and out >= 64
    return "split" if fits and 4 <= rows <= 12 else "linear"


def split(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[..., in]` by `[out, in]` as 8 products over blocks of the weight's rows; out is a multiple of 8."""
    out, size = weight.shape
    flat = x.reshape(-1, size)
    blocks = torch.bmm(flat.expand(PARTS, -1, -1), weight.view(PARTS, out // PARTS, size).mT)
    return _finish(blocks.permute(1, 0, 2).reshape(-1, out), x, bias)


def columns(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with `x` laid out column by column."""
    flat = x.reshape(-1, weight.shape[1])
    return _finish(torch.mm(flat.t().contiguous().t(), weight.t()), x, bias)


def transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with the weight on the left."""
    flat = x.reshape(-1, weight.shape[1])
    # In the strides of `linear`: what stands behind was traced for them, and may be a view that needs them.
    return _finish(torch.mm(weight, flat.t()).t().contiguous(), x, bias)


def streams(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product as sums, one per row of `x` and part of the weight's rows.

    Inductor fuses the sums horizontally: its loop reads each value of the weight once, for all rows, and walks through
    up to 4 parts side by side. One part alone leaves the core waiting: hardware prefetch starts anew at every 4 KiB.
    A row's sum has the same order whatever the other rows, so programs for 1 and 4 rows agree to the last bit.
    """
    (out, size), flat = weight.shape, x.reshape(-1, weight.shape[1]).contiguous()
    rows = flat.shape[0]
    flat = flat.as_strided((rows, size), (size, 1))  # has x computed once, ahead, not again in each sum
    parts = next(p for p in range(max(1, min(4, FUSED // rows)), 0, -1) if out % p == 0)
    blocks = weight.view(parts, out // parts, size)
    sums = [(blocks[p] * flat[row]).sum(-1) for row in range(rows) for p in range(parts)]
    return _finish(torch.cat(sums).view(rows, out), x, bias)


def _finish(flat: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    y = flat.reshape(*x.shape[:-1], flat.shape[-1])
    return y if bias is None else y + bias


FORMS = {"split": split, "columns": columns, "transposed": transposed}
COMPILED_FORMS = {"streams": streams}  # run op by op they make whole copies of the weight
_ALL = {**FORMS, **COMPILED_FORMS}
