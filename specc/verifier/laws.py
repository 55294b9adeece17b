"""Exact laws of two sampled tokens, and how surprising counts are under one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .lab import Lab
from .modes import GREEDY

Pair = tuple[int, int]
LEAST_EXPECTED = 5.0  # cells with less are pooled, as the chi-square approximation needs


@dataclass(frozen=True, slots=True)
class Setting:
    """A context, how tokens are drawn behind it, and the law of the first two.

    Attributes:
        law: probability of every pair that can come.
        best: the tokens that can come, likeliest first, behind nothing (`()`) and behind each first token.
    """

    prompt: list[int]
    temperature: float
    top_k: int
    law: dict[Pair, float]
    best: dict[tuple[int, ...], list[int]]

    @property
    def options(self) -> dict[str, float]:
        """Of the request."""
        return {"temperature": self.temperature, "top_k": self.top_k}

    def __str__(self) -> str:
        return f"temperature {self.temperature:.3g}, top_k {self.top_k}, behind {len(self.prompt)} tokens"


def surprise(counts: Mapping[Pair, int], law: Mapping[Pair, float], slack: float) -> float:
    """The smaller `tail` of first tokens and of pairs, times two for having looked twice.

    A mistake is largest at the first token, and among few cells; in what follows from the first it is seen in pairs.

    Args:
        slack: of one token, as in `tail`.
    """
    firsts: dict[int, int] = {}
    first_law: dict[int, float] = {}
    for (first, _), count in counts.items():
        firsts[first] = firsts.get(first, 0) + count
    for (first, _), p in law.items():
        first_law[first] = first_law.get(first, 0.0) + p
    return min(1.0, 2 * min(tail(firsts, first_law, slack), tail(counts, law, 2 * slack)))


def tail(counts: Mapping[Any, int], law: Mapping[Any, float], slack: float) -> float:
    """Probability of counts at least as far from `law`, by chi-square; 0 where something came that cannot.

    Args:
        slack: how far the logarithm of a probability may be off by rounding. It makes the statistic non-central by at
            most `draws * slack ** 2`, which Patnaik's approximation (1949) brings back to a central one.
    """
    draws = sum(counts.values())
    if any(cell not in law for cell in counts):
        return 0.0
    cells = sorted((draws * p, counts.get(cell, 0)) for cell, p in law.items())
    while len(cells) > 2 and cells[0][0] < LEAST_EXPECTED:
        (a, m), (b, n), *rest = cells
        cells = sorted([(a + b, m + n), *rest])
    statistic = sum((found - expected) ** 2 / expected for expected, found in cells)
    freedom, shift = len(cells) - 1.0, draws * slack**2
    scale = (freedom + 2 * shift) / (freedom + shift)
    freedom = (freedom + shift) ** 2 / (freedom + 2 * shift)
    halves = torch.tensor([freedom / 2, statistic / scale / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def exact_setting(lab: Lab, prompt: list[int], temperature: float, top_k: int) -> Setting | None:
    """The law by enumeration, from the plain greedy step's log-probabilities: no processor of the engine has a part.

    None where two tokens at the border of top-k are so close that rounding may exchange them.
    """
    laws: dict[tuple[int, ...], dict[int, float]] = {}
    queue: list[tuple[int, ...]] = [()]
    for before in queue:  # grows by the first tokens that can come
        (token,) = lab.plain([*prompt, *before], GREEDY, 1).tokens
        ids, scores = list(token.top), list(token.top.values())
        if scores[top_k - 1] - scores[top_k] <= 4 * lab.noise:
            return None
        powers = [math.exp((score - scores[0]) / temperature) for score in scores[:top_k]]
        laws[before] = {i: power / sum(powers) for i, power in zip(ids, powers, strict=False)}
        if not before:
            queue += [(i,) for i in laws[before]]
    first = laws[()]
    law = {(a, b): first[a] * p for a in first for b, p in laws[a,].items()}
    return Setting(prompt, temperature, top_k, law, {before: list(p) for before, p in laws.items()})
