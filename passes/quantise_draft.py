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


class QuantiseDraft(Pass):
    """Store the weights of the drafter's linear layers as whole numbers of few bits and a factor for each row or group.

    Before: `y: f32[B, T, out] = linear(x, W)`
    After:  `V: f32[out, in] = specc::dequantise(L, S, bits)`, `y = linear(x, V)`; in 8 bits `L: i32[out, in / 4]` and
    `S: f32[out, 1]`, in 4 bits `L: i32[out, in / 8]` and `S: f32[out, 8]`.
    Fires on products of the drafter alone, by the model that a node came from: a weight that the target reads as well
    stays for the target. What else reads a weight (the lookup of a tied embedding) goes on reading it whole. A row must
    be a multiple of the levels in a word long. Rounding to nearest, symmetric; biases are kept.
    """

    after = (FuseLinears,)
    reads = leaves = Level.STATIC

    def __init__(self, *, kind: str) -> None:
        self.bits = BITS[kind]

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            weight = node.args[1]
            drafts = str(node.meta.get("specc_model")).startswith("drafter")
            if not drafts or weight.target is torch.ops.specc.dequantise.default:
                continue
            if weight.op != "get_attr":
                program.decline(self, node, "the weight is computed")
                continue
            if weight.meta["val"].shape[1] % (32 // self.bits):
                program.decline(self, node, f"rows of the weight are no multiple of {32 // self.bits} long")
                continue
            names = store(program, str(weight.target), self.bits)
            stored = [*(program.weight(name) for name in names), self.bits]
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
    names = f"{name}_int{bits}", f"{name}_scale{bits}"  # no dot: what reads the weight whole has it beside these
    if names[0] not in program.weights:
        for part, tensor in zip(names, quantised(program.weights[name], bits), strict=True):
            program.weights.add(part, tensor)
    return names


def quantised(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Levels and factors of a weight `[out, in]`, as `specc::dequantise` takes them."""
    (out, size), runs, most = weight.shape, 32 // bits, 2 ** (bits - 1) - 1
    groups = 1 if bits == 8 else runs
    parts = weight.float().view(out, groups, -1)
    scale = (parts.abs().amax(-1, keepdim=True).clamp(min=1e-30) / most).to(weight.dtype)
    levels = (parts / scale.float()).round().clamp(-most, most).to(torch.int64).view(out, runs, size // runs)
    places = bits * torch.arange(runs)[:, None]
    words = ((levels & (2**bits - 1)) << places).sum(1)
    return words.to(torch.int32), scale.squeeze(-1)
