"""Capture: one export of a transformers model as a flat, stateless graph with one marker per attention layer."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import CaptureError
from ..program import Model
from .load import LoadedModel
from .marker import MARKER, register_marker
from .rotary import frozen_rotary, positions_limit
from .taps import Taps

SAMPLE_ROWS = 7  # T of the example; the graph does not depend on it
DROPPED = ("_assert", "sym_constrain")  # checks of the exporter: they compute nothing


def capture(loaded: Any, *, name: str, batch: int = 1, taps: Taps | None = None) -> Model:
    """Export a model as a `Model`: placeholders `tokens` and `positions` `[B, T]`, output logits `[B, T, V]`.

    Args:
        loaded: a `LoadedModel`, or a transformers causal language model (V is then its vocabulary).
        name: `target` or `drafter`, the prefix of every weight's name.
        batch: B, fixed in the graph. T is symbolic.
        taps: hidden states that are handed on behind the logits.

    Raises:
        CaptureError: the model does something that the graph cannot carry; the message says what.
    """
    model = loaded.model if isinstance(loaded, LoadedModel) else loaded
    config = model.config.get_text_config()
    vocab_size = loaded.vocab_size if isinstance(loaded, LoadedModel) else config.vocab_size
    limit = positions_limit(config)
    with telling(name), _marked(model), frozen_rotary(model), torch.no_grad():
        with taps.hooked(model) if taps else contextlib.nullcontext():
            exported = _export(_Rows(model, limit, taps), batch, limit)
        graph, weights = _flatten(exported, name)
        graph = _checked(graph, config)
    captured = Model(name, graph, used_weights(graph, weights), vocab_size, limit)
    return replace(captured, features=captured.handed_on()[0]) if taps else captured


def capture_module(
    module: nn.Module, example: dict[str, Tensor], *, name: str, count: int | None = None
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """Export a module of our own as a flat graph, markers numbered by the module.

    Args:
        module: called with `example`, in order; emits `specc::attend` where it attends.
        example: tensors of `[B, T, ...]`, by the name of the placeholder.
        name: prefix of every weight's name.
        count: the largest T, which is then symbolic; None fixes the shapes of the example.
    """
    given = tuple(example.values())
    free = count and torch.export.Dim("T", min=2, max=max(count, SAMPLE_ROWS + 1))
    shapes = (tuple({1: free} for _ in given),) if free else None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        exported = torch.export.export(_Wrapped(module), given, dynamic_shapes=shapes, strict=False)
        graph, weights = _flatten(exported.run_decompositions({}), name)
    for node, called in zip(graph.find_nodes(op="placeholder"), example, strict=True):
        node.target = node.name = called
    return graph, used_weights(graph, weights)


def used_weights(graph: fx.Graph, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that the graph reads."""
    used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    return {key: weights[key] for key in weights if key in used}


class _Wrapped(nn.Module):  # type: ignore[misc]
    """A module whose weights are called as those of a captured model are."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, *given: Tensor) -> Any:
        return self.wrapped(*given)


@contextlib.contextmanager
def telling(role: str) -> Iterator[None]:
    """Errors inside begin with the model's role: two models of one class may be on their way into an engine."""
    try:
        yield
    except CaptureError as e:
        if str(e).startswith(f"{role}: "):
            raise
        raise CaptureError(f"{role}: {e}") from e


class _Rows(nn.Module):  # type: ignore[misc]
    """The call that is exported: all rows' logits of one block of tokens, and what was tapped."""

    def __init__(self, model: nn.Module, limit: int, taps: Taps | None = None) -> None:
        super().__init__()
        self.wrapped, self.taps = model, taps
        self.fuse = taps and taps.fuse  # a part of this module, so that its weights are found
        tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
        learned = any(limit <= m.num_embeddings <= limit + 8 for m in tables)  # some families have a few rows more
        self.last = limit - 1 if learned else None  # learned positions run out in the last block

    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        if self.last is not None:
            positions = positions.clamp(max=self.last)
        out = self.wrapped(input_ids=tokens, position_ids=positions, use_cache=False, return_dict=True)
        return (out.logits, self.taps.read()) if self.taps else (out.logits,)


