"""A program's graph as a small JSON file: what an engine keeps so that other forms can be made from it later.

The graph is the one before `BindState`, so any back end's form can be bound to it. It names weights and holds none;
neither the models nor their library are needed to read it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import fx

from ..errors import BackendError, EngineFormatError
from ..graph_text import called, decode, write_node
from ..passes.graph import call
from ..passes.inputs import bucket
from ..program import Level, Program, Sizes, WeightStore

FORMAT = 1
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
    nodes = [write_node(node) for node in program.unbound.nodes]
    sizes = [program.sizes.batch, program.sizes.slots, program.sizes.chunk]
    head = {"format": FORMAT, "name": program.name, "sizes": sizes, "device": str(program.device)}
    write_lines(path, head, nodes)


def write_lines(path: Path, head: dict[str, Any], nodes: list[list[Any]]) -> None:
    """Write `head` and the nodes as one JSON object, a line for each node."""
    lines = ",\n".join(json.dumps(node, separators=(",", ":")) for node in nodes)
    path.write_text(f'{json.dumps(head)[:-1]}, "nodes": [\n{lines}\n]}}\n', encoding="utf-8")


def load_graph(path: Path, weights: WeightStore) -> Program:
    """Read a graph back as a program of level STATIC: `run(program, bound_passes(form=...))` is what comes next.

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


def _read_node(program: Program, entry: list[Any], env: dict[str, Any]) -> None:
    kind, *rest = entry
    if kind == "output":
        program.give(**decode(rest[0], env))
    elif kind == "weight":
        env[rest[0]] = program.weight(rest[1])
    elif kind == "input":
        name, target, dtype, shape = rest
        free = shape is None
        env[name] = bucket(program) if free else program.input(target, tuple(shape), decode(dtype, env))
    else:
        name, target, args, kwargs, maker = rest
        env[name] = call(program, None, called(target), *decode(args, env), **decode(kwargs, env))
        if isinstance(env[name], fx.Node):
            env[name].meta["specc_pass"] = maker
