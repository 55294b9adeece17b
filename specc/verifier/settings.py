"""Where to draw: the contexts and temperatures at which the mistakes that sampling is prone to show best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from .lab import Lab
from .laws import Setting, exact_setting
from .modes import GREEDY

TOP_KS = (4, 3, 2)
TEMPERATURES = (1.5, 2.0, 3.0, 5.0, 8.0)
RARE = 0.02  # tokens below are pooled with others before long, and show less than their share


def for_own_drafts(lab: Lab) -> Setting | None:
    """Where drafts judged by the drafter's law before processing, and not by the one they were drawn from, show best.

    A temperature above 1 behind a text whose next token the model alone is sure of. None where every context has
    candidates at the border of top-k that rounding may exchange.
    """
    candidates = [(c, t) for c in _contexts(lab) for t in TEMPERATURES]
    candidates.sort(key=lambda pair: -wrong_q_shows(pair[0][1], pair[1]))
    return _first_clear(lab, ((prompt, temperature) for (prompt, _), temperature in candidates))


def for_forced_drafts(lab: Lab) -> Setting | None:
    """Temperature 1 where the likeliest token is refused about as often as it is taken: what is drawn in its place
    shows there. None as above."""
    contexts = sorted(_contexts(lab), key=lambda c: abs(_law(c[1], 1.0)[0] - 0.5))
    return _first_clear(lab, ((prompt, 1.0) for prompt, _ in contexts))


def wrong_q_shows(scores: Sequence[float], temperature: float) -> float:
    """Chi-square per draw of the first token, if target and drafter agree and q is the law before processing.

    Args:
        scores: log-probabilities before processing, best first.
    """
    law = _law(scores, temperature)
    q = [math.exp(score) for score in scores[: len(law)]]
    taken = [p * min(1.0, p / x) for p, x in zip(law, q, strict=True)]
    rest = [max(0.0, p - x) for p, x in zip(law, q, strict=True)]
    share = (1 - sum(taken)) / (sum(rest) or 1.0)
    return sum((t + share * r - p) ** 2 / max(p, RARE) for t, r, p in zip(taken, rest, law, strict=True))


def _law(scores: Sequence[float], temperature: float) -> list[float]:
    powers = [math.exp((score - scores[0]) / temperature) for score in scores[: TOP_KS[0]]]
    return [power / sum(powers) for power in powers]


def _contexts(lab: Lab) -> Iterator[tuple[list[int], list[float]]]:
    """Every place of the plain greedy texts: what stands before it, and the best log-probabilities there."""
    for prompt in lab.prompts:
        plain = lab.plain(prompt, GREEDY, lab.tokens)
        for place, token in enumerate(plain.tokens):
            if len(token.top) > TOP_KS[0]:
                yield [*prompt, *plain.ids[:place]], list(token.top.values())


def _first_clear(lab: Lab, candidates: Iterable[tuple[list[int], float]]) -> Setting | None:
    """The first candidate whose law rounding cannot change much, with as many tokens as may be."""
    room, listed = lab.engine.manifest.context - 2, list(candidates)
    for top_k in TOP_KS:
        for prompt, temperature in listed:
            if len(prompt) <= room and (setting := exact_setting(lab, prompt, temperature, top_k)):
                return setting
    return None
