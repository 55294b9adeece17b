"""The end of a program that drafts and no more."""

from __future__ import annotations

from ..errors import PassError
from ..program import Level, Program
from . import inputs
from .contract import Pass
from .unroll_draft import UnrollDraft


class GiveDraft(Pass):
    """Hand the draft on to a program on another device: N ids a row, and which of them may be offered.

    Before: `tokens: i64[B, N]`, `valid: b8[B, N]`, the drafter's caches and `drafter_length`.
    After:  level FUSED; outputs `drafted`, `offerable`, `drafter_length` and the caches.
    """

    after = (UnrollDraft,)
    reads = Level.CAPTURED
    leaves = Level.FUSED
    preserves_outputs = False

    def requires(self, program: Program) -> None:
        if "q" in program.values or "q_scores" in program.values:
            raise PassError(f"{program.name}: this rule needs the drafter's law, which is not handed on")

    def run(self, program: Program) -> int:
        values = program.values
        kept = {name: node for name, node in values.items() if inputs.role(name) == "cache"}
        program.drop(*values)
        program.give(
            drafted=values["tokens"], offerable=values["valid"], drafter_length=values["drafter_length"], **kept
        )
        return 1  # dead nodes stay: the blocks' masks are read by `LowerAttention`
