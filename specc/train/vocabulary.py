"""The drafter's own vocabulary: the ids that the target says most, so that the head costs less."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .features import Sample


def likely_ids(samples: Iterable[Sample], size: int, vocab_size: int) -> torch.Tensor:
    """The `size` ids of most weight in the target's answers, ascending.

    Every likely token counts with its probability, not only the one that was said. Low ids fill what is left: the
    merges of a tokenizer are numbered by how frequent they were in its own text.

    Returns:
        int64 [size], strictly ascending.
    """
    weight = torch.zeros(vocab_size, dtype=torch.float64)
    for sample in samples:
        weight.index_add_(0, sample.top.flatten(), sample.logp.flatten().exp().double())
        weight.index_add_(0, sample.ids, torch.full((len(sample.ids),), 0.5, dtype=torch.float64))
    weight -= 1e-9 * torch.arange(vocab_size)  # ties to the lower id
    return weight.topk(min(size, vocab_size)).indices.sort().values


def offsets(kept: torch.Tensor, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`d2t` and `t2d` of the published format.

    Args:
        kept: int64 [N], ascending ids of the target's vocabulary.
        vocab_size: rows of the target's head.

    Returns:
        int64 [N], what is added to a draft id to give the target's; bool [vocab_size], whether an id is kept.
    """
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[kept] = True
    return kept - torch.arange(len(kept)), mask
