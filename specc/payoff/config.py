"""What `specc plan` computes with, where no engine gives the numbers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..config import option
from ..errors import ConfigError
from ..tree import MAX_DEPTH

MOST_ROWS = 1024
NUMBERS = ("acceptance", "cost", "verify_cost", "slope", "batch")  # what an engine's measurements stand for
DEFAULT_LENGTHS = tuple(range(1, 9))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Costs are in plain passes: passes of the target over one token."""

    acceptance: float | None = option(None, "share of the drafted tokens tried that is accepted, as 0.7", metavar="A")
    cost: float | None = option(None, "c, a drafted token in plain passes of the target, as 0.05", metavar="C")
    draft_lengths: str | None = option(
        None, "draft lengths, as 1-8 or 1,3,7 (default: 1-8, or up to the engine's longest)", metavar="LENGTHS"
    )
    verify_cost: str | None = option(
        None, "v, a verification in plain passes: one number, or one a draft length (default: 1)", metavar="V"
    )
    slope: float | None = option(
        None, "what a token costs in a pass over many, in plain passes: n tokens cost max(1, S n)", metavar="S"
    )
    batch: str | None = option(None, "also for so many texts side by side, as 1,8,64; with --slope", metavar="SIZES")
    json: str | None = option(None, "write every figure to a file", metavar="FILE")
    plot: str | None = option(None, "draw the picture", metavar="FILE.png")

    def __post_init__(self) -> None:
        for name, most in (("acceptance", 1.0), ("cost", math.inf), ("slope", 1.0)):
            value = getattr(self, name)
            wrong = value is not None and (isinstance(value, bool) or not isinstance(value, int | float))
            if wrong or (value is not None and not (0 <= value <= most and math.isfinite(value))):
                limits = f"from 0 to {most:g}" if math.isfinite(most) else "of at least 0"
                raise ConfigError(f"--{name} {value!r} must be a number {limits}")
        if self.verify_cost is not None and self.slope is not None:
            raise ConfigError(
                f"--verify-cost {self.verify_cost} and --slope {self.slope:g} both say what a verification costs; "
                "give one of the two"
            )
        if self.batch is not None and self.slope is None:
            raise ConfigError(
                f"--batch {self.batch} needs --slope S, the plain passes that each further token costs where a pass "
                "computes more than it reads; or give an ENGINE of several rows"
            )
        self.lengths()
        self.verify_costs()
        self.sizes()

    def lengths(self) -> tuple[int, ...]:
        """Draft lengths, ascending; empty where none are given."""
        if self.draft_lengths is None:
            return ()
        parts = [re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip()) for part in str(self.draft_lengths).split(",")]
        spans = [(int(part[1]), int(part[2] or part[1])) for part in parts if part]
        if len(spans) < len(parts) or any(first > last for first, last in spans):
            raise ConfigError(f"--draft-lengths {self.draft_lengths!r} is not a list of draft lengths, as 1-8 or 1,3,7")
        found = sorted({length for first, last in spans for length in range(first, last + 1)})
        if not 1 <= found[0] <= found[-1] <= MAX_DEPTH:
            raise ConfigError(f"--draft-lengths {self.draft_lengths}: draft lengths are 1..{MAX_DEPTH}")
        return tuple(found)

    def verify_costs(self) -> dict[int, float]:
        """A verification by draft length, in plain passes."""
        lengths = self.lengths() or DEFAULT_LENGTHS
        try:
            costs = [float(part) for part in str("1" if self.verify_cost is None else self.verify_cost).split(",")]
        except ValueError as e:
            raise ConfigError(f"--verify-cost {self.verify_cost!r} is not a number, or several as 1.0,1.1,1.3") from e
        if any(not 0 < cost < math.inf for cost in costs):
            raise ConfigError(f"--verify-cost {self.verify_cost}: a pass costs more than 0")
        if len(costs) not in (1, len(lengths)):
            raise ConfigError(
                f"--verify-cost {self.verify_cost}: {len(costs)} numbers for {len(lengths)} draft lengths "
                f"({', '.join(map(str, lengths))}); give one number, or one for each"
            )
        return dict(zip(lengths, costs if len(costs) > 1 else costs * len(lengths), strict=True))

    def sizes(self) -> tuple[int, ...]:
        """Batch sizes, ascending, one text always among them."""
        try:
            sizes = {1, *(int(part) for part in self.batch.split(","))} if self.batch is not None else {1}
        except (ValueError, AttributeError) as e:
            raise ConfigError(f"--batch {self.batch!r} is not a list of numbers of texts, as 1,8,64") from e
        wrong = [size for size in sizes if not 1 <= size <= MOST_ROWS]
        if wrong:
            raise ConfigError(f"--batch {self.batch}: {wrong[0]} is outside 1..{MOST_ROWS} texts")
        return tuple(sorted(sizes))
