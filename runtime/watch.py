"""Watch: says once that an engine's drafts are mostly refused, with the formula that tells what that costs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ..errors import LowAcceptanceWarning
from .flight import Outcome
from .pilot import Pilot

LEAST = 0.4  # acceptance below which it is said
ENOUGH = 128  # tries before anything is said


class Watch:
    """Counts the drafts of all texts of an engine.

    Attributes:
        tried: levels that were compared with the target's choice: those taken, and the first that was not.
        accepted: levels taken.
        said: the warning, once it was given.
    """

    def __init__(self, length: int) -> None:
        """`length` is that of the engine's main draft."""
        self._length, self.said = length, ""
        self.tried = self.accepted = 0

    def see(self, outcomes: Sequence[Outcome], pilot: Pilot | None) -> None:
        """Take in a step; `pilot` knows what it costs."""
        for outcome in outcomes:
            self.tried += min(outcome.accepted + 1, outcome.offered)
            self.accepted += outcome.accepted
        if not self.said and self.tried >= ENOUGH and self.accepted < LEAST * self.tried:
            self.said = self._words(pilot)
            warnings.warn(self.said, LowAcceptanceWarning, stacklevel=2)

    def _words(self, pilot: Pilot | None) -> str:
        length, a = self._length, self.accepted / self.tried
        tokens = sum(a**i for i in range(length + 1))
        said = (
            f"acceptance {a:.0%} ({self.accepted} of {self.tried} drafted tokens that were tried) is below {LEAST:.0%}:"
            f" a step that drafts K = {length} then emits (1 - a^(K+1)) / (1 - a) = {tokens:.2f} tokens"
        )
        cost = pilot.step_cost() if pilot else None
        if cost is not None:
            said += f" and costs {cost:.2f} plain steps, which makes {tokens / cost:.2f}x"
        chosen = "; draft_length=None takes plain steps where they are faster" if pilot else ""
        return f"{said}{chosen}; a drafter trained on this target's texts is accepted more, draft_length=0 needs none"
