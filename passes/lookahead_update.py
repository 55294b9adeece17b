"""Lookahead decoding, behind the target: what it chose at the window's rows becomes window and n-grams."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program import Level, Program
from . import inputs
from .contract import Pass
from .graph import emit
from .inline_verify import InlineVerify
from .lookahead_draft import STEPS_KEPT, LookaheadDraft


class LookaheadUpdate(Pass):
    """Add one level to the window and one n-gram of each column to the pool.

    Before: `window: i64[B, N-1, W]`; `more_logits: f32[B, W, V]`, the target's at the window's last level.
    After:  `window`, `ngrams: i64[B, P, N]` and `window_at: i64[B]`, state for the next step; as they were where a row
    is not active. Guesses are the best tokens, whatever the request's sampling: they are never the text's.
    """

    needs = (LookaheadDraft, InlineVerify)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def run(self, program: Program) -> int:
        if "ngrams" in program.values:
            return 0
        moved, logits = (program.values[n] for n in ("window", "more_logits"))
        _, levels, width = moved.meta["val"].shape
        state = [
            inputs.window(program, levels, width),
            inputs.ngrams(program, STEPS_KEPT * width, levels + 1),
            *(inputs.vector(program, n) for n in ("window_at", "target_length", "active")),
        ]
        window, pool, made_for = emit(program, self, advance, moved, logits, *state)
        program.give(window=window, ngrams=pool, window_at=made_for)
        program.drop("more_logits")
        return 1


def advance(
    moved: Tensor, logits: Tensor, window: Tensor, pool: Tensor, made_for: Tensor, length: Tensor, active: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The state that the next step finds.

    The oldest level goes, so that column j guesses one token further: the window is made for the root one place on,
    and `slide` moves it by what more is accepted.

    Args:
        moved: `[B, N-1, W]` int64, the window that the target ran on.
        logits: `[B, W, V]` at its last level.
        window, pool, made_for: the state, for rows that are not active.
        length: `[B]` int64, place of the root.
        active: `[B]` bool.

    Returns:
        window, pool, made_for.
    """
    level = logits.argmax(-1)[:, None]
    grams = torch.cat([moved, level], 1).mT + 1  # 0 is the pool's empty place
    newer = torch.cat([pool[:, grams.shape[1] :], grams], 1)
    going = active[:, None, None]
    return (
        torch.where(going, torch.cat([moved[:, 1:], level], 1), window),
        torch.where(going, newer, pool),
        torch.where(active, length + 1, made_for),
    )
