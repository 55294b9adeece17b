"""Parameters: what a request asks for, written to its row of the tensors that the programs read."""

from __future__ import annotations

import math

import torch

from .options import MAX_EOS, Grammar
from .placed import AnyState
from .request import Request

NEUTRAL: dict[str, float] = {"top_p": 1.0, "repetition_penalty": 1.0, "grammar_classes": 1, "eos": -1, "forced": -1}
"""What changes nothing, where that is not 0."""


class Parameters:
    """The parameter tensors of an engine's state, a row of each for a request.

    Bias and grammar are as wide as the vocabulary: where they have not changed they are not written again.
    """

    def __init__(self, state: AnyState) -> None:
        self.state = state
        self._biased: set[int] = set()
        # By row; a row that is missing holds parts of one, since writing it was interrupted.
        self._grammars: dict[int, Grammar | None] = dict.fromkeys(range(state.batch))
        for name, value in NEUTRAL.items():
            state.fill(name, value)

    def write(self, row: int, request: Request, total: int, context: int) -> None:
        """Everything that a request of a row sets.

        Args:
            row: its index.
            total: tokens of its text now, none of which counts as generated.
            context: the most tokens that it may have.
        """
        ends = request.eos_token_ids
        values: dict[str, float | list[int]] = {
            "limit": min(total + request.max_new_tokens, context),
            "eos": [*ends, *[-1] * (MAX_EOS - len(ends))],
            "seed": request.seed or 0,
            "sample": request.sample,
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "min_p": request.min_p,
            "repetition_penalty": request.repetition_penalty,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "prompt_length": total,
            "min_length": total + request.min_new_tokens if request.min_new_tokens else 0,
        }
        for name, value in values.items():
            self.state.set(name, row, value)
        self._write_bias(row, request)
        self._write_grammar(row, request.grammar)

    def force(self, row: int, draft: list[int]) -> None:
        """Have the next steps draft these tokens at nodes 1, 2, ...; -1 and what is not given are the drafter's own."""
        width = self.state.specs["forced"].shape[1]
        self.state.set("forced", row, [-1, *draft, *[-1] * (width - 1 - len(draft))])

    def _write_bias(self, row: int, request: Request) -> None:
        if not self.state.has("bias") or not (request.bias or request.allowed is not None or row in self._biased):
            return
        self._biased.add(row)
        bias = torch.full((self.state.specs["bias"].shape[1],), 0.0 if request.allowed is None else -math.inf)
        if request.allowed is not None:
            bias[sorted(request.allowed)] = 0.0
        for token, value in request.bias.items():
            bias[token] += value
        self.state.set("bias", row, bias)
        if not request.bias and request.allowed is None:
            self._biased.discard(row)

    def _write_grammar(self, row: int, grammar: Grammar | None) -> None:
        if not self.state.has("grammar_next") or (row in self._grammars and self._grammars[row] is grammar):
            return
        self._grammars.pop(row, None)
        if grammar is None:
            self.state.set("grammar_class", row, 0)
            self.state.set("grammar_next", row, [0])
            self.state.set("grammar_classes", row, 1)
        else:
            self.state.set("grammar_class", row, grammar.token_class)
            self.state.set("grammar_next", row, grammar.next)
            self.state.set("grammar_classes", row, grammar.classes)
        self._grammars[row] = grammar
