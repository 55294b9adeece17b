"""Greedy: the target's choice is its arg-max, ties to the lowest id."""

from __future__ import annotations

from torch import Tensor


def choose(logits: Tensor) -> Tensor:
    """`[B, N, V]` logits to `[B, N]` int64 choices; equal logits go to the lowest id, as on the drafter's side."""
    return logits.argmax(-1)
