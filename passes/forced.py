"""Forced drafts, for drafters whose own guesses are one-hot too."""

from __future__ import annotations

import torch
from torch import Tensor


def force(
    tokens: Tensor, valid: Tensor, forced: Tensor, depths: Tensor, draft_limit: Tensor, *, vocab: int
) -> tuple[Tensor, Tensor]:
    """Offer forced drafts, whether the drafter found anything or not; ids of padded rows never are.

    Args:
        tokens: `[B, N]` int64, what the drafter found.
        valid: `[B, N]` bool, where it found something.
        forced: `[B, M]` int64, M at least N; -1 leaves a node to the drafter.
        depths: `[1, N]` int64.
        draft_limit: `[B]` int64, levels to offer.
        vocab: ids that the tokenizer has.

    Returns:
        tokens and valid with what was forced in its place.
    """
    wanted = forced[:, : tokens.shape[1]]
    given = (wanted >= 0) & (depths > 0) & (depths <= draft_limit[:, None])
    return torch.where(given, wanted.clamp(max=vocab - 1), tokens), (valid | given) & (wanted < vocab)
