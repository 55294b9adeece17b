"""The root of the draft tree: each row's last emitted token, which no model has seen yet."""

from __future__ import annotations

from torch import Tensor

from ..program import Level, Program
from . import inputs
from .contract import Pass
from .graph import emit


class ReadRoot(Pass):
    """Begin a step: the root token is `history[target_length]`.

    Before: an empty graph.
    After:  `tokens: i64[B, 1]`; drafting passes put their nodes behind it.
    """

    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def run(self, program: Program) -> int:
        if "tokens" in program.values:
            return 0
        root = emit(program, self, _root, inputs.history(program), inputs.vector(program, "target_length"))
        program.give(tokens=root)
        return 1


def _root(history: Tensor, length: Tensor) -> Tensor:
    return history.gather(1, length[:, None])
