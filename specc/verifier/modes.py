"""Ways of choosing tokens in which a speculative text must equal the plain one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOP = 20  # alternatives whose scores are compared


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of choosing tokens, in which a speculative text must equal the plain one.

    Attributes:
        name: for the report.
        rule: of the programs that make the speculative text.
        options: of the request.
        temperature: of the logits behind the scores that are compared; 1 if greedy.
        chance: how large a gap of logits chance may close where the two texts are drawn by other random numbers.
        seed: None if no noise decides.
    """

    name: str
    rule: str
    options: Mapping[str, Any]
    temperature: float = 1.0
    chance: float = 0.0
    seed: int | None = None

    def with_options(self, name: str, **more: Any) -> Mode:
        """The same with more options."""
        kept = (self.temperature, self.chance, self.seed)
        return Mode(f"{self.name}, {name}", self.rule, {**self.options, **more}, *kept)


GREEDY = Mode("greedy", "greedy", {})


def coupled(seed: int) -> Mode:
    """Sampling whose text depends on the seed alone; 20 tokens are in the race, so all of it can be seen."""
    options = {"temperature": 0.8, "top_k": TOP, "seed": seed, "acceptance": "coupled"}
    return Mode(f"coupled, seed {seed}", "coupled", options, 0.8, 0.0, seed)


def cold(rule: str) -> Mode:
    """A sampled rule next to temperature 0, where its law leaves one token: its text is the plain one too.

    Noise of a race lies within -3 and 17 but for one draw in a hundred million: a gap of 20 temperatures decides.
    """
    temperature = 1e-5
    options = {"temperature": temperature, "seed": 0, "acceptance": rule}
    return Mode(f"{rule} at temperature {temperature}", rule, options, temperature, 20 * temperature)
