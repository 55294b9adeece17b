"""What a graph may hold at each level; run after every pass."""

from __future__ import annotations

import operator

import torch
from torch import fx

from ..errors import PassError
from ..program import Level, Program
from .dump import line

_SIZES = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.getitem)
_OURS = {
    torch.ops.specc.attend.default: Level.FUSED,
    torch.ops.specc.cached_attention.default: Level.ENGINE,  # `ExpandAttention` stands behind `BindState`
    torch.ops.specc.kv_update.default: Level.STATIC,
    torch.ops.specc.noise.default: Level.STATIC,
    torch.ops.specc.byte_linear.default: Level.ENGINE,  # asked for with back ends that run it
    torch.ops.specc.skinny_linear.default: Level.ENGINE,  # likewise
    torch.ops.specc.levels_linear.default: Level.ENGINE,
    torch.ops.specc.dequantise.default: Level.ENGINE,  # `QuantisedLinears` stands behind `BindState`
}
# No ONNX function, no TensorRT converter, or a result that depends on more than its arguments.
_BANNED = {
    "aten::cumprod", "aten::searchsorted", "aten::bucketize", "aten::multinomial", "aten::nonzero", "aten::all",
    "aten::bernoulli", "aten::rand", "aten::rand_like", "aten::randn", "aten::randint", "aten::item",
    "aten::_local_scalar_dense",
}  # fmt: skip


def check(program: Program, level: Level, kept: frozenset[object] = frozenset()) -> None:
    """Check the program's graph against a level's grammar.

    Args:
        kept: ops of ours that the back end runs itself, allowed to the end.

    Raises:
        PassError: names the first node that does not belong, in the dump's form.
    """
    program.graph.lint()
    for node in program.graph.nodes:
        problem = _problem(node, level, kept, program)
        if problem:
            raise PassError(f"{program.name}: {problem} at level {level.name}: {line(node)}")


def _problem(node: fx.Node, level: Level, kept: frozenset[object], program: Program) -> str:
    if node.op == "output":
        return ""
    if "val" not in node.meta:
        return "node without meta['val']"
    if node.op == "get_attr":
        return "" if str(node.target) in program.weights else "weight that is not stored"
    if node.op == "placeholder":
        return "" if node.target != "bucket" or _is_free(node.meta["val"].shape[0]) else "number of slots that is fixed"
    if node.op != "call_function":
        return f"{node.op} node"
    if node.target in _SIZES:
        return ""
    if not isinstance(node.target, torch._ops.OpOverload):
        return "call of something that is not an op"
    if node.target in _OURS:
        return "" if level <= _OURS[node.target] or node.target in kept else "op that should have been lowered"
    if node.target.namespace != "aten":
        return f"op of {node.target.namespace}"
    return "op that engines may not hold" if node.target._schema.name in _BANNED else ""


def _is_free(size: int | torch.SymInt) -> bool:
    """Whether a size is still symbolic: tracing may have fixed it where an op asked for its value."""
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None
