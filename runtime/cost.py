"""Cost: seconds per call of each program, and how drafts fared, as `EngineManifest.cost` has them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..errors import EngineFormatError


class Trial(NamedTuple):
    """How the drafts of one program fared on sample prompts.

    Attributes:
        steps: all of them; `drafts` of them had a draft (n-gram lookup does not always find one).
        accepted: how often each level was taken, first level first.
    """

    steps: int
    drafts: int
    accepted: tuple[int, ...]

    def plus(self, offered: int, accepted: int) -> Trial:
        """With one step more, which had a draft of `offered` levels and took `accepted`."""
        taken = tuple(n + (level < accepted) for level, n in enumerate(self.accepted))
        return Trial(self.steps + 1, self.drafts + (offered > 0), taken)


class CostTable:
    """Seconds per call by program and tokens in the cache, with straight lines between the lengths measured.

    Attributes:
        trials: by program.
        by_match: of drafts that are looked up, the same by how long a suffix of the text occurred in it before.
    """

    def __init__(
        self,
        seconds: Mapping[str, Sequence[float]],
        tokens: Sequence[int],
        trials: Mapping[str, Trial],
        by_match: Mapping[str, Sequence[Trial]] = MappingProxyType({}),
    ) -> None:
        self._seconds, self._tokens = {name: tuple(row) for name, row in seconds.items()}, tuple(tokens)
        self.trials, self.by_match = dict(trials), dict(by_match)

    @classmethod
    def read(cls, cost: Mapping[str, Any]) -> CostTable | None:
        """The table of a manifest; None where nothing was measured (or by a specc that knew no tables).

        Raises:
            EngineFormatError: it is not what `specc compile` writes.
        """
        if "seconds" not in cost:
            return None
        try:
            tokens = [_count(n) for n in cost["tokens"]]
            seconds = {str(name): [_time(s) for s in row] for name, row in cost["seconds"].items()}
            trials = {str(name): _trial(one) for name, one in cost.get("acceptance", {}).items()}
            by_match = {str(name): [*map(_trial, some)] for name, some in cost.get("by_match", {}).items()}
            if any(len(some) != len(next(iter(by_match.values()))) for some in by_match.values()):
                raise ValueError("lengths of suffixes do not fit")
            if not tokens or tokens != sorted(set(tokens)) or any(len(row) != len(tokens) for row in seconds.values()):
                raise ValueError("lengths do not fit")
        except (ValueError, TypeError, LookupError, AttributeError) as e:
            raise EngineFormatError(f"manifest.json: cost is not a table ({e!r}); compile the engine again") from e
        return cls(seconds, tokens, trials, by_match)

    def __contains__(self, program: str) -> bool:
        """Whether a program was timed."""
        return program in self._seconds

    def seconds(self, program: str, tokens: int) -> float:
        """Seconds of a call with so many tokens in the cache."""
        return interpolate(self._tokens, self._seconds[program], tokens)


def interpolate(known: Sequence[int], values: Sequence[float], at: int) -> float:
    """A cost between, before and behind the sizes at which it was measured.

    Straight lines between them, the first value before them, the last line behind them unless it falls: more work is
    never faster, so that was noise.

    Args:
        known: sizes, ascending; values: what was measured there.
    """
    if len(known) == 1 or at <= known[0]:
        return values[0]
    place = min(bisect_left(known, at), len(known) - 1)
    slope = (values[place] - values[place - 1]) / (known[place] - known[place - 1])
    if at > known[-1]:
        slope = max(0.0, slope)
    return values[place] + slope * (at - known[place])


def _trial(value: Any) -> Trial:
    return Trial(_count(value["steps"]), _count(value["drafts"]), tuple(map(_count, value["accepted"])))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e6:  # false for NaN too
        raise ValueError(f"{value!r} is no time")
    return float(value)