@contextlib.contextmanager
def _marked(model: Any) -> Iterator[None]:
    """The model with marker attention and experts that export to plain ops; put back afterwards."""
    register_marker()
    config = model.config.get_text_config()
    before, experts = config._attn_implementation, getattr(config, "_experts_implementation", None)
    family = type(model).__name__
    if not model._can_set_attn_implementation():
        raise CaptureError(f"{family} has attention code of its own, which does not go through AttentionInterface")
    model.set_attn_implementation(MARKER)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")
    try:
        if config._attn_implementation != MARKER:
            raise CaptureError(f"{family} did not accept another attention ({config._attn_implementation} is in use)")
        yield
    finally:
        model.set_attn_implementation(before or "eager")
        if experts is not None and model._can_set_experts_implementation():
            model.set_experts_implementation(experts)


def _export(rows: _Rows, batch: int, limit: int) -> torch.export.ExportedProgram:
    """Export with T dynamic and functionalise; ops such as `linear` stay whole."""
    example = (
        torch.zeros(batch, SAMPLE_ROWS, dtype=torch.long),
        torch.arange(SAMPLE_ROWS).expand(batch, -1).contiguous(),
    )
    count = torch.export.Dim("T", min=2, max=max(limit, SAMPLE_ROWS + 1))
    family = type(rows.wrapped).__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its tree specifications
            exported = torch.export.export(rows, example, dynamic_shapes=({1: count}, {1: count}), strict=False)
            exported = exported.run_decompositions({})
    except CaptureError as e:
        raise CaptureError(f"{family} cannot be captured: {e}") from e
    except Exception as e:  # the exporter raises whatever the model's code made it stumble on
        reason = (str(e).strip() or type(e).__name__).splitlines()[0].partition("! For more information")[0]
        kinds = _kinds(rows.wrapped.config.get_text_config())
        raise CaptureError(f"{family} cannot be exported with a free number of tokens{kinds}: {reason}") from e
    signature = exported.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        state = ", ".join(sorted(signature.buffers_to_mutate.values())) or "its inputs"
        raise CaptureError(f"{family} writes state besides its keys and values: {state}")
    return exported


def _flatten(exported: torch.export.ExportedProgram, name: str) -> tuple[fx.Graph, dict[str, Tensor]]:
    """A copy of the exported graph in which weights are `get_attr` nodes under `name.`, equal storage once."""
    signature = exported.graph_signature
    lifted = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    stored = {**exported.constants, **exported.state_dict}
    graph, values, weights = fx.Graph(), {}, {}
    first: dict[tuple[Any, ...], fx.Node] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in lifted:
            tensor = stored[lifted[node.name]].detach()
            key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
            if tensor.numel() == 0 or key not in first:
                full = f"{name}.{lifted[node.name].removeprefix('wrapped.')}"
                weights[full] = tensor
                first[key] = graph.get_attr(full)
                first[key].meta = {"val": node.meta["val"]}
            values[node] = first[key]
        elif node.op == "call_function" and node.target.__name__.startswith(DROPPED):
            continue
        elif node.op in ("call_module", "get_attr") or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CaptureError(f"the graph of {name} holds a nested graph ({node.target}), which cannot be inlined")
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    _order_inputs(graph)
    graph.eliminate_dead_code()
    graph.lint()
    return graph, weights


def _order_inputs(graph: fx.Graph) -> None:
    """Placeholders first: `tokens`, then `positions`."""
    start = next(iter(graph.nodes))
    for node in graph.find_nodes(op="placeholder"):
        if node is not start:
            start.prepend(node)


def _checked(graph: fx.Graph, config: Any) -> fx.Graph:
    """The graph with its markers numbered in order; refused where layers of the model have none."""
    markers = graph.find_nodes(op="call_function", target=torch.ops.specc.attend.default)
    layers = config.num_hidden_layers
    if len(markers) != layers:
        raise CaptureError(
            f"{config.model_type} has {layers} layers{_kinds(config)}, and they attend {len(markers)} times; "
            "an engine carries models in which each layer attends once and keeps no other state"
        )
    for index, marker in enumerate(markers):
        marker.update_arg(3, index)
    for node in graph.nodes:
        if node.op == "call_function" and not _known(node.target):
            raise CaptureError(f"{config.model_type} needs {node.target}, which is not an op of torch itself")
    return graph


def _kinds(config: Any) -> str:
    """Kinds of layers for a message, where a model has several."""
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    return f" ({', '.join(kinds)})" if kinds else ""


def _known(target: Any) -> bool:
    """Aten ops, the marker, and arithmetic on sizes."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten" or target is torch.ops.specc.attend.default
    return getattr(target, "__module__", "") in ("_operator", "math") or "sym_" in getattr(target, "__name__", "")
