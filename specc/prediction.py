"""What an engine's cost table and the drafts that were tried say speculation will gain."""

from __future__ import annotations

from typing import NamedTuple

from .bench.formulas import conditional, full
from .manifest import EngineManifest
from .runtime.cost import CostTable


class Prediction(NamedTuple):
    """Of one program, greedy, one row.

    Attributes:
        acceptance: rate of each level, given the levels before.
        tokens: that a step emits.
        cost: of a step in plain steps.
    """

    acceptance: tuple[float, ...]
    tokens: float
    cost: float

    @property
    def speedup(self) -> float:
        """Over plain steps."""
        return self.tokens / self.cost


def predictions(manifest: EngineManifest) -> dict[str, Prediction]:
    """For every program whose drafts were tried, at the first length that was timed.

    Raises:
        EngineFormatError: the manifest's cost is damaged.
    """
    table, found = CostTable.read(manifest.cost), {}
    plain = [n for n, s in manifest.programs.items() if (s.rule, len(s.tree_paths), s.batch) == ("greedy", 1, 1)]
    for name, trial in table.trials.items() if table else ():
        if table and trial.steps and name in table and plain and plain[0] in table:
            rates = tuple(conditional(trial.accepted, trial.steps))
            found[name] = Prediction(rates, full(rates, 1.0), table.seconds(name, 0) / table.seconds(plain[0], 0))
    return found


def verdict(manifest: EngineManifest) -> str:
    """The best prediction in one line."""
    found = predictions(manifest)
    if not found:
        return "no draft was tried, so that no speed-up can be predicted"
    name, best = max(found.items(), key=lambda item: item[1].speedup)
    said = f"predicted: {name} emits {best.tokens:.2f} tokens for {best.cost:.2f} plain steps, {best.speedup:.2f}x"
    if best.speedup <= 1:
        said += "; speculation does not pay on these prompts, so texts begin with plain steps"
    return said
