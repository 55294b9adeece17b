"""The rows of a dynamic tree while it grows: pure functions on tensors, which `GrowTree` emits.

Places are those of the pool (`candidate_pool`), B rows, k nodes a level.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .candidate_pool import Pool, ancestors_of, best_of_last, best_tree, expand, first_level


def as_column(vector: Tensor) -> Tensor:
    """`[B, 1]` of `[B]`."""
    return vector[:, None]


def side_by_side(*parts: Tensor) -> Tensor:
    """Columns of all parts, `[B, n]` each."""
    return torch.cat(parts, 1)


def best_greedy(logits: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids `[B, T, width]` of the best of `[B, T, V]` logits."""
    scores, ids = logits.topk(width, -1)
    return _known(scores, scores - logits.logsumexp(-1, keepdim=True)), ids


def _known(scores: Tensor, shares: Tensor) -> Tensor:
    """-inf where nothing may follow: not NaN, which is in no order."""
    return torch.where(scores > float("-inf"), shares, float("-inf"))


def with_noise(scores: Tensor, ids: Tensor, gumbel: Tensor, *, row: int) -> Tensor:
    """Scores `[B, T, W]` of `ids` with the noise of one position, a row of `[B, D+1, V]`."""
    return scores + gumbel[:, row : row + 1].expand(-1, ids.shape[1], -1).gather(2, ids)


def best_sampled(scores: Tensor, ids: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    """As `best_greedy`, of `[B, T, W]` scores whose ids stand beside them."""
    best, place = _known(scores, scores.log_softmax(-1)).topk(width, -1)
    return best, ids.gather(2, place)


def first_pool(scores: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
    """`candidate_pool.first_level` for graphs, which hold tensors alone."""
    return tuple(first_level(scores, ids))


def next_frontier(tokens: Tensor, scores: Tensor, parents: Tensor, *, count: int, width: int) -> Tensor:
    """`candidate_pool.best_of_last` of a pool in its parts."""
    return best_of_last(Pool(tokens, scores, parents), count, width)


def frontier_rows(tokens: Tensor, scores: Tensor, parents: Tensor, frontier: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of the frontier, and the places of their parents."""
    return tokens.gather(1, frontier), parents.gather(1, frontier)


def expanded_pool(
    tokens: Tensor, scores: Tensor, parents: Tensor, frontier: Tensor, added: Tensor, ids: Tensor
) -> tuple[Tensor, ...]:
    """`candidate_pool.expand` of a pool in its parts."""
    return tuple(expand(Pool(tokens, scores, parents), frontier, added, ids))


def _row_of(above: Tensor, grown: Tensor) -> Tensor:
    """`[B, k]`, the row of the level before at which each parent stands."""
    return (grown[:, None] == above[:, :, None]).long().argmax(2)


def parent_states(states: Tensor, above: Tensor, *grown: Tensor) -> Tensor:
    """States of the parents; without `grown` the root's, for all."""
    return states.gather(1, _row_of(above, grown[0])) if grown else states.expand_as(above)


def handed_rows(hidden: Tensor, above: Tensor, *grown: Tensor) -> Tensor:
    """What the parents' rows handed on, `[B, k, F]`."""
    if not grown:
        return hidden.expand(-1, above.shape[1], -1)
    row = _row_of(above, grown[0])
    return hidden.gather(1, row[:, :, None].expand(-1, -1, hidden.shape[2]))


def path_rows(parents: Tensor, *grown: Tensor, depth: int) -> Tensor:
    """`[B, k, (depth - 1) * k]`: which of the drafted rows are on the path of each row of the last level."""
    places = torch.cat(grown, 1)
    climb = grown[-1]
    seen = climb[:, :, None] == places[:, None]
    for _ in range(depth - 2):
        climb = parents.gather(1, climb)  # level by level: it ends at the first, before the root
        seen = seen | (climb[:, :, None] == places[:, None])
    return seen


def on_path_weights(within: Tensor) -> Tensor:
    """The same over the root, which the counts hold already, and the drafted rows, as numbers."""
    return torch.cat([torch.zeros_like(within[:, :, :1]), within], 2).float()


def chosen_tree(
    tokens: Tensor, scores: Tensor, parents: Tensor, levels: Tensor, root: Tensor, *, nodes: int
) -> tuple[Tensor, ...]:
    """Tokens, parents and depths `[B, N]` of the best, and whether the drafter may say them at all."""
    places, drafted, above, depths = best_tree(Pool(tokens, scores, parents), levels, nodes=nodes)
    possible = scores.gather(1, places) > float("-inf")
    return (
        torch.cat([root, drafted], 1),
        above,
        depths,
        torch.cat([torch.ones_like(root, dtype=torch.bool), possible], 1),
    )


def offered_tree(
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    possible: Tensor,
    outline: Tensor,
    forced: Tensor,
    limit: Tensor,
    *,
    depth: int,
    vocab: int,
) -> tuple[Tensor, ...]:
    """The tree with what the caller wants in it, its mask, and the nodes that may be accepted."""
    wanted = forced[:, : tokens.shape[1]]
    told = (wanted >= 0).long().amax(1, keepdim=True) > 0
    parents = torch.where(told, outline[:1], parents)
    depths = torch.where(told, outline[1:], depths)
    tokens = torch.where((wanted >= 0) & (depths > 0), wanted.clamp(max=vocab - 1), tokens)
    ancestors = ancestors_of(parents, depth=depth)
    alone = (wanted < vocab) & (possible | (wanted >= 0))
    broken = (ancestors & ~alone[:, None, :]).long().sum(-1)  # on the node's path, itself included
    return tokens, parents, depths, ancestors, (depths <= limit[:, None]) & (broken == 0)
