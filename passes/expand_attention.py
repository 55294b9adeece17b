"""Attention in what the back end can run: one native op, or two products with the cache and two with the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ..attention import two_part_attention
from ..program import Level, Program
from .bind_state import BindState
from .contract import Pass
from .graph import clean_up, emit

_cached_attention = torch.ops.specc.cached_attention.default
_ARGUMENTS = [argument.name for argument in _cached_attention._schema.arguments]
Attends = Callable[[int, torch.dtype], bool]
"""Whether attention of so many rows of a query's block, in that dtype, is to be native."""


class ExpandAttention(Pass):
    """Write `specc::cached_attention` in plain ops, but where the back end runs it as it is.

    Before: `specc::cached_attention(q, cache_k, cache_v, rows_k, rows_v, length, mask, bucket, scale, ...)`
    After:  the same, where `attends(T, dtype)` says so, its rows in memory as native code reads them; elsewhere scores
    of the `n` slots of the bucket and of the rows, made apart, one softmax over both, and the values mixed apart.
    Source: the two-part form of flash decoding's split softmax (Dao et al. 2023).
    """

    after = (BindState,)  # the graph that engines keep for other back ends holds the op
    reads = leaves = Level.ENGINE
    required = True

    def __init__(self, *, attends: Attends | None = None) -> None:
        self.attends = attends or (lambda rows, dtype: False)

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_cached_attention):
            value = node.args[0].meta["val"]
            if self.attends(value.shape[2], value.dtype):
                rewrites += self._straighten(program, node)
                continue
            args = dict(zip(_ARGUMENTS, node.args, strict=False)) | node.kwargs
            static = {name: args.get(name) for name in ("scale", "window", "softcap")}
            tensors = {k: v for k, v in args.items() if k not in static and v is not None}
            given = tuple(tensors)
            out = emit(program, self, _expanded, *tensors.values(), before=node, given=given, **static)
            node.replace_all_uses_with(out)
            rewrites += 1
        clean_up(program.graph)
        return rewrites

    def _straighten(self, program: Program, node: fx.Node) -> bool:
        """Make contiguous what native code reads in one piece: a row of the floats, the whole of the others."""
        changed = False
        for place, arg in enumerate(node.args):
            if not isinstance(arg, fx.Node):
                continue
            value = arg.meta["val"]
            if value.stride(-1) != 1 if value.dtype.is_floating_point else not value.is_contiguous():
                node.update_arg(place, emit(program, self, _whole, arg, before=node))
                changed = True
        return changed


def _whole(x: Tensor) -> Tensor:
    return x.contiguous()


def _expanded(*tensors: Tensor, given: tuple[str, ...], **static: Any) -> Tensor:
    named = dict(zip(given, tensors, strict=True))
    return two_part_attention(slots=named.pop("bucket").shape[0], **named, **static)
