"""Draft: something that could be drafted, what it promises, and the acceptance from which it pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..bench.formulas import break_even, tokens_per_step
from ..candidate_table import draft_name
from ..tree import DraftTree
from ..tune import Candidate

ACCEPTANCES = tuple(round(0.05 * i, 2) for i in range(21))  # of the grid
StepCost = Callable[[int], float]
"""A step that drafts a chain of so many tokens, in plain steps."""


class Draft(NamedTuple):
    """A candidate, and where its numbers come from."""

    candidate: Candidate
    source: str

    def to_json(self) -> dict[str, Any]:
        """Plain values; `break_even` is the acceptance of a level from which it pays, None where there is none."""
        tree, tokens, cost = self.candidate
        return {
            "draft": draft_name(tree),
            "draft_length": tree.depth,
            "paths": [list(path) for path in tree.paths[1:]],
            "tokens_per_step": tokens,
            "step_cost": cost,
            "speedup": self.candidate.speedup,
            "break_even": break_even(tree.depth, cost),
            "source": self.source,
        }


def chain(length: int, tokens: float, cost: float, source: str) -> Draft:
    """A chain of `length` that emits `tokens` in a step of `cost` plain steps."""
    return Draft(Candidate(DraftTree.chain(length), tokens, cost), source)


def best(drafts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The draft that promises most; of equals the first."""
    return max(drafts, key=lambda draft: draft["speedup"])


def least_break_even(drafts: Iterable[dict[str, Any]]) -> float | None:
    """The lowest acceptance from which any of the drafts pays; None where none ever does."""
    return min((draft["break_even"] for draft in drafts if draft["break_even"] is not None), default=None)


def grid(columns: Mapping[str, StepCost], lengths: Sequence[int]) -> dict[str, Any]:
    """The best draft length and its speed-up, for every acceptance of `ACCEPTANCES`.

    Args:
        columns: named ways to price a step, one column each.
    """
    best_of: dict[str, list[dict[str, Any]]] = {}
    for name, cost in columns.items():
        for a in ACCEPTANCES:
            speedup, place = max((tokens_per_step(a, k) / cost(k), -k) for k in lengths)
            best_of.setdefault(name, []).append({"draft_length": -place, "speedup": speedup})
    return {"acceptance": list(ACCEPTANCES), "best": best_of}
