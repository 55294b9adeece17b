"""The short text form of a graph: `name: dtype[shape] = op(args)`; used by dumps, goldens, keys and error excerpts."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_SHORT = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "b8",
}


def dump(graph: fx.Graph) -> str:
    """The graph, one node a line, in order; equal graphs give equal text."""
    return "\n".join(line(node) for node in graph.nodes)


def line(node: fx.Node) -> str:
    """One node in the short form."""
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    left = f"{node.name}: {value(node.meta.get('val'))}"
    if node.op == "placeholder":
        return f"{left} = input({node.target})"
    if node.op == "get_attr":
        return f"{left} = weight({node.target})"
    args = [_argument(arg) for arg in node.args] + [f"{k}={_argument(v)}" for k, v in node.kwargs.items()]
    return f"{left} = {operator_name(node.target)}({', '.join(args)})"


def value(val: Any) -> str:
    """`dtype[shape]` of a tensor, the tuple of those, or the Python type of a size."""
    if isinstance(val, torch.Tensor):
        return f"{_SHORT.get(val.dtype, str(val.dtype))}[{', '.join(map(str, val.shape))}]"
    if isinstance(val, (tuple, list)):
        return f"({', '.join(map(value, val))})"
    return "size" if isinstance(val, (int, torch.SymInt)) else type(val).__name__


def operator_name(target: Any) -> str:
    """`linear`, `add.Tensor`, `specc::attend`: the op without what goes without saying."""
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.removeprefix("aten::")
        return name if target._overloadname == "default" else f"{name}.{target._overloadname}"
    return getattr(target, "__name__", str(target))


def _argument(arg: Any) -> str:
    if isinstance(arg, fx.Node):
        return arg.name
    if isinstance(arg, (tuple, list)):
        return f"[{', '.join(map(_argument, arg))}]"
    if isinstance(arg, dict):
        return f"{{{', '.join(f'{k}: {_argument(v)}' for k, v in arg.items())}}}"
    return str(arg).removeprefix("torch.")
