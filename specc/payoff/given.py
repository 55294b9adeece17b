"""From numbers: an acceptance, what a drafted token costs, and what a verification does."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..bench.formulas import tokens_per_step
from ..errors import ConfigError
from .config import PlanConfig
from .draft import best, chain, grid, least_break_even

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0)  # of c, in the grid


def from_numbers(config: PlanConfig) -> dict[str, Any]:
    """Every draft length at the numbers given, the grid around them, and the same for every batch size.

    Raises:
        ConfigError: acceptance or cost is missing.
    """
    if config.acceptance is None or config.cost is None:
        missing = [f"--{name} {name[0].upper()}" for name in ("acceptance", "cost") if getattr(config, name) is None]
        raise ConfigError(
            f"{' and '.join(missing)} not given; type specc plan --acceptance 0.7 --cost 0.05, or give an ENGINE that "
            "was measured when it was compiled"
        )
    c, lengths = config.cost, tuple(config.verify_costs())
    rows = {size: _drafts(config, size) for size in config.sizes()}
    drafts = rows[1]
    columns = {f"{f * c:g}": partial(step_cost, config, cost=f * c) for f in FACTORS if f == 1 or c}
    return {
        "acceptance": config.acceptance,
        "cost": c,
        "verify_cost": {str(k): step_cost(config, k, 0.0) for k in lengths},
        "drafts": drafts,
        "best": best(drafts),
        "break_even": least_break_even(drafts),
        "grid": grid(columns, lengths),
        "batch": {str(size): best(found) for size, found in rows.items()} if len(rows) > 1 else {},
    }


def step_cost(config: PlanConfig, length: int, cost: float, rows: int = 1) -> float:
    """v + cK: a step that drafts `length` tokens for each of `rows` texts, in plain steps of as many rows.

    With a slope S a pass over n tokens costs max(1, S n) plain passes: reading the weights, or computing. A step of B
    rows verifies B (K + 1) tokens where the plain one has B; the drafter is taken to slow down as the target does.
    """
    if config.slope is None:
        return config.verify_costs()[length] + cost * length
    return pass_cost(rows * (length + 1), config.slope) / pass_cost(rows, config.slope) + cost * length


def pass_cost(tokens: int, slope: float) -> float:
    """A pass over so many tokens, in passes over one: bound by memory, then by arithmetic (the roofline)."""
    return max(1.0, slope * tokens)


def _drafts(config: PlanConfig, rows: int) -> list[dict[str, Any]]:
    assert config.acceptance is not None and config.cost is not None
    found = []
    for k in config.verify_costs():
        tokens, cost = tokens_per_step(config.acceptance, k), step_cost(config, k, config.cost, rows)
        found.append(chain(k, tokens, cost, "given").to_json())
    return found
