"""What the penalties need to know of the text so far."""

from __future__ import annotations

from ..program import Level, Program
from . import inputs
from .accept.penalties import count_tokens, mark_ends
from .contract import Pass
from .graph import emit
from .read_root import ReadRoot


class CountTokens(Pass):
    """Count the tokens of the text, once a step; drafter and target add those of their own paths.

    The counts come from the history and are no state, so truncation and plain steps cannot put them out of step.

    Before: `tokens: i64[B, 1]`.
    After:  `in_text: f32[B, V]`, `generated: f32[B, V]`, `ends: b8[B, V]`.
    """

    after = (ReadRoot,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def run(self, program: Program) -> int:
        if "in_text" in program.values:
            return 0
        vocab = program.models["target"].vocab_size
        lengths = [inputs.vector(program, name) for name in ("target_length", "prompt_length")]
        arguments = [inputs.history(program), *lengths, inputs.bucket(program)]
        in_text, generated = emit(program, self, count_tokens, *arguments, vocab=vocab)
        ends = emit(program, self, mark_ends, inputs.eos(program), vocab=vocab)
        program.give(in_text=in_text, generated=generated, ends=ends)
        return 1
