"""What an engine's cost table and the drafts that were tried say speculation will gain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .bench.formulas import conditional, full
from .manifest import EngineManifest
from .runtime.cost import CostTable

Paths = tuple[tuple[int, ...], ...]
PLAIN: Paths = ((),)
LOW = 0.4  # of first drafts: below, something is wrong more often than not


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
    costs = step_costs(manifest, table).get(1, {}) if table else {}
    for name, trial in table.trials.items() if table else ():
        spec = manifest.programs.get(name)
        if trial.steps and spec and spec.tree_paths in costs:
            rates = tuple(conditional(trial.accepted, trial.steps))
            found[name] = Prediction(rates, full(rates, 1.0), costs[spec.tree_paths])
    return found


def predictions_by_match(manifest: EngineManifest) -> dict[str, list[Prediction | None]]:
    """Of drafts that are looked up, for each length of the suffix that occurred before; None where no step was tried.

    Raises:
        EngineFormatError: the manifest's cost is damaged.
    """
    table = CostTable.read(manifest.cost)
    costs = step_costs(manifest, table).get(1, {}) if table else {}
    found: dict[str, list[Prediction | None]] = {}
    for name, trials in table.by_match.items() if table else ():
        spec = manifest.programs.get(name)
        if spec and spec.tree_paths in costs:
            found[name] = [
                Prediction(rates, full(rates, 1.0), costs[spec.tree_paths]) if trial.steps else None
                for trial in trials
                for rates in [tuple(conditional(trial.accepted, trial.steps))]
            ]
    return found


def step_costs(manifest: EngineManifest, table: CostTable) -> dict[int, dict[Paths, float]]:
    """Greedy steps in plain steps of as many rows, at the first length that was timed: by rows and by tree.

    The plain step is among them, with 1; numbers of rows whose plain step was not timed are left out.
    """
    seconds: dict[int, dict[Paths, float]] = {}
    for name, spec in manifest.programs.items():
        if spec.rule == "greedy" and name in table:
            seconds.setdefault(spec.batch, {})[spec.tree_paths] = table.seconds(name, 0)
    return {
        rows: {tree: taken / found[PLAIN] for tree, taken in found.items()}
        for rows, found in seconds.items()
        if PLAIN in found
    }


def accepted(manifest: EngineManifest) -> list[str]:
    """A line for every program whose drafts were tried, and a warning where a drafter's first level is seldom taken."""
    found, lines = predictions(manifest), []
    for name, one in found.items():
        rates = ", ".join(f"{rate:.0%}" for rate in one.acceptance)
        lines.append(f"acceptance of {name}: {rates} by level, each given the levels before it")
    for name, parts in predictions_by_match(manifest).items():
        lines.append(f"tokens that {name} emits where the text's last tokens occurred before: {by_match(parts)}")
    first = max((one.acceptance[0] for one in found.values()), default=1.0)
    if manifest.drafter is not None and first < LOW:
        lines.append(
            f"warning: {first:.0%} of first drafts are accepted, and a drafter that fits its target has {LOW:.0%} or "
            f"more: was {manifest.drafter.source} trained for {manifest.target.source}, and on texts like these? "
            "Other texts are tried with --prompts FILE"
        )
    return lines


def verdict(manifest: EngineManifest) -> str:
    """The best prediction in one line."""
    found = predictions(manifest)
    if not found:
        return "no draft was tried, so that no speed-up can be predicted"
    name, best = max(found.items(), key=lambda item: item[1].speedup)
    said = f"predicted: {name} emits {best.tokens:.2f} tokens for {best.cost:.2f} plain steps, {best.speedup:.2f}x"
    if manifest.lookup:
        paying = [n for n, part in enumerate(predictions_by_match(manifest).get(name, ())) if part and part.speedup > 1]
        where = f"behind {_list(paying)} tokens that occurred before" if paying else "nowhere"
        return f"{said} if it drafts at every step; on these prompts drafts pay {where}"
    if best.speedup <= 1:
        said += "; speculation does not pay on these prompts, so texts begin with plain steps"
    return said


def by_match(parts: Sequence[Prediction | None]) -> str:
    """Tokens a step in one line, by how many tokens occurred before."""
    return ", ".join(f"{n}: {part.tokens:.2f}" for n, part in enumerate(parts) if part) or "none tried"


def _list(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
