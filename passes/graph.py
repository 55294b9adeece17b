"""FX helpers that passes share: call an op, inline a graph, emit a tensor function, clean up."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ..errors import PassError
from ..program import Program

_PYTHON_VALUES = (int, float, bool, str, type(None))


def call(program: Program, maker: object, target: Any, *args: Any, origin: fx.Node | None = None, **kwargs: Any) -> Any:
    """Append one op to the program; its value is computed on fake tensors, so sizes that are known become numbers.

    Args:
        maker: the pass, recorded in `meta["specc_pass"]`.
        target: an aten op, one of ours, or an operator on sizes.
        args: nodes and Python values; `kwargs` alike.
        origin: node whose stack trace and model the new one carries.

    Returns:
        The new node, or a plain Python value where the result is one (a size that is not symbolic).
    """
    args, kwargs = _on_device(program, (args, kwargs))
    value = _evaluate(program, target, args, kwargs)
    if isinstance(value, _PYTHON_VALUES):
        return value
    node = program.graph.call_function(target, args, kwargs)
    node.meta["val"] = value
    node.meta["specc_pass"] = type(maker).__name__
    for key in ("stack_trace", "specc_model"):
        if origin is not None and key in origin.meta:
            node.meta[key] = origin.meta[key]
    return node


def _on_device(program: Program, arguments: Any) -> Any:
    """Capture ran on the CPU and wrote that into `arange(..., device=cpu)`: a device is always the program's."""
    return fx.node.map_aggregate(arguments, lambda a: program.device if isinstance(a, torch.device) else a)


def _evaluate(program: Program, target: Any, args: Any, kwargs: Any) -> Any:
    values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    with program.fake_mode:
        return target(*values[0], **values[1])


def refresh(program: Program, node: fx.Node) -> None:
    """Compute the values of a node's users anew, as far as their strides change: what is written later sees them."""
    for user in node.users:
        if user.op != "call_function":
            continue
        before, after = user.meta["val"], _evaluate(program, user.target, user.args, user.kwargs)
        user.meta["val"] = after
        if not isinstance(after, Tensor) or after.stride() != before.stride():
            refresh(program, user)


def inline(
    program: Program,
    maker: object,
    graph: fx.Graph,
    args: Sequence[Any],
    before: fx.Node | None = None,
    model: str = "",
) -> tuple[Any, list[fx.Node]]:
    """Copy a graph into the program, specialised to the sizes of `args`.

    Args:
        graph: placeholders take `args` in order; `get_attr` targets are names in the program's weight store.
        before: where to insert; None is the end.
        model: whose graph it is; noted in `meta["specc_model"]`, which the nodes that replace these inherit.

    Returns:
        What the graph returns, as nodes of the program, and the copied `specc::attend` markers in order.
    """
    env: dict[fx.Node, Any] = dict(zip(graph.find_nodes(op="placeholder"), args, strict=True))
    markers: list[fx.Node] = []
    with program.graph.inserting_before(before or program.output):
        for node in graph.nodes:
            if node.op == "get_attr":
                env[node] = program.weight(str(node.target))
            elif node.op == "call_function":
                new_args, new_kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = call(program, maker, node.target, *new_args, origin=node, **new_kwargs)
                if model and isinstance(env[node], fx.Node):
                    env[node].meta["specc_model"] = model
                if node.target is torch.ops.specc.attend.default:
                    markers.append(env[node])
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], env.__getitem__), markers
            elif node.op != "placeholder":
                raise PassError(
                    f"inline: {node.op} {node.target} cannot stand in a program; Normalize should remove it"
                )
    raise PassError("inline: the graph has no output node")


def emit(
    program: Program,
    maker: object,
    function: Callable[..., Any],
    *args: Any,
    before: fx.Node | None = None,
    **static: Any,
) -> Any:
    """Append what a function on tensors does, op by op: the function itself stays testable alone.

    Args:
        function: takes tensors, or NamedTuples of them, and the Python values of `static`; makes no tensor from Python
            data (use `program.constant`), and branches on shapes only.
        args: nodes, or NamedTuples of them, in place of the function's tensors.

    Returns:
        The function's result with nodes in place of tensors.

    Raises:
        PassError: the function made a tensor constant.
    """
    nodes, form = tree_flatten(args)
    values = [node.meta["val"] for node in nodes]
    shapes = tuple((str(v.dtype), str(tuple(v.shape)), str(v.stride())) for v in values)
    key = (function, tuple(static.items()), str(form), shapes)
    if key not in program.traces:  # thirty layers trace once
        program.traces[key] = _trace(program, function, values, form, static)
    return inline(program, maker, program.traces[key], nodes, before)[0]


def _trace(
    program: Program, function: Callable[..., Any], values: list[Any], form: TreeSpec, static: dict[str, Any]
) -> fx.Graph:
    def traced(*tensors: Tensor) -> Any:
        return function(*tree_unflatten(tensors, form), **static)

    with program.fake_mode:  # each argument a tensor of its own, or `f(x, x)` would be traced for `f(x, y)` too
        module = make_fx(traced, tracing_mode="real")(*[v.detach() for v in values])
    for node in module.graph.find_nodes(op="get_attr"):
        raise PassError(f"emit: {function.__name__} makes the tensor constant {node.target}; use program.constant")
    return module.graph


def item(node: fx.Node) -> list[fx.Node]:
    """The `getitem` users of a node with several results, by index (never trust the order of users)."""
    found = [user for user in node.users if user.target is operator.getitem]
    return sorted(found, key=lambda user: int(user.args[1]))


def clean_up(graph: fx.Graph) -> None:
    """Drop dead code and check that the graph is well formed: the last act of every pass."""
    graph.eliminate_dead_code()
    graph.lint()
