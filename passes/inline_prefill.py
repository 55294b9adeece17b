"""Prefill: one chunk of known tokens through a model, for its caches only."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program import Level, Program
from .blocks import add_block, feature_rows, write_rows
from .contract import Pass
from .graph import emit


class InlinePrefill(Pass):
    """Write a chunk of C tokens of one row into a model's caches; nobody reads its logits, so the head drops out.

    Before: an empty graph.
    After:  inputs `tokens: i64[1, C]`, `start: i64[1]`; the caches, and `next: i64[1]` (= start + C). A target that
    hands on features has them written; a drafter that reads them gets those of the slots from `start` on, and as
    `tokens` the ones that follow.
    """

    reads = Level.CAPTURED
    leaves = Level.FUSED
    preserves_outputs = False

    def __init__(self, *, model: str) -> None:
        self.model = model

    def run(self, program: Program) -> int:
        chunk = program.sizes.chunk
        tokens = program.input("tokens", (1, chunk), torch.int64)
        start = program.input("start", (1,), torch.int64)
        causal = program.constant(f"causal.{chunk}", torch.ones(1, chunk, chunk, dtype=torch.bool).tril())
        offsets = program.constant(f"offsets.{chunk}", torch.arange(chunk)[None])
        takes = program.models[self.model].takes_hidden
        hidden = feature_rows(program, self, start, rows=chunk) if takes else None
        where = {"length": start, "start": start, "offsets": offsets, "mask": causal}
        _, block = add_block(program, self, self.model, tokens, **where, hidden=hidden)
        written = write_rows(program, self, block, start)
        program.give(next=emit(program, self, _next, start, chunk=chunk), **written)
        return 1


def _next(start: Tensor, *, chunk: int) -> Tensor:
    return start + chunk
