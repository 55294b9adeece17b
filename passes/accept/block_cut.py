"""What a block emits: the one place that decides it."""

from __future__ import annotations

import torch
from torch import Tensor


def cut(
    block: Tensor, accepted: Tensor, eos: Tensor, limit: Tensor, length: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """`count = active ? min(accepted + 1, first EOS + 1, limit - total) : 0`.

    Args:
        block: `[B, D+1]` int64 tokens, the first `accepted + 1` of which were verified.
        accepted: `[B]` int64.
        eos: `[B, 8]` int64, padded by -1.
        limit: `[B]` int64, most tokens of the whole text.
        length: `[B]` int64, L_t; the text holds `L_t + 1` tokens.
        active: `[B]` bool.

    Returns:
        count `[B]` int64, tokens emitted, and `[B]` bool, rows that go on.
    """
    level = torch.arange(block.shape[1], device=block.device)
    ends = (block[:, :, None] == eos[:, None, :]).any(-1).long()
    before = ends.cumsum(1) - ends  # EOS tokens in front of each
    verified = ((level <= accepted[:, None]) & (before == 0)).long()
    room = limit - length - 1
    count = torch.where(active, torch.minimum(verified.sum(1), room).clamp(min=0), 0)
    ended = (ends * (level < count[:, None]).long()).sum(1) > 0
    return count, active & ~ended & (count < room)
