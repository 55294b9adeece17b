"""The drafter's weights in 8 or 4 bits; the target keeps its own."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import BITS
from ..errors import PassError
from ..program import Level, Program
from .contract import Pass
from .fuse_linears import FuseLinears
from .graph import call, clean_up

_aten = torch.ops.aten
GROUPS = (32, 16, 8)  # columns that share a factor in 4 bits: the most of which a half of the row is a multiple


class QuantiseDraft(Pass):
    """Store the weights of the drafter's linear layers as whole numbers of few bits and a factor for each row or group.

    Before: `y: f32[B, T, out] = linear(x, W)`
    After:  `V: f32[out, in] = specc::dequantise(L, S)`, `y = linear(x, V)`; in 8 bits `L: i8[out, in]`,
    `S: f32[out, 1]`; in 4 bits `L: u8[out, in / 2]`, `S: f32[out, in / 32]`.
    Fires on products of the drafter alone, by the model that a node came from: a weight that the target reads as well
    stays for the target. What else reads a weight (the lookup of a tied embedding) goes on reading it whole. In 4 bits
    a row must be a multiple of 16 long. Rounding to nearest, symmetric; biases are kept.
    """

    after = (FuseLinears,)
    reads = leaves = Level.STATIC

    def __init__(self, *, kind: str) -> None:
        self.bits = BITS[kind]

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            weight = node.args[1]
            if node.meta.get("specc_model") != "drafter" or weight.target is torch.ops.specc.dequantise.default:
                continue
            if weight.op != "get_attr":
                program.decline(self, node, "the weight is computed")
                continue
            if self.bits == 4 and weight.meta["val"].shape[1] % (2 * GROUPS[-1]):
                program.decline(self, node, f"rows of the weight are no multiple of {2 * GROUPS[-1]} long")
                continue
            names = store(program, str(weight.target), self.bits)
            stored = [program.weight(name) for name in names]
            with program.graph.inserting_before(node):
                node.update_arg(1, call(program, self, torch.ops.specc.dequantise.default, *stored, origin=node))
            rewrites += 1
        clean_up(program.graph)
        return rewrites

    def ensures(self, program: Program) -> None:
        if not program.graph.find_nodes(op="call_function", target=torch.ops.specc.dequantise.default):
            reasons = {one.reason for one in program.declined if one.pass_name == type(self).__name__}
            why = "; ".join(sorted(reasons)) or "its products are not written as `linear`"
            raise PassError(f"nothing of the drafter can be stored in few bits: {why}; leave --draft-quant out")


def store(program: Program, name: str, bits: int) -> tuple[str, str]:
    """Levels and factors of a weight in the store, made once for all programs; their names."""
    names = f"{name}.int{bits}", f"{name}.scale{bits}"
    if names[0] not in program.weights:
        for part, tensor in zip(names, quantised(program.weights[name], bits), strict=True):
            program.weights.add(part, tensor)
    return names


def quantised(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Levels and factors of a weight `[out, in]`, as `specc::dequantise` takes them."""
    out, size = weight.shape
    group = size if bits == 8 else next(length for length in GROUPS if size % (2 * length) == 0)
    most = 2 ** (bits - 1) - 1
    parts = weight.float().view(out, size // group, group)
    scale = (parts.abs().amax(-1, keepdim=True).clamp(min=1e-30) / most).to(weight.dtype)
    levels = (parts / scale.float()).round().clamp(-most, most).view(out, size).to(torch.int8)
    if bits == 4:
        low, high = (levels + 8).to(torch.uint8).split(size // 2, 1)
        levels = low | (high << 4)
    return levels, scale.squeeze(-1)
