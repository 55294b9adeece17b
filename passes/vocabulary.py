"""The ids that a model is fed and the ids that its logits stand for: everything between is the target's ids."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..program import Program
from .graph import call, emit


def fed(program: Program, maker: object, model: str, tokens: fx.Node) -> fx.Node:
    """Target ids `[B, T]` as the ids under which the model knows them (`Model.fed_as`)."""
    name = program.models[model].fed_as
    return emit(program, maker, own_ids, tokens, program.weight(name)) if name else tokens


def by_target_id(program: Program, maker: object, model: str, logits: fx.Node) -> fx.Node:
    """A drafter's logits `[B, T, columns]` as `[B, T, V]` float32, V the ids that the target's tokenizer has.

    An id that the drafter cannot draft (`Model.column_of`) gets -inf, so the law that is made of the result is the
    drafter's own over what both can say, renormalised. Source: token-level intersection (Timor et al. 2025).
    """
    name, vocab = program.models[model].column_of, program.models["target"].vocab_size
    if name:
        logits = emit(program, maker, target_columns, logits, program.weight(name))
    return known_ids(program, maker, logits, vocab)


def known_ids(program: Program, maker: object, logits: fx.Node, vocab_size: int) -> fx.Node:
    """Logits as float32 and without the padded rows of the vocabulary."""
    with program.graph.inserting_before(program.output):
        if logits.meta["val"].shape[-1] > vocab_size:
            logits = call(program, maker, torch.ops.aten.slice.Tensor, logits, 2, 0, vocab_size)
        if logits.meta["val"].dtype != torch.float32:
            logits = call(program, maker, torch.ops.aten.to.dtype, logits, torch.float32)
    return logits


def own_ids(tokens: Tensor, fed_as: Tensor) -> Tensor:
    """Target ids of any shape as those of the model."""
    return fed_as.index_select(0, tokens.flatten()).view(tokens.shape)


def target_columns(logits: Tensor, column_of: Tensor) -> Tensor:
    """`[..., columns]` logits in the order of the target's ids, -inf for those that have no column."""
    columns = logits.index_select(-1, column_of.clamp(min=0))
    return torch.where(column_of < 0, float("-inf"), columns)
