"""Are the texts the same? Each difference with the margin of the target's choice there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .summary import Record

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

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        differences = [{**dataclasses.asdict(d), "near_tie": d.near_tie} for d in self.differences]
        return {"reference": self.reference, "tokens": self.tokens, "differences": differences}


def compare_texts(
    records: Iterable[Record],
    pairs: Iterable[tuple[str, str]],
    ids: Sequence[Sequence[int]],
    logits: Logits | None,
) -> dict[str, dict[str, Any]]:
    """Pairs of systems by the texts of their first repeat, as plain values, each under `SYSTEM = REFERENCE`.

    Args:
        pairs: names of the reference, and of the system that is compared with it.
        ids: of the prompts.
        logits: the target, where it is at hand.
    """
    texts: dict[str, list[list[int]]] = {}
    for record in records:
        if record.repeat == 0:
            texts.setdefault(record.system, []).append(record.run.tokens)
    return {f"{b} = {a}": compare(a, ids, texts[a], texts[b], logits).to_json() for a, b in pairs}


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
