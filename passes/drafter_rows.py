"""The rows of a drafter that are known to be right, which every tree begins with: its catch-up, or the root alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from ..program import Block, Program
from . import inputs
from .blocks import add_block, feature_rows, write_rows
from .graph import emit


@dataclass(frozen=True)
class CatchUp:
    """A drafter that has read the text up to the root.

    Attributes:
        block: its rows, R = D + 1, the only ones that go into its caches; R = 1 where it reads the target's.
        drafted: `[B]` int64, L_d, its cache's length before.
        root_slot: `[B]` int64, the slot of the root's row. A drafter that reads features has `(x[t+1], f[t])` at slot
            t, so that the root, for which the target has no features yet, stands a slot before its place in the text.
        last: `[B]` int64, which of the rows is the root's.
        logits: `[B, 1, V]`, behind the root.
        hidden: `[B, 1, F]`, what that row handed on; None for drafters that read no features.
    """

    block: Block
    drafted: fx.Node
    root_slot: fx.Node
    last: fx.Node
    logits: fx.Node
    hidden: fx.Node | None


def begin(program: Program, maker: object, *, rows: int, model: str = "drafter") -> CatchUp:
    """What a tree begins with: the catch-up of a drafter with caches, padded to `rows`, or the root alone."""
    if program.models[model].kept:
        return root_alone(program, maker, model)
    return catch_up(program, maker, rows=rows, model=model)


def root_alone(program: Program, maker: object, model: str = "drafter") -> CatchUp:
    """Run the drafter over the root: the target's caches, which it reads, hold all before it."""
    length = inputs.vector(program, "target_length")
    alone = program.constant("causal.1", torch.ones(1, 1, 1, dtype=torch.bool))
    offsets = program.constant("offsets.1", torch.zeros(1, 1, dtype=torch.long))
    where = {"length": length, "start": length, "offsets": offsets, "mask": alone}
    logits, block = add_block(program, maker, model, program.values["tokens"], **where)
    return CatchUp(block, length, length, emit(program, maker, _first, length), logits, None)


def catch_up(program: Program, maker: object, *, rows: int, model: str = "drafter") -> CatchUp:
    """Run a drafter over `history[L_d : L_t + 1]`, padded to `rows`; several drafters share L_d."""
    length, drafted = (inputs.vector(program, name) for name in ("target_length", "drafter_length"))
    shift = 1 if program.models[model].takes_hidden else 0
    root_slot = emit(program, maker, _before, length, shift=shift) if shift else length
    pending = emit(program, maker, _pending, inputs.history(program), drafted, rows=rows, shift=shift)
    causal = program.constant(f"causal.{rows}", torch.ones(1, rows, rows, dtype=torch.bool).tril())
    offsets = program.constant(f"offsets.{rows}", torch.arange(rows)[None])
    hidden = feature_rows(program, maker, drafted, rows=rows) if shift else None
    where = {"length": drafted, "start": drafted, "offsets": offsets, "mask": causal}
    logits, block = add_block(program, maker, model, pending, **where, hidden=hidden)
    last = emit(program, maker, _last_row, root_slot, drafted, rows=rows)
    logits = emit(program, maker, _take_row, logits, last)
    handed = block.features and emit(program, maker, _take_row, block.features, last)
    return CatchUp(block, drafted, root_slot, last, logits, handed)


def seen_rows(program: Program, maker: object, begun: CatchUp, within: fx.Node) -> fx.Node:
    """`[B, T, R + P]`: what drafted rows see: all known rows of the catch-up, and `within` (`[B or 1, T, P]`)."""
    rows = begun.block.positions.meta["val"].shape[1]
    return emit(program, maker, _sees, begun.last, within, rows=rows)


def give_caught_up(program: Program, maker: object, begun: CatchUp, valid: fx.Node) -> None:
    """Hand on `valid`, cut to what the drafter could see, and its caches and length, if any, behind the catch-up."""
    if program.models[begun.block.model].kept:
        program.give(valid=valid)
        return
    if begun.hidden is not None:
        valid = emit(program, maker, _seen, valid, begun.root_slot)
    positions = program.models[begun.block.model].max_positions
    if positions < program.sizes.slots:
        valid = emit(program, maker, _within_reach, valid, program.values["depths"], begun.root_slot, end=positions)
    written = write_rows(program, maker, begun.block, begun.drafted)
    caught_up = emit(program, maker, _caught_up, begun.root_slot, inputs.vector(program, "active"), begun.drafted)
    program.give(valid=valid, drafter_length=caught_up, **written)


def _first(length: Tensor) -> Tensor:
    return torch.zeros_like(length)


def _before(length: Tensor, *, shift: int) -> Tensor:
    return length - shift


def _pending(history: Tensor, drafted: Tensor, *, rows: int, shift: int) -> Tensor:
    """`[B, R]` tokens of the drafter's slots from its length on; those past the root are padding."""
    slots = drafted[:, None] + torch.arange(shift, rows + shift, device=history.device)
    return history.gather(1, slots)


def _last_row(root_slot: Tensor, drafted: Tensor, *, rows: int) -> Tensor:
    return (root_slot - drafted).clamp(min=0, max=rows - 1)


def _take_row(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(1, index[:, None, None].expand(-1, 1, rows.shape[2]))


def _sees(last: Tensor, within: Tensor, *, rows: int) -> Tensor:
    known = torch.arange(rows, device=last.device) <= last[:, None]
    known = known[:, None, :].expand(-1, within.shape[1], -1)
    return torch.cat([known, within.expand(last.shape[0], -1, -1)], 2)


def _seen(valid: Tensor, root_slot: Tensor) -> Tensor:
    """Nothing is offered behind a root in front of which the target saw nothing: there are no features yet."""
    return valid & (root_slot >= 0)[:, None]


def _within_reach(valid: Tensor, depths: Tensor, root_slot: Tensor, *, end: int) -> Tensor:
    """Nothing is offered that was drafted from a row past the drafter's last position; the root is not drafted."""
    return valid & ((depths == 0) | (root_slot[:, None] + depths <= end))


def _caught_up(root_slot: Tensor, active: Tensor, drafted: Tensor) -> Tensor:
    return torch.where(active, root_slot + 1, drafted)
