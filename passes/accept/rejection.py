"""Rejection: speculative sampling for chains whose tokens were drawn from q.

Sources: Leviathan, Kalman, Matias 2023, algorithm 1; Chen et al. 2023, algorithm 2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def accept(processed: Tensor, q: Tensor, tokens: Tensor, valid: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
    """Accept draft i iff `u_i < p_i(x_i) / q_i(x_i)` (strict, so a token with p = 0 never passes), up to the first no.

    Args:
        processed: `[B, K+1, V]` float32 target logits after all processors; row i decides draft i + 1.
        q: `[B, K, V]` float32, the distributions that the drafts were drawn from, after the same processors.
        tokens: `[B, K+1]` int64, the root and the drafts.
        valid: `[B, K+1]` bool, drafts that were offered; from the first that was not, nothing is drafted.
        coins: `[B, K]` float32 in (0, 1).

    Returns:
        accepted `[B]` int64, 0..K, and the law of the next token `[B, V]` float32 (not normalised): the residual
        `max(0, p - q)` after a rejection, `p` where nothing was offered, or where the residual is empty (p equal to q
        up to rounding).
    """
    drafts = q.shape[1]
    p = processed.softmax(-1)
    chosen = tokens[:, 1:, None]
    p_x = p[:, :drafts].gather(2, chosen).squeeze(2)
    q_x = q.gather(2, chosen).squeeze(2)
    offered = valid[:, 1:]
    ok = offered & (coins * q_x < p_x)
    accepted = (ok.long().cumsum(1) == torch.arange(1, drafts + 1, device=q.device)).sum(1)
    row = accepted[:, None, None].expand(-1, 1, p.shape[2])
    p_end = p.gather(1, row).squeeze(1)
    padded = torch.cat([torch.where(offered[:, :, None], q, 0.0), torch.zeros_like(q[:, :1])], 1)
    residual = (p_end - padded.gather(1, row).squeeze(1)).clamp(min=0.0)
    return accepted, torch.where(residual.sum(-1, keepdim=True) > 0, residual, p_end)
