"""Shape of the draft tree as tensors: parents, depths, and who may attend to whom."""

from __future__ import annotations

import hashlib

import torch

from ..program import Level, Program
from ..tree import DraftTree
from .contract import Pass
from .read_root import ReadRoot


class TreeMask(Pass):
    """Give the tree's parents, depths and ancestor mask to the passes that draft, verify and accept.

    Before: `tokens`.
    After:  `parents: i64[1, N]`, `depths: i64[1, N]`, `ancestors: b8[1, N, N]` (row i sees row j iff j is i or an
    ancestor of i). Source: SpecInfer (Miao et al. 2024), section 4: topology-aware causal mask.
    """

    after = (ReadRoot,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree) -> None:
        self.tree = tree

    def run(self, program: Program) -> int:
        if "ancestors" in program.values:
            return 0
        name = f"tree.{label(self.tree)}"
        program.give(
            parents=program.constant(f"{name}.parents", torch.tensor([self.tree.parents])),
            depths=program.constant(f"{name}.depths", torch.tensor([self.tree.depths])),
            ancestors=program.constant(f"{name}.ancestors", torch.tensor([self.tree.ancestors])),
        )
        return 1


def label(tree: DraftTree) -> str:
    """A name for the tree's constants: trees with equal names are equal."""
    return hashlib.sha256(repr(tree.paths).encode()).hexdigest()[:12]
