"""The pool of a dynamic tree: every candidate of every level with its score, and the best of them as a tree.

Pure functions on tensors. Source: EAGLE-2 (Li et al. 2024), section 4, expansion and re-ranking.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pool(NamedTuple):
    """Candidates of the levels so far, P in all, parents before children.

    Attributes:
        tokens: `[B, P]` int64.
        scores: `[B, P]` float32, log-probability of the whole path; never above that of the parent.
        parents: `[B, P]` int64, place of the parent in the pool, -1 for the root.
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor


def first_level(scores: Tensor, ids: Tensor) -> Pool:
    """The root's children: `[B, 1, k]` log-probabilities and ids, best first."""
    return Pool(ids[:, 0], scores[:, 0], torch.full_like(ids[:, 0], -1))


def expand(pool: Pool, frontier: Tensor, scores: Tensor, ids: Tensor) -> Pool:
    """Add the children of the frontier.

    Args:
        frontier: `[B, k]` places in the pool.
        scores, ids: `[B, k, k]`, log-probabilities and ids of each one's children, best first.
    """
    batch, width, children = ids.shape
    total = pool.scores.gather(1, frontier)[:, :, None] + scores
    parents = frontier[:, :, None].expand(-1, -1, children)
    size = width * children
    added = Pool(ids.reshape(batch, size), total.reshape(batch, size), parents.reshape(batch, size))
    return Pool(*(torch.cat(pair, 1) for pair in zip(pool, added, strict=True)))


def best_of_last(pool: Pool, count: int, width: int) -> Tensor:
    """`[B, width]` places of the best among the last `count` candidates: the next frontier."""
    size = pool.scores.shape[1]
    return pool.scores[:, size - count :].topk(width, 1).indices + (size - count)


def best_tree(pool: Pool, levels: Tensor, *, nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `nodes - 1` best candidates as a tree behind the root, parents before children.

    Of equal scores the lower place wins, so a parent, whose score is no lower and whose place is, is always kept.

    Args:
        levels: `[1, P]` int64, the depth of each place, 1 and more.
        nodes: N, at most P + 1.

    Returns:
        places `[B, N-1]` int64, and tokens `[B, N-1]`, parents `[B, N]`, depths `[B, N]`: places in the pool, then the
        tree with the root as its own parent.
    """
    scores, size = pool.scores, pool.scores.shape[1]
    place = torch.arange(size, device=scores.device)
    ahead = (scores[:, None] > scores[:, :, None]) | (
        (scores[:, None] == scores[:, :, None]) & (place < place[:, None])
    )
    kept = ahead.long().sum(2) < nodes - 1
    order = kept.long().cumsum(1)  # 1, 2, ... at those that are kept
    wanted = torch.arange(1, nodes, device=scores.device)[:, None]
    places = (kept[:, None] & (order[:, None] == wanted)).long().argmax(2)
    above = pool.parents.gather(1, places)
    parents = torch.where(above >= 0, order.gather(1, above.clamp(min=0)), 0)
    root = torch.zeros_like(parents[:, :1])
    depths = levels.expand_as(pool.tokens).gather(1, places)
    return places, pool.tokens.gather(1, places), torch.cat([root, parents], 1), torch.cat([root, depths], 1)


def ancestors_of(parents: Tensor, *, depth: int) -> Tensor:
    """`[B, N, N]` bool: whether j is i or an ancestor of i, from parents `[B, N]` (the root its own)."""
    index = torch.arange(parents.shape[1], device=parents.device)
    climb = index.expand_as(parents)
    seen = climb[:, :, None] == index
    for _ in range(depth):
        climb = parents.gather(1, climb)
        seen = seen | (climb[:, :, None] == index)
    return seen
