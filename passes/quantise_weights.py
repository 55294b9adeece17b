"""The weights of all products in 8 bits, for a back end that multiplies by such weights itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import PassError
from ..program import Level, Program
from .contract import Pass
from .fuse_linears import FuseLinears
from .graph import call, clean_up

_aten = torch.ops.aten
Quantise = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Levels and factors of a weight `[out, in]`, as `specc::byte_linear` takes them."""


class QuantiseWeights(Pass):
    """Store the weights of linear layers as bytes and a factor for each block of a row, target and drafter alike.

    Before: `y: f32[B, T, out] = linear(x, W)`
    After:  `y: f32[B, T, out] = specc::byte_linear(x, L, S, in)`, `L: u8[out, in / 32, 32]`, `S: f32[out, in / 32]`
    The text is then that of the model with these weights, in plain steps and with drafts alike. What else reads a
    weight (the lookup of a tied embedding) goes on reading it whole; weights chosen or computed at run time stay.
    """

    after = (FuseLinears,)
    reads = leaves = Level.STATIC

    def __init__(self, *, quantise: Quantise) -> None:
        self.quantise = quantise

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            x, weight, *bias = node.args
            if weight.op != "get_attr":
                program.decline(self, node, "the weight is computed")
                continue
            names = self._store(program, str(weight.target))
            size = weight.meta["val"].shape[1]
            with program.graph.inserting_before(node):
                stored = [program.weight(name) for name in names]
                new = call(program, self, torch.ops.specc.byte_linear.default, x, *stored, size, origin=node)
                if bias and bias[0] is not None:
                    new = call(program, self, _aten.add.Tensor, new, bias[0], origin=node)
            node.replace_all_uses_with(new)
            rewrites += 1
        clean_up(program.graph)
        return rewrites

    def ensures(self, program: Program) -> None:
        if not program.graph.find_nodes(op="call_function", target=torch.ops.specc.byte_linear.default):
            raise PassError("no product of the model is written as `linear`; leave --quant out")

    def _store(self, program: Program, name: str) -> tuple[str, str]:
        """Levels and factors of a weight in the store, made once for all programs; their names."""
        names = f"{name}_bytes", f"{name}_factors"
        if names[0] not in program.weights:
            for part, tensor in zip(names, self.quantise(program.weights[name]), strict=True):
                program.weights.add(part, tensor)
        return names
