"""A step that is given its draft: the drafter runs in a program of its own, on another device."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .contract import Pass
from .draw_noise import DrawNoise
from .graph import emit
from .tree_mask import TreeMask


class TakeDraft(Pass):
    """Take tokens and what may be offered of them as inputs, where `UnrollDraft` would make them.

    Before: `tokens: i64[B, 1]`.
    After:  inputs `drafted: i64[B, M]`, `offerable: b8[B, M]`, of which `GiveDraft` gives N;
    `tokens: i64[B, N]`, the root from this step's own text, and `valid: b8[B, N]`.
    """

    needs = (TreeMask,)
    after = (DrawNoise,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree) -> None:
        self.tree = tree

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        given = inputs.given_draft(program, len(self.tree))
        tokens, valid = emit(program, self, _behind, program.values["tokens"], *given, nodes=len(self.tree))
        program.give(tokens=tokens, valid=valid)
        return 1


def _behind(root: Tensor, drafted: Tensor, offerable: Tensor, *, nodes: int) -> tuple[Tensor, Tensor]:
    return torch.cat([root, drafted[:, 1:nodes]], 1), offerable[:, :nodes]
