"""A bound program as an `ExportedProgram`, the form that every back end takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram

from ..errors import BackendError
from ..program import Program, graph_module


def example_inputs(program: Program) -> tuple[Tensor, ...]:
    """Zeros in the shapes of the program's inputs; the bucket at a length in the middle."""
    examples = []
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        shape = [max(2, program.sizes.slots // 2) if isinstance(s, torch.SymInt) else s for s in value.shape]
        examples.append(torch.zeros(shape, dtype=value.dtype, device=program.device))
    return tuple(examples)


def dynamic_shapes(program: Program) -> tuple[dict[int, Any] | None, ...]:
    """The bucket's length is free in 2..S-1 (n = S would be guarded out); everything else is static."""
    largest = program.sizes.slots - 1
    return tuple(
        {0: Dim("n", min=2, max=largest)} if node.target == "bucket" else None
        for node in program.graph.find_nodes(op="placeholder")
    )


def export_program(program: Program) -> ExportedProgram:
    """Export the program as it stands: inputs in the order of its placeholders, outputs in that of its values.

    Raises:
        BackendError: `torch.export` refuses the graph.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(program.graph, env)
    graph.output(tuple(env[node] for node in program.values.values()))
    module = graph_module(graph, {name: program.weights[name] for name in program.weight_names()})
    shapes = dynamic_shapes(program)
    try:
        with torch.no_grad():
            return torch.export.export(module, example_inputs(program), dynamic_shapes=shapes, strict=False)
    except Exception as e:
        raise BackendError(f"torch.export refuses program {program.name}: {type(e).__name__}: {str(e)[:300]}") from e
