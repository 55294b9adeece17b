"""Logits only for rows that somebody reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..program import Level, Program
from .contract import Pass
from .graph import call, clean_up, emit
from .lower_attention import LowerAttention

_aten = torch.ops.aten
_ROW_BY_ROW = (
    _aten.linear.default,
    _aten.tanh.default,
    _aten._to_copy.default,
    _aten.to.dtype,
)
_WITH_NUMBER = (_aten.mul.Tensor, _aten.div.Tensor)


class ReadRows(Pass):
    """Move the choice of rows in front of the head (and of the scaling and capping behind it).

    Before: `logits: f32[B, R, V] = linear(x, head)`, `read: f32[B, M, V] = gather(logits, 1, rows)`
    After:  `x1: f32[B, M, E] = gather(x, 1, rows)`, `read: f32[B, M, V] = linear(x1, head)`
    Does not fire where the other rows are read as well. Where nobody reads any (prefill), the head is dead code.
    """

    after = (LowerAttention,)
    reads = leaves = Level.STATIC

    def run(self, program: Program) -> int:
        rewrites = 0
        for gather in program.graph.find_nodes(op="call_function", target=_aten.gather.default):
            while gather is not None:
                gather = self._move_up(program, gather)
                rewrites += gather is not None
        clean_up(program.graph)
        return rewrites

    def _move_up(self, program: Program, gather: fx.Node) -> fx.Node | None:
        """Exchange the gather with the op before it; the gather's new place, or None where it stays."""
        source, dim, index = gather.args
        if dim != 1 or not isinstance(source, fx.Node) or not _keeps_rows(source):
            return None
        rows = _rows(index)
        if rows is None:
            return None
        if len(source.users) > 1:
            program.decline(self, source, "other rows are read as well")
            return None
        inner = source.args[0]
        assert isinstance(inner, fx.Node)
        picked = emit(program, self, _pick, inner, rows, before=gather)
        with program.graph.inserting_before(gather):
            moved = call(program, self, source.target, picked, *source.args[1:], origin=source, **source.kwargs)
        gather.replace_all_uses_with(moved)
        program.graph.erase_node(gather)
        program.graph.erase_node(source)
        return picked


def _keeps_rows(node: fx.Node) -> bool:
    """Whether each row of the result comes from the same row of the first argument alone."""
    if node.target in _WITH_NUMBER:
        return isinstance(node.args[1], (int, float))
    if node.target is _aten.linear.default:
        return isinstance(node.args[1], fx.Node) and node.args[1].op == "get_attr"
    return node.target in _ROW_BY_ROW


def _rows(index: Any) -> fx.Node | None:
    """The `[B, M, 1]` node behind an index that was spread over the last dimension."""
    if isinstance(index, fx.Node) and index.target is _aten.expand.default:
        inner = index.args[0]
        if isinstance(inner, fx.Node) and inner.meta["val"].shape[-1] == 1:
            return inner
    return None


def _pick(x: Tensor, rows: Tensor) -> Tensor:
    return x.gather(1, rows.expand(-1, -1, x.shape[2]))
