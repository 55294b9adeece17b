"""Typical acceptance: a draft passes where it is likely enough under the target. LOSSY: the text has another law.

Source: Medusa (Cai et al. 2024), section 3.3.1; the numbers are those of its `medusa_generate`.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON, DELTA = 0.09, 0.3  # a token more likely than the first always passes; the second is a share of exp(-entropy)


def accept(processed: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor, valid: Tensor, *, depth: int) -> Tensor:
    """The deepest node all of whose path passes; of several the likeliest path, then the lowest index.

    A token x passes iff `p(x) > min(EPSILON, DELTA * exp(-H(p)))`, p the law behind its parent and H its entropy.

    Args:
        processed: `[B, N, V]` float32 logits after all processors.
        tokens, valid: `[B, N]` int64 and bool.
        parents, depths: `[B or 1, N]` int64.
        depth: D.

    Returns:
        `[B, 1]` int64.
    """
    batch, nodes = tokens.shape
    parents, depths = parents.expand(batch, nodes), depths.expand(batch, nodes)
    p = processed.softmax(-1)
    entropy = -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)
    border = (DELTA * torch.exp(-entropy)).clamp(max=EPSILON)
    chance = p.flatten(1).gather(1, parents * p.shape[2] + tokens)
    passes = valid & (chance > border.gather(1, parents))
    index = torch.arange(nodes, device=tokens.device)
    ok, likely = (index == 0).expand(batch, nodes), torch.zeros_like(chance)
    step = torch.where(index == 0, 0.0, torch.where(chance > 0, chance, 1.0).log())
    for _ in range(depth):  # one level a round: a parent is decided before its children
        ok = (index == 0) | (passes & ok.gather(1, parents))
        likely = step + torch.where(index == 0, 0.0, likely.gather(1, parents))
    reached = torch.where(ok, depths, -1)
    deepest = reached == reached.amax(1, keepdim=True)
    return torch.where(deepest, likely, float("-inf")).argmax(1, keepdim=True)
