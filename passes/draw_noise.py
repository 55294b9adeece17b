"""The noise of the positions that this step may fill, drawn once for drafter and target."""

from __future__ import annotations

import torch
from torch import Tensor

from ..philox import RACE
from ..program import Level, Program
from . import inputs
from .accept.noise import draw
from .contract import Pass
from .graph import emit
from .read_root import ReadRoot


class DrawNoise(Pass):
    """Draw Gumbel noise for the D + 1 positions behind the root, keyed by seed, sample and absolute position.

    Before: an empty step.
    After:  `gumbel: f32[B, D+1, V]`; level d of the tree, and the target's choice behind depth d - 1, read row d - 1.
    """

    after = (ReadRoot,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, depth: int) -> None:
        self.depth = depth

    def run(self, program: Program) -> int:
        if "gumbel" in program.values:
            return 0
        seed, sample, length = (inputs.vector(program, n) for n in ("seed", "sample", "target_length"))
        vocab = program.models["target"].vocab_size
        noise = emit(program, self, _race, seed, sample, length, depth=self.depth, size=vocab)
        program.give(gumbel=noise)
        return 1


def _race(seed: Tensor, sample: Tensor, length: Tensor, *, depth: int, size: int) -> Tensor:
    return draw(seed, sample, positions_behind(length, depth + 1), stream=RACE, size=size)


def positions_behind(length: Tensor, count: int) -> Tensor:
    """`[B, count]` absolute positions of the tokens behind the root, which stands at `length`."""
    return length[:, None] + torch.arange(1, count + 1, device=length.device)
