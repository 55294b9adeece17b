"""Nodes of a graph as JSON values: what engines keep of their programs, and what the eager back end runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from .errors import BackendError

_KINDS = (torch.dtype, torch.layout, torch.memory_format)


def write_node(node: fx.Node) -> list[Any]:
    """`[op, name, target, ...]`: placeholders carry dtype and shape, calls arguments and the pass that made them.

    Raises:
        BackendError: it holds a value that has no form.
    """
    if node.op == "output":
        return ["output", encode(node.args[0])]
    if node.op == "placeholder":
        value = node.meta["val"]
        free = any(isinstance(size, torch.SymInt) for size in value.shape)
        return ["input", node.name, str(node.target), encode(value.dtype), None if free else list(value.shape)]
    if node.op == "get_attr":
        return ["weight", node.name, str(node.target)]
    target = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else f"size.{node.target.__name__}"
    return ["call", node.name, target, encode(node.args), encode(node.kwargs), node.meta.get("specc_pass", "")]


def called(name: str) -> Callable[..., Any]:
    """The op, or operator on sizes, that a call names.

    Raises:
        AttributeError, ValueError: torch has none of that name.
    """
    space, op, *overload = name.split(".")
    if space == "size":
        return getattr(operator, op)
    return getattr(getattr(getattr(torch.ops, space), op), overload[0])


def encode(value: Any) -> Any:
    """JSON for an argument; what JSON lacks becomes `{kind: text}`, a dictionary `{"dict": ...}`.

    Raises:
        BackendError: it holds a value that has no form.
    """
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, _KINDS):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, dict):
        return {"dict": {k: encode(v) for k, v in value.items()}}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BackendError(f"a graph file has no form for {value!r} ({type(value).__name__})")


def decode(value: Any, nodes: Mapping[str, Any], device: torch.device | None = None) -> Any:
    """What `encode` was given, with `nodes` by name in the place of nodes, and `device` in that of every device."""
    if isinstance(value, list):
        return [decode(v, nodes, device) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "node":
        return nodes[inner]
    if kind == "dict":
        return {k: decode(v, nodes, device) for k, v in inner.items()}
    return device or torch.device(inner) if kind == "device" else getattr(torch, inner)
