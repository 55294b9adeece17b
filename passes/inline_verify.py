"""The target over the whole draft tree, in the same graph."""

from __future__ import annotations

from ..errors import PassError
from ..program import Level, Program
from . import inputs
from .blocks import add_block
from .contract import Pass
from .read_root import ReadRoot
from .tree_mask import TreeMask
from .vocabulary import known_ids


class InlineVerify(Pass):
    """Run the target over the root and the drafted nodes in one pass, each node seeing its ancestors only.

    Before: `tokens: i64[B, N]`, `depths`, `ancestors`.
    After:  `logits: f32[B, N, V]`, float32 and cut to the ids that the tokenizer has, so that a padded id can never
    be emitted; one marker per layer.
    """

    needs: tuple[type[Pass], ...] = (ReadRoot, TreeMask)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, mask: type[Pass] = TreeMask) -> None:
        self.needs = (ReadRoot, mask)  # who says which node sees which

    def run(self, program: Program) -> int:
        if "logits" in program.values:
            return 0
        values = program.values
        length = inputs.vector(program, "target_length")
        logits, _ = add_block(
            program,
            self,
            "target",
            values["tokens"],
            length=length,
            start=length,
            offsets=values["depths"],
            mask=values["ancestors"],
        )
        program.give(logits=known_ids(program, self, logits, program.models["target"].vocab_size))
        return 1

    def ensures(self, program: Program) -> None:
        tokens, logits = program.values["tokens"].meta["val"], program.values["logits"].meta["val"]
        if tokens.shape != logits.shape[:2]:
            raise PassError(f"logits {tuple(logits.shape)} do not belong to tokens {tuple(tokens.shape)}")
