"""One run of a model over the rows of this step, and the write of rows into its caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from ..program import Block, Program
from . import inputs
from .graph import call, emit, inline
from .vocabulary import fed


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
    hidden: fx.Node | None = None,
) -> tuple[fx.Node, Block]:
    """Inline a model over T rows.

    Args:
        tokens: `[B, T]` int64, ids of the target, whichever model is run.
        length: `[B]` int64, filled slots of the model's cache, all of which every row sees.
        start: `[B]` int64, position of offset 0.
        offsets: `[1, T]` int64; positions are `start + offsets`, clamped to those that the model has (rows past its
            last position are padding: nobody reads them, but tables must not be read out of bounds).
        mask: `[B or 1, T, P + T]` bool, what each row sees of the step's own rows, those of `prior` first.
        hidden: `[B, T, F]`, what a drafter that reads hidden states gets with its tokens.

    Returns:
        `[B, T, V]` logits, by the model's own columns (`vocabulary.by_target_id`), and the block, whose markers
        `LowerAttention` replaces.
    """
    source = program.models[model]
    positions = emit(program, maker, _positions, start, offsets, last=source.max_positions - 1)
    tokens = fed(program, maker, model, tokens)
    given = [tokens, positions] if hidden is None else [tokens, positions, hidden]
    (logits, *more), markers = inline(program, maker, source.graph, given, model=model)
    block = Block(model, length, positions, mask, list(prior), markers, *more)
    program.blocks.append(block)
    return logits, block


def _positions(start: Tensor, offsets: Tensor, *, last: int) -> Tensor:
    return (start[:, None] + offsets).clamp(max=last)


def write_rows(
    program: Program, maker: object, block: Block, start: fx.Node, path: fx.Node | None = None
) -> dict[str, fx.Node]:
    """Write a block's keys and values into the caches, once per cache; a target's features into theirs.

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
    if block.features is not None and not program.models[block.model].takes_hidden:
        written["features"] = _write_features(program, maker, block.features, start, path)
    return written


def feature_rows(program: Program, maker: object, start: fx.Node, *, rows: int) -> fx.Node:
    """`[B, rows, F]`, what the target handed on at the slots from `start` (`[B]`) on."""
    return emit(program, maker, _read_features, inputs.features(program), start, rows=rows)


def _write_features(
    program: Program, maker: object, features: fx.Node, start: fx.Node, path: fx.Node | None
) -> fx.Node:
    rows = emit(program, maker, _as_rows, features)
    if path is not None:
        rows = emit(program, maker, _take_rows, rows, path)
    with program.graph.inserting_before(program.output):
        return call(program, maker, torch.ops.specc.kv_update.default, inputs.features(program), rows, start)


def _as_rows(features: Tensor) -> Tensor:
    return features[:, None]


def _read_features(cache: Tensor, start: Tensor, *, rows: int) -> Tensor:
    slots = start[:, None] + torch.arange(rows, device=start.device)
    return cache[:, 0].gather(1, slots[:, :, None].expand(-1, -1, cache.shape[3]))


def _take_rows(rows: Tensor, path: Tensor) -> Tensor:
    """`[B, G, N, D]` rows at `[B, M]` indices: `[B, G, M, D]`."""
    index = path[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[3])
    return rows.gather(2, index)
