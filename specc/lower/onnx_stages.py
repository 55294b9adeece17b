"""One function a stage in an ONNX model, so that a person can read it: draft, verify, accept, commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx

from ..program import Program

STAGES = ("draft", "verify", "accept", "commit")
DOMAIN = "specc"
NOTE = "pkg.torch.onnx.stack_trace"  # where torch's exporter keeps a node's stack trace, in which the pass is noted
_OF = {
    "InlineVerify": "verify",
    "ProcessLogits": "accept",
    "AcceptDraft": "accept",
    "LookaheadUpdate": "accept",
    "Commit": "commit",
    "BindState": "commit",
}
# Passes that rewrite what is there say nothing of its stage: such nodes belong to whoever reads them.
_ANYWHERE = (
    "LowerAttention",
    "ExpandAttention",
    "ReadRows",
    "ShareWeights",
    "FuseLinears",
    "QuantiseDraft",
    "SkinnyLinears",
    "RotaryTables",
)


def note_passes(program: Program, exported: fx.Graph) -> None:
    """Note in the exported graph which pass made each node, in a place that survives torch's exporter."""
    for ours, theirs in zip(_calls(program.graph), _calls(exported), strict=True):
        theirs.meta["stack_trace"] = ours.meta.get("specc_pass", "")


def outline(ir: Any, model: Any) -> None:
    """Move the nodes of each stage into a function of the model, which calls them one after the other.

    A stage reads what earlier ones gave; what several read belongs to the first of them. Weights are arguments, so
    they stay initializers of the model; small constants are nodes of their function.

    Args:
        ir: `onnxscript.ir`.
        model: of a whole step, translated with `note_passes`.
    """
    graph = model.graph
    stages = _stages(graph)
    by_stage = {stage: [node for node in graph if stages[node] == place] for place, stage in enumerate(STAGES)}
    results = set(graph.outputs)
    for stage, nodes in by_stage.items():
        if nodes:
            _move(ir, model, stage, nodes, results)
    for name in [name for name, value in graph.initializers.items() if not value.uses() and value not in results]:
        del graph.initializers[name]
    graph.opset_imports[DOMAIN] = 1


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _stages(graph: Any) -> dict[Any, int]:
    """The place of every node's stage: its own pass's, but no later than that of any node that reads it."""
    last, found = len(STAGES) - 1, dict[Any, int]()
    for node in reversed(list(graph)):
        made_by = node.metadata_props.get(NOTE, "")
        free = made_by in _ANYWHERE or made_by.startswith("File ") or not made_by
        own = last if free else STAGES.index(_OF.get(made_by, "draft"))
        readers = [found[user.node] for out in node.outputs for user in out.uses()]
        found[node] = min([own, *readers])
    return found


def _move(ir: Any, model: Any, stage: str, nodes: list[Any], results: set[Any]) -> None:
    graph, inside = model.graph, set(nodes)
    read = _in_order(value for node in nodes for value in node.inputs if value is not None)
    taken = [value for value in read if value.producer() not in inside and not _is_small(value)]
    given = [
        out
        for node in nodes
        for out in node.outputs
        if out in results or any(user.node not in inside for user in out.uses())
    ]
    arguments = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in taken]
    inner = dict(zip(taken, arguments, strict=True))
    constants: list[Any] = []
    for value in read:
        if value.producer() not in inside and _is_small(value):
            inner[value] = ir.Value(name=f"constant_{len(constants)}", type=value.type, shape=value.shape)
            held = ir.AttrTensor("value", value.const_value)
            constants.append(ir.Node("", "Constant", [], [held], outputs=[inner[value]]))
    outer = [ir.Value(name=out.name, type=out.type, shape=out.shape) for out in given]
    call = ir.Node(DOMAIN, stage, taken, outputs=outer, name=stage)
    graph.append(call)  # behind the calls of the stages before: in the end they are all there is
    for value, result in zip(given, outer, strict=True):
        for user in list(value.uses()):
            if user.node not in inside:
                user.node.replace_input_with(user.idx, result)
        for place, out in enumerate(graph.outputs):
            if out is value:
                graph.outputs[place] = result
                results.add(result)
    for node in nodes:
        for place, value in enumerate(node.inputs):
            if value in inner:
                node.replace_input_with(place, inner[value])
    graph.remove(nodes)
    body = ir.Graph(arguments, given, nodes=[*constants, *nodes], opset_imports=dict(graph.opset_imports), name=stage)
    function = ir.Function(DOMAIN, stage, graph=body, attributes=[])
    model.functions[function.identifier()] = function


def _in_order(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _is_small(value: Any) -> bool:
    """An initializer of a few numbers; shapes and axes, which some readers want to see where they are used."""
    return value.const_value is not None and value.producer() is None and value.const_value.nbytes <= 1024
