"""A bound program as an `ExportedProgram`, the form that every back end takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._export.verifier import TrainingIRVerifier
from torch.export import Dim, ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils._pytree import tree_structure
from torch.utils._sympy.value_ranges import ValueRanges

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
    weights = {name: program.weights.on(program.device, name) for name in program.weight_names()}
    module = graph_module(graph, weights)
    shapes = dynamic_shapes(program)
    try:
        with torch.no_grad():
            return torch.export.export(module, example_inputs(program), dynamic_shapes=shapes, strict=False)
    except Exception as e:
        raise BackendError(f"torch.export refuses program {program.name}: {type(e).__name__}: {str(e)[:300]}") from e


def export_lifted(program: Program) -> ExportedProgram:
    """The program as an `ExportedProgram` without weights: they are arguments, after the inputs.

    The graph is taken as it stands, not traced again: it has all that an exported program needs, and tracing takes 30
    times longer. No tensor is made, so it works for a device that is not there.

    Returns:
        Arguments: the inputs in the order of the placeholders, then the weights in that of `weight_names()`. Results:
        a tuple in the order of `values`. Caches that the program writes are written in place.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    inputs, reads = program.graph.find_nodes(op="placeholder"), program.graph.find_nodes(op="get_attr")
    for node in inputs:
        env[node] = graph.placeholder(str(node.target))
    weights = {name: graph.placeholder(f"weight_{i}") for i, name in enumerate(program.weight_names())}
    env |= {node: weights[str(node.target)] for node in reads}
    for node in [*inputs, *reads]:
        env[node].meta = {"val": node.meta["val"]}
    for node in (n for n in program.graph.nodes if n.op == "call_function"):
        env[node] = graph.node_copy(node, env.__getitem__)
        env[node].meta = {"val": node.meta["val"]}  # stack traces would be most of a file
    results = [env[node] for node in program.values.values()]
    graph.output(tuple(results))
    return _exported(program, graph, graph.find_nodes(op="placeholder"), results)


def _exported(program: Program, graph: fx.Graph, arguments: list[fx.Node], results: list[fx.Node]) -> ExportedProgram:
    taken, given = [TensorArgument(n.name) for n in arguments], [TensorArgument(n.name) for n in results]
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, argument, None) for argument in taken],
        [OutputSpec(OutputKind.USER_OUTPUT, result, None) for result in given],
    )
    call = ModuleCallSignature(
        inputs=list(taken),
        outputs=list(given),
        in_spec=tree_structure((tuple(range(len(taken))), {})),
        out_spec=tree_structure(tuple(range(len(given)))),
    )
    sizes = [s for n in arguments for s in n.meta["val"].shape if isinstance(s, torch.SymInt)]
    return ExportedProgram(
        root=torch.nn.Module(),
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={size.node.expr: ValueRanges(2, program.sizes.slots - 1) for size in sizes},
        module_call_graph=[ModuleCallEntry("", call)],
        constants={},
        verifiers=[TrainingIRVerifier],
    )
