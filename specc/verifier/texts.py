"""Two programs, one text: are their scores alike, and is a difference more than rounding?

Where programs of other row counts use other kernels, logits differ in the last bits, and an arg-max may flip where two
tokens are as good as equal. Such a float tie is told from a fault by the gap between the two tokens, held against the
largest difference of logits that the two programs showed behind equal texts; and that difference itself has a limit,
or a program that computes something else would excuse itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..passes.accept.noise import draw
from ..philox import RACE
from ..runtime import TokenLogprob
from .modes import Mode

# The most that two programs' logits may differ behind the same text.
ALLOWED = {"float32": 3e-3, "float16": 0.15, "bfloat16": 1.0}


@dataclass(frozen=True, slots=True)
class Text:
    """A continuation: its tokens with their scores, and how many came in each step."""

    tokens: list[TokenLogprob]
    blocks: list[int]

    @property
    def ids(self) -> list[int]:
        """Token ids."""
        return [token.token for token in self.tokens]


@dataclass(slots=True)
class Comparison:
    """Texts against plain ones; more can be added.

    Attributes:
        tokens: compared, up to each first difference.
        noise: the largest difference of logits behind equal texts.
        ties, faults: one line each.
        stopped: place of the first difference in the last text; None if there was none.
    """

    tokens: int = 0
    noise: float = 0.0
    ties: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    stopped: int | None = None

    def add(self, plain: Text, other: Text, mode: Mode, prompt: int, allowed: float, where: str) -> None:
        """Compare one text.

        Args:
            plain: by the plain step, in the same mode.
            prompt: tokens in front of both.
            allowed: of `ALLOWED`.
            where: begins every line that is told.
        """
        noise, self.stopped = 0.0, None
        for place, (right, found) in enumerate(zip(plain.tokens, other.tokens, strict=False)):
            self.tokens += 1
            noise = max(noise, spread(right.top, found.top) * mode.temperature)
            self.noise = max(self.noise, noise)
            here = f"{where}: new token {place + 1}"
            if noise > allowed:
                self.stopped = place
                self.faults.append(f"{here}: logits behind the same text differ by {noise:.3g}, allowed {allowed:g}")
                return
            if right.token != found.token:
                self.stopped = place
                gap = _gap(right, found, mode, prompt + place)
                told = f"{here}: {found.token} instead of {right.token}; gap {gap:.3g}, programs differ by {noise:.3g}"
                (self.ties if gap <= noise + mode.chance else self.faults).append(told)
                return
        if len(plain.tokens) != len(other.tokens):
            self.stopped = min(len(plain.tokens), len(other.tokens))
            self.faults.append(f"{where}: {len(other.tokens)} new tokens instead of {len(plain.tokens)}")

    def merge(self, other: Comparison) -> None:
        """Take in what another one found."""
        self.tokens += other.tokens
        self.noise = max(self.noise, other.noise)
        self.ties += other.ties
        self.faults += other.faults


def spread(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Largest difference of two lists of best log-probabilities, each seen from the best token of the first.

    A token that one list lacks is at most as good as that list's last.
    """
    best = next(iter(a))
    if best not in b:
        return float("inf")
    ends = min(a.values()) - a[best], min(b.values()) - b[best]
    worst = 0.0
    for token in a.keys() | b.keys():
        x = a[token] - a[best] if token in a else None
        y = b[token] - b[best] if token in b else None
        if x is None or y is None:
            worst = max(worst, (x - ends[1]) if x is not None else ((y or 0.0) - ends[0]))
        else:
            worst = max(worst, abs(x - y))
    return worst


def _gap(plain: TokenLogprob, other: TokenLogprob, mode: Mode, position: int) -> float:
    """How much better, in logits, the plain step's token is than the other's in the plain step's own race."""
    for own, theirs in ((other, plain), (plain, other)):
        if own.token not in theirs.top:  # cut there: how far inside the border is it here?
            inside = (own.logprob - min(own.top.values())) * mode.temperature
            return float("inf") if mode.seed is None else inside  # without a race it is no candidate at all
    gap = plain.top[plain.token] - plain.top[other.token]
    if mode.seed is not None:
        noise = race(mode.seed, position, max(plain.token, other.token) + 1)
        gap += noise[plain.token] - noise[other.token]
    return max(0.0, gap) * mode.temperature


def race(seed: int, position: int, size: int) -> Sequence[float]:
    """Gumbel noise of the first `size` ids at an absolute position, as the engine draws it."""
    row = draw(torch.tensor([seed]), torch.tensor([0]), torch.tensor([[position]]), stream=RACE, size=size)
    return row[0, 0].tolist()
