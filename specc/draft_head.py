"""Cut a drafter's language-model head to the tokens that it is to draft."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from torch import Tensor, fx

from .errors import ConfigError
from .program import Model

_linear = torch.ops.aten.linear.default


def cut_head(model: Model, columns: Tensor) -> Model:
    """The model with logits of `columns` alone, in that order: `[B, T, V]` becomes `[B, T, len(columns)]`.

    The head's rows (and bias) become weights of their own, so an embedding that was tied to it stays whole; what is
    computed behind the head (scaling, capping) is per logit and stays.
    Source: frequency-ranked speculative sampling (Zhao et al. 2025, FR-Spec).

    Args:
        model: a drafter whose first result is its logits.
        columns: `[N]` int64.

    Raises:
        ConfigError: the logits do not come from one `linear`, followed by arithmetic on each logit alone.
    """
    model = model.copy()
    (output,) = model.graph.find_nodes(op="output")
    behind: list[fx.Node] = []
    head = output.args[0][0]
    while head.target is not _linear:
        inner = [a for a in head.all_input_nodes if a.meta["val"].shape == head.meta["val"].shape]
        if head.op != "call_function" or len(head.all_input_nodes) != 1 or not inner:
            raise ConfigError(
                f"--draft-vocab: the logits of {model.name} come from {head.target}, and only a head that is one "
                "matrix product can be cut; leave --draft-vocab out"
            )
        behind.append(head)
        head = inner[0]
    for place, kind in enumerate(("weight", "bias"), 1):
        if len(head.args) > place and head.args[place] is not None:
            name = f"{model.name}.draft_head.{kind}"
            model.weights[name] = model.weights[str(head.args[place].target)].index_select(0, columns)
            head.update_arg(place, _weight(head, name, model.weights[name]))
    for node in (head, *reversed(behind)):
        values = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with head.meta["val"].fake_mode:
            node.meta["val"] = node.target(*values[0], **values[1])
    model.graph.eliminate_dead_code()
    model.graph.lint()
    used = {str(node.target) for node in model.graph.find_nodes(op="get_attr")} | {model.fed_as, model.column_of}
    return dataclasses.replace(model, weights={k: w for k, w in model.weights.items() if k in used})


def _weight(before: fx.Node, name: str, tensor: Tensor) -> fx.Node:
    with before.graph.inserting_before(before), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph has no owning module
        node = before.graph.get_attr(name)
    node.meta["val"] = before.meta["val"].fake_mode.from_tensor(tensor, static_shapes=True)
    return node
