"""Lookup before the drafter: what followed in the text where its end occurred before, else the drafter's own tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafter import LEAST, LONGEST
from ..errors import PassError
from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .contract import Pass
from .forced import force
from .graph import emit
from .heads_draft import HeadsDraft
from .lookup_draft import lookup
from .unroll_draft import UnrollDraft


class LookupFirst(Pass):
    """Draft by lookup in the rows where a suffix of `least` tokens or more occurred before, and leave the others to the
    drafter.

    Which of the two drafts hangs on the text so far alone, so every acceptance rule stays exact: the law of a draft
    that was looked up is one-hot. The drafter runs in all rows, and its caches follow the text in all.

    Before: `tokens: i64[B, N]`, `valid: b8[B, N]`, and on a chain `q: f32[B, K, V]` where drafts were drawn, of the
    drafter; `depths`.
    After:  the same, of lookup in the rows in which its first draft is offered.
    Source: prompt lookup decoding (Saxena 2023).
    """

    after = (UnrollDraft, HeadsDraft)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree, longest: int = LONGEST, least: int = LEAST) -> None:
        self.tree, self.longest, self.least = tree, longest, least

    def requires(self, program: Program) -> None:
        if "valid" not in program.values:
            raise PassError(f"{program.name}: no drafter has drafted; use LookupDraft alone or add one")

    def run(self, program: Program) -> int:
        history, length = inputs.history(program), inputs.vector(program, "target_length")
        limit, vocab = inputs.vector(program, "draft_limit"), program.models["target"].vocab_size
        text = [history, length, limit, inputs.bucket(program)]
        sizes = {"longest": self.longest, "least": min(self.least, self.longest)}
        found, offered = emit(program, self, lookup, *text, parents=self.tree.parents, **sizes)
        values, forced = program.values, inputs.forced(program, len(self.tree))
        found, valid = emit(program, self, force, found, offered, forced, values["depths"], limit, vocab=vocab)
        tokens, valid = emit(program, self, _prefer, offered, found, valid, values["tokens"], values["valid"])
        program.give(tokens=tokens, valid=valid)
        if "q" in values:
            program.give(q=emit(program, self, _one_hot, offered, tokens, values["q"]))
        return 1


def _prefer(offered: Tensor, found: Tensor, usable: Tensor, tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """`[B, N]` tokens and validity, of lookup in the rows in which its first draft is offered."""
    first = offered[:, 1:2]
    return torch.where(first, found, tokens), torch.where(first, usable, valid)


def _one_hot(offered: Tensor, tokens: Tensor, q: Tensor) -> Tensor:
    """`[B, K, V]`, one-hot in the same rows."""
    ids = torch.arange(q.shape[2], device=q.device)
    return torch.where(offered[:, 1:2, None], (tokens[:, 1:, None] == ids).float(), q)
