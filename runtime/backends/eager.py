"""The eager back end: the same graphs, run op by op by PyTorch. The reference, and what works everywhere."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from ...errors import EngineFormatError
from ...graph_text import called, decode
from ...manifest import ProgramSpec
from ..call import Runner


def open_eager(path: Path, spec: ProgramSpec, weights: Mapping[str, Tensor], device: torch.device) -> Runner:
    """A program of aten ops, read at its first call: a request needs two or three of an engine's programs.

    Raises:
        EngineFormatError: the file is not such a program, or not the one that the manifest describes (at the first
            call).
    """

    @functools.cache
    def module() -> fx.GraphModule:
        try:
            return _read(json.loads(path.read_text(encoding="utf-8"))["nodes"], spec, weights, device)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as e:
            raise EngineFormatError(
                f"{path}: torch {torch.__version__} cannot read this program ({type(e).__name__}: {e}); compile again"
            ) from e

    def run(arguments: list[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            results: tuple[Tensor, ...] = module()(*arguments)
        return results

    return run


def _read(
    nodes: list[list[Any]], spec: ProgramSpec, weights: Mapping[str, Tensor], device: torch.device
) -> fx.GraphModule:
    """The program as a module of its inputs; weights are lent to it under the names of their nodes."""
    graph, root, made = fx.Graph(), torch.nn.Module(), dict[str, Any]()
    *body, (_, results) = nodes
    inputs = tuple(str(node[2]) for node in body if node[0] == "input")
    if inputs != spec.inputs or len(results) != len(spec.outputs):
        raise ValueError(f"it has inputs {', '.join(inputs)}, and the manifest says {', '.join(spec.inputs)}")
    for kind, name, target, *rest in body:
        if kind == "input":
            made[name] = graph.placeholder(name)
        elif kind == "weight":
            root.register_buffer(name, weights[target])
            made[name] = graph.create_node("get_attr", name)
        else:
            args, kwargs = (decode(value, made, device) for value in rest[:2])
            made[name] = graph.call_function(called(target), tuple(args), kwargs)
    graph.output(tuple(made[name] for name in results))
    return fx.GraphModule(root, graph)
