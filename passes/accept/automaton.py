"""Constrained output: a token automaton, followed along every path of the tree.

Tokens that no state tells apart share a class, so a table of `states x classes` stands for `states x V`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def follow(state: Tensor, token: Tensor, table: Tensor, token_class: Tensor, classes: Tensor) -> Tensor:
    """The state behind each token.

    Args:
        state: `[B, T]` int64; -1 (no such continuation) stays -1.
        token: `[B, T]` int64 ids below V.
        table: `[B, A]` int32, the next state at `state * classes + class`; -1 forbids.
        token_class: `[B, V]` int32.
        classes: `[B]` int64.

    Returns:
        `[B, T]` int64.
    """
    place = state.clamp(min=0) * classes[:, None] + token_class.gather(1, token).long()
    return torch.where(state < 0, state, table.gather(1, place).long())


def forbid(scores: Tensor, state: Tensor, table: Tensor, token_class: Tensor, classes: Tensor) -> Tensor:
    """`[B, T, V]` scores with -inf for tokens that may not follow their node's state (`[B, T]`; the rest as above)."""
    batch, nodes, vocab = scores.shape
    place = (state.clamp(min=0) * classes[:, None])[:, :, None] + token_class[:, None, :].long()
    allowed = table.gather(1, place.view(batch, nodes * vocab)).view(batch, nodes, vocab) >= 0
    return torch.where(allowed, scores, float("-inf"))


def follow_tree(
    start: Tensor, tokens: Tensor, parents: Tensor, table: Tensor, token_class: Tensor, classes: Tensor, *, depth: int
) -> Tensor:
    """The state behind every node of a tree.

    Args:
        start: `[B]` int64, the state behind the root.
        tokens: `[B, N]` int64, node 0 is the root.
        parents: `[B or 1, N]` int64, the root its own.
        depth: D.

    Returns:
        `[B, N]` int64; -1 behind a token that is not allowed.
    """
    batch, nodes = tokens.shape
    parents = parents.expand(batch, nodes)
    root = torch.arange(nodes, device=tokens.device) == 0
    states = start[:, None].expand(batch, nodes)
    for _ in range(depth):  # one level a round: a parent's state is right before its children's
        states = torch.where(
            root, start[:, None], follow(states.gather(1, parents), tokens, table, token_class, classes)
        )
    return states


def follow_block(
    states: Tensor,
    path: Tensor,
    block: Tensor,
    accepted: Tensor,
    count: Tensor,
    start: Tensor,
    table: Tensor,
    token_class: Tensor,
    classes: Tensor,
) -> Tensor:
    """The state behind the tokens that a step emitted.

    Args:
        states: `[B, N]` int64, as `follow_tree` gives them; `path` `[B, D+1]`, `block` `[B, D+1]`, `accepted` `[B]` as
            acceptance gives them; `count` `[B]` int64, tokens emitted.
        start: `[B]` int64, the state behind the root, which stays where nothing was emitted.

    Returns:
        `[B]` int64.
    """
    along = states.gather(1, path)
    end = along.gather(1, accepted[:, None])
    after = follow(end, block.gather(1, accepted[:, None]), table, token_class, classes)
    within = along.gather(1, count[:, None].clamp(max=path.shape[1] - 1))
    behind = torch.where((count > accepted)[:, None], after, within).squeeze(1)
    return torch.where(count > 0, behind, start)
