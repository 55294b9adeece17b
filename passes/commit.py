"""Commit: the accepted rows, tokens and lengths become the state."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..program import Level, Program
from . import inputs
from .accept.automaton import follow_block
from .accept.block_cut import cut
from .accept_draft import AcceptDraft
from .blocks import write_rows
from .contract import Pass
from .graph import call, emit
from .process_logits import grammar_tables


class Commit(Pass):
    """Write what was accepted, once per cache, and advance the lengths.

    Always D + 1 rows of the path are written; those past the count lie beyond the new length, where nobody reads them
    and the next step writes. So there is no rollback and no moving of rows.

    Before: `path`, `accepted`, `block`, `offered`; the target's block of N rows.
    After:  level FUSED; outputs `report: i64[B, D+4]` (block, count, accepted, offered), `target_length`, `active`,
    `history` and the caches; `accepted` is cut to the count. `path`, `logits` and `processed` go out as they are, for
    log-probabilities, and so does the drafter's state; with a grammar, `grammar_state` follows the emitted tokens.
    """

    needs = (AcceptDraft,)
    reads = Level.CAPTURED
    leaves = Level.FUSED
    preserves_outputs = False

    def __init__(self, *, grammar: int = 0) -> None:
        self.grammar = grammar

    def run(self, program: Program) -> int:
        values = program.values
        length, limit, active = (inputs.vector(program, n) for n in ("target_length", "limit", "active"))
        block, accepted = values["block"], values["accepted"]
        count, going = emit(program, self, cut, block, accepted, inputs.eos(program), limit, length, active)
        target = next(b for b in program.blocks if b.model == "target")
        written = write_rows(program, self, target, length, values["path"])
        history, new, start = emit(program, self, _history_rows, inputs.history(program), block, length)
        with program.graph.inserting_before(program.output):
            told = call(program, self, torch.ops.specc.kv_update.default, history, new, start)
        report, advanced = emit(program, self, _report, block, count, accepted, values["offered"], active, length)
        told_too = ("drafter_length", "path", "logits", "processed")
        kept = {k: v for k, v in values.items() if k in told_too or inputs.role(k) in ("cache", "draft")}
        if "states" in values:
            kept["grammar_state"] = self._follow(program, count)
        program.drop(*values)
        program.give(report=report, target_length=advanced, **kept, active=going, history=told, **written)
        return 1

    def _follow(self, program: Program, count: fx.Node) -> fx.Node:
        values = program.values
        emitted = [values[name] for name in ("states", "path", "block", "accepted")]
        tables = grammar_tables(program, self.grammar)
        return emit(program, self, follow_block, *emitted, count, inputs.vector(program, "grammar_state"), *tables)


def _history_rows(history: Tensor, block: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """History and block in the shape of a cache, and the slot behind the root."""
    return history[:, None, :, None], block[:, None, :, None], length + 1


def _report(
    block: Tensor, count: Tensor, accepted: Tensor, offered: Tensor, active: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    taken = torch.minimum(accepted, count)
    numbers = torch.stack([count, taken, torch.where(active, offered, 0)], 1)
    return torch.cat([block, numbers], 1), length + count
