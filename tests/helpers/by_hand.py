"""Programs and models that are written by hand, op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from specc.capture.export import _flatten
from specc.passes.graph import call
from specc.program import Level, Model, Program, Sizes, WeightStore


def hand(level: Level = Level.STATIC, *, batch: int = 2, slots: int = 8, chunk: int = 4) -> Program:
    """An empty program without models, for graphs written by hand."""
    program = Program("hand", {}, WeightStore(), Sizes(batch, slots, chunk))
    program.level = level
    return program


def op(program: Program, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Append one op to a program written by hand."""
    with program.graph.inserting_before(program.output):
        return call(program, None, target, *args, **kwargs)


def hand_model(write: Callable[[Program, fx.Node, fx.Node], fx.Node], *, tokens: int = 4) -> Program:
    """A program whose only model is written by hand: `write(program, tokens, positions)` gives the logits."""
    scratch = hand(Level.CAPTURED)
    inputs = [scratch.input(name, (1, tokens), torch.int64) for name in ("tokens", "positions")]
    scratch.output.args = ((write(scratch, *inputs),),)
    return _with_model(Model("target", scratch.graph, scratch.weights.tensors, 16, 64))


def exported_model(module: torch.nn.Module, *, positions: int = 64) -> Program:
    """A program whose only model is a module `(tokens, positions) -> (logits,)`, exported with a free T."""
    count = torch.export.Dim("T", min=2, max=positions)
    example = torch.zeros(1, 7, dtype=torch.long), torch.arange(7)[None].contiguous()
    exported = torch.export.export(module, example, dynamic_shapes=({1: count}, {1: count}), strict=False)
    graph, weights = _flatten(exported.run_decompositions({}), "target")
    return _with_model(Model("target", graph, weights, 16, positions))


def _with_model(model: Model) -> Program:
    program = Program("hand", {"target": model}, WeightStore(), Sizes(1, 48, 4))
    for name, weight in model.weights.items():
        program.weights.add(name, weight)
    return program
