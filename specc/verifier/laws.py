"""Exact laws of two sampled tokens, and how surprising counts are under one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from .lab import Lab
from .modes import GREEDY

Pair = tuple[int, int]
TOP_KS = (4, 3, 2)
LEAST_EXPECTED = 5.0  # cells with less are pooled, as the chi-square approximation needs


@dataclass(frozen=True, slots=True)
class Setting:
    """A context, how tokens are drawn behind it, and the law of the first two.

    Attributes:
        law: probability of every pair that can come.
        best: the tokens that can come, likeliest first, behind nothing (`()`) and behind each first token.
    """

    name: str
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


def flat_setting(lab: Lab) -> Setting | None:
    """Temperature 1 where the text is least certain: what is drawn in place of a refused draft shows there.

    None where every context has candidates at the border of top-k that rounding may exchange.
    """
    contexts = sorted(_contexts(lab), key=lambda c: c[1][0] - c[1][3])
    return _first_clear(lab, "flat", [(prompt, 1.0) for prompt, _ in contexts])


def hot_setting(lab: Lab) -> Setting | None:
    """A high temperature where the model alone is most certain: there a law before processing is not the one after."""
    contexts = sorted(_contexts(lab), key=lambda c: -c[1][0])
    return _first_clear(lab, "hot", [(prompt, min(20.0, max(1.5, (x[0] - x[3]) / 2))) for prompt, x in contexts])


def tail(counts: Mapping[Pair, int], law: Mapping[Pair, float], slack: float) -> float:
    """Probability of counts at least as far from `law`, by chi-square; 0 where something came that cannot.

    Args:
        slack: how far the logarithm of a probability may be off by rounding. It makes the statistic non-central by at
            most `draws * slack ** 2`, which Patnaik's approximation (1949) brings back to a central one.
    """
    draws = sum(counts.values())
    if any(pair not in law for pair in counts):
        return 0.0
    cells = sorted((draws * p, counts.get(pair, 0)) for pair, p in law.items())
    while len(cells) > 2 and cells[0][0] < LEAST_EXPECTED:
        (a, m), (b, n), *rest = cells
        cells = sorted([(a + b, m + n), *rest])
    statistic = sum((found - expected) ** 2 / expected for expected, found in cells)
    freedom, shift = len(cells) - 1.0, draws * slack**2
    scale = (freedom + 2 * shift) / (freedom + shift)
    freedom = (freedom + shift) ** 2 / (freedom + 2 * shift)
    halves = torch.tensor([freedom / 2, statistic / scale / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def _contexts(lab: Lab) -> Iterator[tuple[list[int], list[float]]]:
    """Every place of the plain greedy texts: what stands before it, and the best log-probabilities there."""
    for prompt in lab.prompts:
        plain = lab.plain(prompt, GREEDY, lab.tokens)
        for place, token in enumerate(plain.tokens):
            if len(token.top) > max(TOP_KS):
                yield [*prompt, *plain.ids[:place]], list(token.top.values())


def _first_clear(lab: Lab, name: str, candidates: list[tuple[list[int], float]]) -> Setting | None:
    """The first candidate where no two tokens at the border of top-k are so close that rounding may exchange them."""
    room = lab.engine.manifest.context - 2
    for top_k in TOP_KS:
        for prompt, temperature in candidates:
            if len(prompt) <= room and (setting := _setting(lab, name, prompt, temperature, top_k)):
                return setting
    return None


def _setting(lab: Lab, name: str, prompt: list[int], temperature: float, top_k: int) -> Setting | None:
    """The law by enumeration, from the plain greedy step's log-probabilities: no processor of the engine has a part."""
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
    return Setting(name, prompt, temperature, top_k, law, {before: list(p) for before, p in laws.items()})
