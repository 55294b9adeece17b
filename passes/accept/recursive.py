"""Recursive rejection: speculative sampling for trees whose children were drawn from q without replacement.

Sources: Chen et al. 2024 (Sequoia), algorithm 2; Jeon et al. 2024 (recursive speculative decoding).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def accept(
    processed: Tensor,
    scores: Tensor,
    tokens: Tensor,
    valid: Tensor,
    alone: Tensor,
    coins: Tensor,
    children: Tensor,
    rows: Tensor,
    *,
    widths: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Walk down from the root: of the children, in the order in which they were drawn, descend into the first accepted.

    A child is accepted iff `u < r(x) / q(x)` (strict, so a token with r = 0 never passes), where r begins as p. A
    refusal makes r the residual `norm(max(0, r - q))` and takes x out of q, which is what the next child was drawn
    from.

    Args:
        processed: `[B, N, V]` float32 target logits after all processors; row i decides the children of node i.
        scores: `[B, I, V]` float32, logits of q behind each of the I nodes with children, -inf outside its support.
        tokens: `[B, N]` int64.
        valid: `[B, N]` bool, nodes that are offered; of drawn siblings those that are not come last.
        alone: `[B, N]` bool, nodes whose token was given and not drawn: their q is one-hot.
        coins: `[B, D, W]` float32 in (0, 1), one for each level and place among siblings.
        children: `[N, W]` int64, each node's children in the order of their draw; 0 for none.
        rows: `[N]` int64, the row of `scores` that belongs to a node; 0 where it has no children.
        widths: the most children that a node has on each of the D levels.

    Returns:
        end `[B, 1]` int64, the deepest accepted node; and the law of the next token `[B, V]` float32 (not normalised):
        p where no child was offered, else what the refusals have left of it.
    """
    end = torch.zeros_like(tokens[:, :1])
    going = end == 0
    law = processed[:, 0].softmax(-1)
    for level, width in enumerate(widths):
        q = _row(scores, rows.index_select(0, end.flatten())[:, None])
        behind = children.index_select(0, end.flatten())
        chosen, open_ = end, going
        for place in range(width):
            child = behind[:, place : place + 1]
            token, given = tokens.gather(1, child), alone.gather(1, child)
            share = torch.where(given, _one_hot(token, law), _shares(q))
            drawn = share.gather(1, token)
            tried = open_ & (child > 0) & valid.gather(1, child)
            passed = tried & (drawn > 0) & (coins[:, level, place : place + 1] * drawn < law.gather(1, token))
            chosen = torch.where(passed, child, chosen)
            refused = tried & ~passed
            law = torch.where(refused, _residual(law, share), law)
            q = torch.where(refused & ~given, without(q, token), q)
            open_ = open_ & ~passed
        going = going & (chosen != end)
        end = chosen
        law = torch.where(going, _row(processed, end).softmax(-1), law)
    return end, law


def without(q: Tensor, token: Tensor) -> Tensor:
    """Logits `[B, V]` of what is drawn from once `token` (`[B, 1]`) is taken out: the rest, renormalised."""
    return torch.where(torch.arange(q.shape[1], device=q.device) == token, float("-inf"), q)


def _row(rows: Tensor, index: Tensor) -> Tensor:
    """`[B, V]`, of `[B, T, V]` the row at `[B, 1]`."""
    return rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[2])).squeeze(1)


def _shares(q: Tensor) -> Tensor:
    """Probabilities; nothing, and not NaN, where q has no support left."""
    return torch.where(q > float("-inf"), q.softmax(-1), 0.0)


def _one_hot(token: Tensor, law: Tensor) -> Tensor:
    return (torch.arange(law.shape[1], device=law.device) == token).float()


def _residual(law: Tensor, share: Tensor) -> Tensor:
    """`norm(max(0, r - q))`; r itself where that is empty (r equal to q up to rounding)."""
    rest = (law - share).clamp(min=0.0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / torch.where(total > 0, total, 1.0), law)
