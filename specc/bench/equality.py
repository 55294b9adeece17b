"""Are the texts the same? Each difference with the margin of the target's choice there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Logits = Callable[[Sequence[int]], torch.Tensor]
"""Logits `[T, V]` of the target at every position of a text."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text leaves the reference first.

    Attributes:
        position: index of the new token.
        gap: between the two largest logits of the target there; None where the target cannot be asked.
        noise: the largest difference of its logits between one pass over the text and the same text one token longer,
            a measure of how far programs with other row counts may differ.
    """

    prompt: int
    position: int
    gap: float | None
    noise: float | None

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone may have turned this choice."""
        return self.gap is not None and self.noise is not None and self.gap <= self.noise


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against the reference: tokens compared (up to each first difference), and the differences."""

    reference: str
    tokens: int
    differences: tuple[Difference, ...]


def compare(
    reference: str,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
    logits: Logits | None,
) -> Comparison:
    """Compare texts prompt by prompt.

    Args:
        reference: name of the system that wrote `expected`.
        prompts: ids in front of the texts.
        logits: the target, where it is at hand.
    """
    tokens, differences = 0, []
    for index, (prompt, right, text) in enumerate(zip(prompts, expected, found, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(right, text, strict=False)) if a != b), None)
        if at is None and len(right) != len(text):
            at = min(len(right), len(text))
        tokens += len(right) if at is None else at + 1
        if at is not None:
            gap, noise = (None, None) if logits is None else _margin([*prompt, *right[:at]], logits)
            differences.append(Difference(index, at, gap, noise))
    return Comparison(reference, tokens, tuple(differences))


def _margin(ids: Sequence[int], logits: Logits) -> tuple[float, float]:
    whole = logits(ids)
    best = whole[-1].topk(2).values
    rows = [logits(ids[: len(ids) - cut])[-1] for cut in (1, 3)] if len(ids) > 3 else []
    differences = [(row - whole[-1 - cut]).abs().max().item() for row, cut in zip(rows, (1, 3), strict=False)]
    return (best[0] - best[1]).item(), max(differences, default=0.0)
