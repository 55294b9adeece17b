"""Sine and cosine of positions become one table, read by position."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..program import Level, Model, Program, graph_module
from .contract import Pass
from .graph import clean_up
from .normalize import Normalize

_aten = torch.ops.aten
_WAVES = (_aten.sin.default, _aten.cos.default)


class RotaryTables(Pass):
    """Evaluate what depends on positions alone at compile time.

    Before: `cos: f32[B, T, D] = cos(cat([angle, angle], -1))` with `angle = positions * inv_freq`
    After:  `cos: f32[B, T, D] = embedding(table, positions)`, `table: f32[P, D]`, P = min(model's positions, S)
    Fires where a value holds a sine or cosine and every position's value is its own (checked by evaluating other
    positions in another order, bit for bit); says so where it does not. Values are unchanged to the last bit.
    """

    after = (Normalize,)
    reads = leaves = Level.CAPTURED

    def run(self, program: Program) -> int:
        return sum(self._model(program, model) for model in program.models.values())

    def _model(self, program: Program, model: Model) -> int:
        positions = next((n for n in model.graph.find_nodes(op="placeholder") if n.target == "positions"), None)
        if positions is None:
            return 0  # heads on a hidden state
        alone = _depends_on_positions_alone(model.graph, positions)
        rewrites = 0
        for node in [n for n in model.graph.nodes if n in alone and any(u not in alone for u in n.users)]:
            needed = _ancestors(node)
            if not any(n.target in _WAVES for n in needed):
                continue  # a learned table is read by position already
            rewrites += self._tabulate(program, model, node, needed, positions, rewrites)
        clean_up(model.graph)
        return rewrites

    def _tabulate(
        self, program: Program, model: Model, node: fx.Node, needed: set[fx.Node], positions: fx.Node, index: int
    ) -> int:
        shape, length = node.meta["val"].shape, positions.meta["val"].shape[1]
        axes = [i for i, size in enumerate(shape) if isinstance(size, torch.SymInt)]
        if (
            len(axes) != 1
            or shape[axes[0]] != length
            or axes[0] != len(shape) - 2
            or any(s != 1 for s in shape[: axes[0]])
        ):
            program.decline(self, node, f"shape {tuple(shape)} is not one row of numbers a position")
            return 0
        size = min(model.max_positions, program.sizes.slots)
        there = _evaluate(model, node, needed, torch.arange(size))
        others = torch.arange(1, size - 1).flip(0)  # another order, and another least, largest and number of positions
        if not torch.equal(there.index_select(axes[0], others), _evaluate(model, node, needed, others)):
            program.decline(self, node, "a position's value depends on the other positions")
            return 0
        table = there.movedim(axes[0], 0).reshape(size, -1)
        name = f"{model.name}.positions.{index}.{size}"
        program.weights.add(name, table.contiguous())
        model.weights[name] = program.weights[name]
        self._read(model, node, name, positions, axes[0])
        return 1

    def _read(self, model: Model, node: fx.Node, name: str, positions: fx.Node, axis: int) -> None:
        value = node.meta["val"]
        mode = value.fake_mode
        with model.graph.inserting_after(positions):
            weight = model.graph.get_attr(name)
        with mode:
            weight.meta["val"] = torch.empty_like(model.weights[name], device=value.device)
        with model.graph.inserting_before(node):
            rows = model.graph.call_function(_aten.embedding.default, (weight, positions))
            with mode:
                rows.meta["val"] = _aten.embedding.default(weight.meta["val"], positions.meta["val"])
            new = rows
            for dim in range(1, axis):
                new = self._unsqueeze(model, new, dim)
        for made in (weight, rows):
            made.meta["specc_pass"] = type(self).__name__
        node.replace_all_uses_with(new)

    def _unsqueeze(self, model: Model, node: fx.Node, dim: int) -> fx.Node:
        new = model.graph.call_function(_aten.unsqueeze.default, (node, dim))
        with node.meta["val"].fake_mode:
            new.meta["val"] = node.meta["val"].unsqueeze(dim)
        new.meta["specc_pass"] = type(self).__name__
        return new


def _depends_on_positions_alone(graph: fx.Graph, positions: fx.Node) -> set[fx.Node]:
    """Nodes computed from positions and constants only (constants themselves are not in the set)."""
    alone: set[fx.Node] = {positions}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta["val"], Tensor):
            continue
        sources = node.all_input_nodes
        tensors = [n for n in sources if isinstance(n.meta["val"], Tensor)]
        if any(n in alone for n in tensors) and all(n in alone or n.op == "get_attr" for n in tensors):
            alone.add(node)
    return alone - {positions}


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, stack = set(), [node]
    while stack:
        top = stack.pop()
        if top not in found:
            found.add(top)
            stack.extend(top.all_input_nodes)
    return found


def _evaluate(model: Model, node: fx.Node, needed: set[fx.Node], positions: Tensor) -> Tensor:
    """The node's value for one row of positions."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for old in model.graph.nodes:
        if old in needed:  # of the placeholders, `positions` alone
            env[old] = graph.node_copy(old, env.__getitem__)
    graph.output(env[node])
    with torch.no_grad():
        return graph_module(graph, model.weights)(positions[None])
