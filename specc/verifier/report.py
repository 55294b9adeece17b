"""What a verification found: one `Check` for each promise, and the `Report` that a user can attach."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

PASS, FAIL, SKIP = "pass", "fail", "skip"


@dataclass(slots=True)
class Check:
    """One promise.

    Attributes:
        name: of the check.
        result: `pass`, `fail` or `skip`.
        compared: what was compared, in one line; why not, where it was skipped.
        faults: what was found wrong, one line each.
        ties: differences that rounding explains, one line each: told, and no faults.
        figures: everything that was measured.
        seconds: what it took.
    """

    name: str
    result: str
    compared: str
    faults: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def skipped(cls, name: str, reason: str) -> Check:
        """A check that this engine cannot be put to."""
        return cls(name, SKIP, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `verify` found.

    Attributes:
        engine: which one: folder, key, models, dtype, back end, sizes.
        machine, versions: where this was found.
        options: as `verify` was called.
        checks: in the order they ran.
        noise: the largest difference of logits that two programs showed behind the same text; `allowed` is the most
            that counts as rounding in this engine's dtype.
        false_alarm: probability that chance alone fails a right engine.
        date: UTC, ISO 8601.
    """

    engine: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    options: dict[str, Any]
    checks: tuple[Check, ...]
    noise: float
    allowed: float
    false_alarm: float
    date: str

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [check.name for check in self.checks if check.result == FAIL]

    @property
    def ties(self) -> int:
        """Differences that rounding explains, over all checks."""
        return sum(len(check.ties) for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Plain values, every figure; JSON has no infinity, which becomes None."""
        return _finite({"passed": self.passed, "failed": self.failed, **dataclasses.asdict(self)})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
