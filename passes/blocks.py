"""One run of a model over the rows of this step, and the write of rows into its caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from ..program import Block, Program
from . import inputs
from .graph import call, emit, inline


def add_block(
    program: Program,
    maker: object,
    model: str,
    tokens: fx.Node,
    *,
    length: fx.Node,
    start: fx.Node,
    offsets: fx.Node,
    mask: fx.Node,
    prior: Sequence[Block] = (),
) -> tuple[fx.Node, Block]:
    """Inline a model over T rows.

    Args:
        tokens: `[B, T]` int64.
        length: `[B]` int64, filled slots of the model's cache, all of which every row sees.
        start: `[B]` int64, position of offset 0.
        offsets: `[1, T]` int64; positions are `start + offsets`, clamped to those that the model has (rows past its
            last position are padding: nobody reads them, but tables must not be read out of bounds).
        mask: `[B or 1, T, P + T]` bool, what each row sees of the step's own rows, those of `prior` first.

    Returns:
        `[B, T, V]` logits, and the block, whose markers `LowerAttention` replaces.
    """
    source = program.models[model]
    positions = emit(program, maker, _positions, start, offsets, last=source.max_positions - 1)
    (logits,), markers = inline(program, maker, source.graph, [tokens, positions])
    block = Block(model, length, positions, mask, list(prior), markers)
    program.blocks.append(block)
    return logits, block


def _positions(start: Tensor, offsets: Tensor, *, last: int) -> Tensor:
    return (start[:, None] + offsets).clamp(max=last)


def write_rows(
    program: Program, maker: object, block: Block, start: fx.Node, path: fx.Node | None = None
) -> dict[str, fx.Node]:
    """Write a block's keys and values into the caches, once per cache.

    Args:
        start: `[B]` int64, first slot.
        path: `[B, D+1]` int64, which rows in which order; None is all rows as they stand.

    Returns:
        The caches after the write, by the name of the input that they replace.
    """
    written = {}
    for layer, marker in enumerate(block.markers):
        for kind, rows in (("k", marker.args[1]), ("v", marker.args[2])):
            cache = inputs.cache(program, block.model, kind, layer, rows)
            if path is not None:
                rows = emit(program, maker, _take_rows, rows, path)
            with program.graph.inserting_before(program.output):
                new = call(program, maker, torch.ops.specc.kv_update.default, cache, rows, start)
            written[str(cache.target)] = new
    return written


def _take_rows(rows: Tensor, path: Tensor) -> Tensor:
    """`[B, G, N, D]` rows at `[B, M]` indices: `[B, G, M, D]`."""
    index = path[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[3])
    return rows.gather(2, index)
