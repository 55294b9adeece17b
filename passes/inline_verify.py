"""The target over the whole draft tree, in the same graph."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import PassError
from ..program import Level, Program
from . import inputs
from .blocks import add_block
from .contract import Pass
from .graph import emit
from .read_root import ReadRoot
from .tree_mask import TreeMask
from .vocabulary import known_ids


class InlineVerify(Pass):
    """Run the target over the root and the drafted nodes in one pass, each node seeing its ancestors only.

    Before: `tokens: i64[B, N]`, `depths`, `ancestors`; where a drafter has rows of its own, `more: i64[B, M]`, with
    `more_offsets` and `more_mask` of all rows, and `more_read: i64[B, N+R, 1]`, rows to read.
    After:  `logits: f32[B, N, V]`, float32 and cut to the ids that the tokenizer has, so that a padded id can never
    be emitted; one marker per layer. `more_logits: f32[B, R, V]` of a drafter's own rows.
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
        rows = [values[name] for name in ("tokens", "depths", "ancestors")]
        more = "more" in values
        if more:
            rows = [emit(program, self, _side_by_side, rows[0], values["more"])]
            rows += [values[name] for name in ("more_offsets", "more_mask")]
        logits, _ = add_block(
            program,
            self,
            "target",
            rows[0],
            length=length,
            start=length,
            offsets=rows[1],
            mask=rows[2],
        )
        if more:
            logits = emit(program, self, _read, logits, values["more_read"])
        logits = known_ids(program, self, logits, program.models["target"].vocab_size)
        if more:
            logits, own = emit(program, self, _apart, logits, nodes=values["tokens"].meta["val"].shape[1])
            program.give(more_logits=own)
            program.drop("more", "more_offsets", "more_mask", "more_read")
        program.give(logits=logits)
        return 1

    def ensures(self, program: Program) -> None:
        tokens, logits = program.values["tokens"].meta["val"], program.values["logits"].meta["val"]
        if tokens.shape != logits.shape[:2]:
            raise PassError(f"logits {tuple(logits.shape)} do not belong to tokens {tuple(tokens.shape)}")


def _side_by_side(tokens: Tensor, more: Tensor) -> Tensor:
    return torch.cat([tokens, more], 1)


def _read(logits: Tensor, rows: Tensor) -> Tensor:
    return logits.gather(1, rows.expand(-1, -1, logits.shape[2]))  # in the form that `ReadRows` moves up


def _apart(logits: Tensor, *, nodes: int) -> tuple[Tensor, Tensor]:
    return logits[:, :nodes], logits[:, nodes:]
