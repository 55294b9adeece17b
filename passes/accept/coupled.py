"""Coupled: target and drafter take the arg-max of log-probability plus the same noise.

The noise of a position depends on the request's seed and the position alone, so the text is that of plain sampling with
the seed, whatever is drafted. Match probability of one draft: `sum_i 1 / sum_j max(p_j/p_i, q_j/q_i)`.
Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding" (2024).
"""

from __future__ import annotations

from torch import Tensor


def choose(processed: Tensor, gumbel: Tensor, depths: Tensor) -> Tensor:
    """The target's sampled token after each node.

    Args:
        processed: `[B, N, V]` float32 logits after all processors.
        gumbel: `[B, D+1, V]` float32, noise of the positions behind depths 0..D; nodes of one depth share it.
        depths: `[B or 1, N]` int64.

    Returns:
        `[B, N]` int64.
    """
    nodes, levels = processed.shape[1], gumbel.shape[1]
    if nodes != levels:  # a chain has one node a depth, in order
        index = depths.expand(processed.shape[0], nodes)[:, :, None].expand(-1, -1, processed.shape[2])
        gumbel = gumbel.gather(1, index)
    return (processed + gumbel).argmax(-1)
