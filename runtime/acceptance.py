"""Acceptance: how often the drafts of one tree are taken, estimated from counts; late steps count most."""

from __future__ import annotations

from .cost import Trial

PRIOR = 12.0  # steps that a trial at compile time counts for
MEMORY = 0.97  # weight that a step keeps at each later one: some 30 steps are remembered
SMOOTH = 0.5  # tries that a level is lent at the rate of the level before: few, or no, steps may have reached it
LENT = 2.0  # tries that a level of a part is lent at the rate that the whole has there
_LEAST = 0.01  # below this weight nothing fades any more
_UNTRIED = Trial(2, 2, ())


class Acceptance:
    """An estimate for one tree (a chain serves shorter chains too).

    A level's rate is the share taken of the steps that reached it: those that had a draft, all levels before taken.
    What was seen of a level fades while shorter drafts do not reach it; then it comes to follow the level before.
    """

    def __init__(self, depth: int, trial: Trial | None, whole: Trial | None = None) -> None:
        """From a trial, which counts for a few steps; without one half of every level is expected, and little is needed
        to unlearn that.

        Args:
            whole: a trial of which `trial` is a part, and stands in where that saw little.
        """
        found = trial or _UNTRIED
        weight = min(PRIOR, max(found.steps, _UNTRIED.steps))
        matched = (found.drafts + 0.5) / (found.steps + 0.5)
        self._drafts = [weight * matched, weight]  # steps with a draft, all steps
        self._levels: list[list[float]] = []  # taken, reached
        known, rate = _levels(whole, depth) if whole else [], 0.5
        for level, (taken, reached) in enumerate(_levels(found, depth)):
            if known:
                rate = (known[level][0] + SMOOTH * rate) / (known[level][1] + SMOOTH)
                rate = (taken + LENT * rate) / (reached + LENT)
            else:
                rate = (taken + SMOOTH * rate) / (reached + SMOOTH)
            self._levels.append([weight * rate, weight])

    def see(self, accepted: int, offered: int, length: int) -> None:
        """Take in a step that was to draft `length` levels, had a draft of `offered`, and took `accepted`."""
        reached = min(length, accepted + 1) if offered else 0
        for level, pair in enumerate((self._drafts, *self._levels)):
            if pair[1] > _LEAST:
                pair[:] = [MEMORY * number for number in pair]
            if level <= reached:
                pair[1] += 1
                pair[0] += level <= accepted if level else offered > 0

    def fade(self, weight: float) -> None:
        """Let all that was seen count for at most `weight` steps: the text may have changed since."""
        for pair in (self._drafts, *self._levels):
            scale = min(1.0, weight / pair[1])
            pair[:] = [scale * number for number in pair]

    def tokens(self, length: int) -> float:
        """Tokens that a step which drafts `length` levels is expected to emit."""
        total, reaches, rate = 1.0, self._drafts[0] / self._drafts[1], 0.0
        for level, (taken, reached) in enumerate(self._levels[:length]):
            lent = SMOOTH if level else 0.0
            rate = (taken + lent * rate) / (reached + lent)
            reaches *= rate
            total += reaches
        return total


def _levels(trial: Trial, depth: int) -> list[tuple[int, int]]:
    """How often each level was taken, and reached; nothing reached one that was not tried."""
    tried = list(zip(trial.accepted, (trial.drafts, *trial.accepted), strict=False))
    return (tried + [(0, 0)] * depth)[:depth]
