"""Product times: what a pass over several rows costs against one over a single row, from the model's products alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch

from .program import Model
from .runtime.cost import interpolate

_aten = torch.ops.aten
ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 16)  # places around which costs come in steps
TimeProduct = Callable[[int, int, int], float]
"""Seconds of a product of `[rows, in]` by a weight of `[out, in]`, from out, in and rows."""


def products(model: Model) -> Counter[tuple[int, int]]:
    """How often a captured model multiplies by a stored weight of each `(out, in)`.

    Products by weights that are chosen at run time (experts) are not among them.
    """
    found: Counter[tuple[int, int]] = Counter()
    for node in model.graph.nodes:
        if node.target is _aten.linear.default:
            places, turned = (1,), False
        elif node.target in (_aten.mm.default, _aten.addmm.default, _aten.matmul.default):
            places, turned = (2,) if node.target is _aten.addmm.default else (1,), True
        else:
            continue
        weight = node.args[places[0]]
        if weight.op == "get_attr" and weight.meta["val"].ndim == 2:
            out, size = weight.meta["val"].shape
            found[(int(size), int(out)) if turned else (int(out), int(size))] += 1
    return found


def pass_times(shapes: Mapping[tuple[int, int], int], time: TimeProduct) -> Callable[[int], float]:
    """Seconds of all products of a pass by its rows (up to `ROWS[-1]`), measured at `ROWS`, straight lines between.

    More rows are taken never to be faster: where that was seen it is noise.
    """
    seconds: list[float] = []
    for rows in ROWS:
        measured = sum(count * time(out, size, rows) for (out, size), count in shapes.items())
        seconds.append(max([measured, *seconds[-1:]]))

    return lambda rows: interpolate(ROWS, seconds, rows)
