"""Equal tensors of target, drafter and programs become one."""

from __future__ import annotations

from ..program import Level, Program
from .contract import Pass
from .graph import clean_up


class ShareWeights(Pass):
    """Read every weight under one name per content; names of the store, so all programs agree.

    Before: `a = weight(target.model.embed_tokens.weight)`, `b = weight(drafter.model.embed_tokens.weight)`, equal bytes
    After:  `a` twice; the second tensor is not saved.
    Shared by content (dtype, shape, bytes), never by name: target and drafter of one class have equal names.
    """

    reads = leaves = Level.STATIC

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="get_attr"):
            name = program.weights.canonical(str(node.target))
            if name != node.target:
                node.replace_all_uses_with(program.weight(name))
                program.graph.erase_node(node)
                rewrites += 1
        clean_up(program.graph)
        return rewrites
