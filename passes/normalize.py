"""Export's leftovers out of the captured models."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..program import Level, Model, Program
from .contract import Pass
from .graph import clean_up

_aten = torch.ops.aten
_LAST = 2**63 - 1


class Normalize(Pass):
    """Remove ops that return their input, and compute equal things once.

    Before: `y = mul.Tensor(x, 1.0)`, `y = _to_copy(x, dtype=<that of x>)`, `y = slice(x, 1, 0, <end>)`, `y = alias(x)`;
            `a = unsqueeze(x, 1)`, `b = unsqueeze(x, 1)`
    After:  `x` in place of `y`; `a` in place of `b`; dead code gone.
    Values are unchanged to the last bit.
    """

    reads = leaves = Level.CAPTURED

    def run(self, program: Program) -> int:
        return sum(self._model(model) for model in program.models.values())

    def _model(self, model: Model) -> int:
        rewrites = 0
        seen: dict[tuple[Any, ...], fx.Node] = {}
        size = len(model.graph.nodes)
        for node in list(model.graph.nodes):
            if node.op != "call_function":
                continue
            same = node.args[0] if _is_identity(node) else None
            if same is None and _is_pure(node):
                same = seen.setdefault(_signature(node), node)
            if same is not None and same is not node:
                node.replace_all_uses_with(same)
                model.graph.erase_node(node)
                rewrites += 1
        clean_up(model.graph)
        dead = size - rewrites - len(model.graph.nodes)
        return rewrites + dead


def _is_identity(node: fx.Node) -> bool:
    target, args = node.target, node.args
    if not args or not isinstance(args[0], fx.Node):
        return False
    value, source = node.meta["val"], args[0].meta["val"]
    if not (isinstance(value, torch.Tensor) and isinstance(source, torch.Tensor)):
        return False
    if value.dtype != source.dtype or value.device != source.device or value.shape != source.shape:
        return False
    if target in (_aten.alias.default, _aten.detach.default, _aten.detach_.default, _aten.lift_fresh_copy.default):
        return True
    if target in (_aten._to_copy.default, _aten.to.dtype, _aten.to.dtype_layout, _aten.to.device):
        return node.kwargs.get("memory_format") in (None, torch.preserve_format)
    if target in (_aten.mul.Tensor, _aten.div.Tensor):
        return _is_number(args[1], 1)
    if target in (_aten.add.Tensor, _aten.sub.Tensor):
        return _is_number(args[1], 0) and not source.is_floating_point()  # -0.0 + 0 is 0.0
    if target is _aten.slice.Tensor:
        return (args[2:3] or (None,))[0] in (None, 0) and (args[3:4] or (None,))[0] in (None, _LAST)
    if target is _aten.dropout.default:
        return args[1] == 0.0 or args[2] is False
    return target in (_aten.expand.default, _aten.view.default, _aten.reshape.default)


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number


def _is_pure(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable


def _signature(node: fx.Node) -> tuple[Any, ...]:
    """Equal for nodes that compute the same: numbers keep their type (1 and 1.0 and True differ)."""

    def freeze(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple(freeze(v) for v in value)
        return value if isinstance(value, fx.Node) else (type(value), str(value))

    return node.target, freeze(node.args), tuple((k, freeze(v)) for k, v in sorted(node.kwargs.items()))
