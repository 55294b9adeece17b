"""A program's graph as a small JSON file: what an engine keeps so that other forms can be made from it later.

The graph is the one before `BindState`, so any back end's form can be bound to it. It names weights and holds none;
neither the models nor their library are needed to read it.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import fx

from ..errors import BackendError, EngineFormatError
from ..passes.graph import call
from ..passes.inputs import bucket
from ..program import Level, Program, Sizes, WeightStore

FORMAT = 1
_KINDS = (torch.dtype, torch.layout, torch.memory_format)
_SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"} | {
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"
}  # fmt: skip


def save_graph(program: Program, path: Path) -> None:
    """Write the graph that `BindState` found; may be called at any time after it ran.

    Raises:
        BackendError: the program was not bound, or holds a value that the file has no form for.
    """
    if program.unbound is None:
        raise BackendError(f"program {program.name} is not bound: run its passes to the end before saving its graph")
    nodes = [_write_node(node) for node in program.unbound.nodes]
    sizes = [program.sizes.batch, program.sizes.slots, program.sizes.chunk]
    head = {"format": FORMAT, "name": program.name, "sizes": sizes, "device": str(program.device)}
    lines = ",\n".join(json.dumps(node, separators=(",", ":")) for node in nodes)
    path.write_text(f'{json.dumps(head)[:-1]}, "nodes": [\n{lines}\n]}}\n', encoding="utf-8")


def load_graph(path: Path, weights: WeightStore) -> Program:
    """Read a graph back as a program of level STATIC: `run(program, [BindState(form=...)])` is what comes next.

    Args:
        weights: tensors by the names in the file; `weight_layouts` will do where no values are needed.

    Raises:
        EngineFormatError: the file is not such a graph, or needs ops or weights that are not here.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}, not {FORMAT}")
        program = Program(raw["name"], {}, weights, Sizes(*raw["sizes"]), raw["device"])
        env: dict[str, Any] = {}
        for entry in reversed(raw["nodes"]):  # each new weight stands in front of the others
            if entry[0] == "weight":
                program.weight(entry[2])
        with program.graph.inserting_before(program.output):
            for entry in raw["nodes"]:
                _read_node(program, entry, env)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as e:
        raise EngineFormatError(f"{path}: not a graph that this specc reads ({e}); compile the engine again") from e
    program.level = Level.STATIC
    return program


def weight_layouts(path: Path) -> WeightStore:
    """The tensors of a safetensors file without their values (on device `meta`): nothing is read but the header."""
    store = WeightStore()
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  the file is no mapping
            part = file.get_slice(name)
            store.add(name, torch.empty(part.get_shape(), dtype=torch_dtype(part.get_dtype()), device="meta"))
    return store


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that safetensors calls `F32`, `BF16`, ..."""
    return getattr(torch, _SAFETENSORS[name])


def _write_node(node: fx.Node) -> list[Any]:
    """`[op, name, target, ...]`: placeholders carry dtype and shape, calls arguments and the pass that made them."""
    if node.op == "output":
        return ["output", _encode(node.args[0])]
    if node.op == "placeholder":
        value = node.meta["val"]
        free = any(isinstance(size, torch.SymInt) for size in value.shape)
        return ["input", node.name, str(node.target), _encode(value.dtype), None if free else list(value.shape)]
    if node.op == "get_attr":
        return ["weight", node.name, str(node.target)]
    target = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else f"size.{node.target.__name__}"
    return ["call", node.name, target, _encode(node.args), _encode(node.kwargs), node.meta.get("specc_pass", "")]


def _read_node(program: Program, entry: list[Any], env: dict[str, Any]) -> None:
    kind, *rest = entry
    if kind == "output":
        program.give(**_decode(rest[0], env))
    elif kind == "weight":
        env[rest[0]] = program.weight(rest[1])
    elif kind == "input":
        name, target, dtype, shape = rest
        free = shape is None
        env[name] = bucket(program) if free else program.input(target, tuple(shape), _decode(dtype, env))
    else:
        name, target, args, kwargs, maker = rest
        env[name] = call(program, None, _target(target), *_decode(args, env), **_decode(kwargs, env))
        if isinstance(env[name], fx.Node):
            env[name].meta["specc_pass"] = maker


def _target(name: str) -> Callable[..., Any]:
    space, op, *overload = name.split(".")
    if space == "size":
        return getattr(operator, op)
    return getattr(getattr(getattr(torch.ops, space), op), overload[0])


def _encode(value: Any) -> Any:
    """JSON for an argument; what JSON lacks becomes `{kind: text}`, a dictionary `{"dict": ...}`."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, _KINDS):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, dict):
        return {"dict": {k: _encode(v) for k, v in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BackendError(f"a graph file has no form for {value!r} ({type(value).__name__})")


def _decode(value: Any, env: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(v, env) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "node":
        return env[inner]
    if kind == "dict":
        return {k: _decode(v, env) for k, v in inner.items()}
    return torch.device(inner) if kind == "device" else getattr(torch, inner)
