"""Walk the tree along the target's choices: the part that greedy and coupled acceptance share."""

from __future__ import annotations

import torch
from torch import Tensor


def walk(
    choices: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor, valid: Tensor, *, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept the deepest node whose whole path is what the target chose.

    `ok[j] = valid[j] and ok[parent[j]] and token[j] == choice[parent[j]]`; among the deepest the lowest index wins
    (siblings may repeat a token). Sample-and-compare is lossless for any draft, however it was made.

    Args:
        choices: `[B, N]` int64, the target's token after each node.
        tokens: `[B, N]` int64, node 0 is the root.
        parents: `[B or 1, N]` int64, parents before children, the root its own.
        depths: `[B or 1, N]` int64.
        valid: `[B, N]` bool, nodes that may be accepted; the root's entry is not read.
        depth: D, the depth of the tree.

    Returns:
        path `[B, D+1]` int64: the accepted nodes from the root on (past the end it repeats the last);
        accepted `[B]` int64: levels taken, 0..D;
        block `[B, D+1]` int64: the tokens to emit, `accepted + 1` of them count.
    """
    batch, nodes = tokens.shape
    parents, depths = parents.expand(batch, nodes), depths.expand(batch, nodes)
    agrees = valid & (tokens == choices.gather(1, parents))
    index = torch.arange(nodes, device=tokens.device)
    ok = (index == 0).expand(batch, nodes)
    for _ in range(depth):  # one level a round: a parent is decided before its children
        ok = (index == 0) | (agrees & ok.gather(1, parents))
    score = torch.where(ok, depths * nodes + (nodes - 1 - index), -1)
    end = score.argmax(-1, keepdim=True)
    return path_to(end, choices.gather(1, end), tokens, parents, depths, depth=depth)


def path_to(
    end: Tensor, bonus: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor, *, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The path from the root to `end` (`[B, 1]` int64) and the block it emits, `bonus` (`[B, 1]`) last.

    Returns:
        path, accepted, block as in `walk`.
    """
    upward = [end]
    for _ in range(depth):
        upward.append(parents.gather(1, upward[-1]))
    climb = torch.cat(upward, 1)  # from the end to the root, which repeats
    accepted = depths.gather(1, end)
    level = torch.arange(depth + 1, device=tokens.device)
    path = climb.gather(1, (accepted - level).clamp(min=0))
    emitted = tokens.gather(1, path)
    ahead = torch.cat([emitted[:, 1:], bonus], 1)
    return path, accepted.squeeze(1), torch.where(level < accepted, ahead, bonus)
