"""Products of one input side by side: q, k, v as one; gate and up as one."""

from __future__ import annotations

import torch
from torch import fx

from ..program import Level, Program
from .contract import Pass
from .graph import call, clean_up, refresh
from .share_weights import ShareWeights

_aten = torch.ops.aten


class FuseLinears(Pass):
    """Concatenate the weights of linear layers that read the same value.

    Before: `q: f32[B, T, a] = linear(x, Wq)`, `k: f32[B, T, b] = linear(x, Wk)`
    After:  `both: f32[B, T, a + b] = linear(x, [Wq; Wk])`, `q = slice(both, 2, 0, a)`, `k = slice(both, 2, a, a + b)`
    The joined weight is made once in the store and replaces its parts in every program. Fires on two or more layers
    with stored weights of one dtype, all with a bias or all without; a weight that is read elsewhere as well (a tied
    head) stays as it is, since joining would store it twice.
    """

    after = (ShareWeights,)  # joining hides a part's content from it
    reads = leaves = Level.STATIC

    def run(self, program: Program) -> int:
        groups: dict[tuple[object, ...], list[fx.Node]] = {}
        for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
            if node.args[1].op != "get_attr":
                program.decline(self, node, "the weight is computed")
                continue
            bias = node.args[2] if len(node.args) > 2 else None
            if node.kwargs:
                program.decline(self, node, "arguments by name")
                continue
            groups.setdefault((node.args[0], bias is None, node.args[1].meta["val"].dtype), []).append(node)
        rewrites = 0
        for group in groups.values():
            rewrites += len(group) > 1 and self._fuse(program, group)
        clean_up(program.graph)
        return rewrites

    def _fuse(self, program: Program, group: list[fx.Node]) -> bool:
        for node in group:
            if any(user.target is not _aten.linear.default for user in node.args[1].users):
                program.decline(self, node, "the weight is read by other ops as well")
                return False
        if len({node.args[1] for node in group}) < len(group):
            program.decline(self, group[0], "one weight twice on one input")
            return False
        first = group[0]
        parts = [_join(program, [node.args[i] for node in group]) for i in range(1, len(first.args))]
        with program.graph.inserting_before(first):
            both = call(program, self, _aten.linear.default, first.args[0], *parts, origin=first)
            start = 0
            for node in group:
                end = start + node.meta["val"].shape[-1]
                cut = call(program, self, _aten.slice.Tensor, both, node.meta["val"].ndim - 1, start, end, origin=node)
                node.replace_all_uses_with(cut)
                _allow_strides(cut)
                refresh(program, cut)
                start = end
        return True


def _join(program: Program, nodes: list[fx.Node]) -> fx.Node:
    names = [str(node.target) for node in nodes]
    joined = "+".join([names[0], *(name.removeprefix(_stem(names)) for name in names[1:])])
    return program.weight(program.weights.join(joined, tuple(names)))


def _stem(names: list[str]) -> str:
    """The shared part of the names up to a dot, left out of the joined name."""
    shared = names[0]
    while not all(name.startswith(shared) for name in names):
        shared = shared[: shared.rstrip(".").rfind(".") + 1]
    return shared


def _allow_strides(node: fx.Node) -> None:
    """A slice of the joined product is not contiguous, nor is what views it: `view` of them becomes `reshape`."""
    for user in node.users:
        if user.target is _aten.view.default:
            user.target = _aten.reshape.default
        if _is_view(user.target):
            _allow_strides(user)


def _is_view(target: object) -> bool:
    """Whether an op returns its input in another shape, rather than what it computes from it."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any(made.alias_info and not made.alias_info.is_write for made in target._schema.returns)
