"""Fake engines with a cost table, and drafters that are right where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import helpers.fake_engine
import pytest
from helpers.fake_engine import FakePrograms, fake_engine, toy_manifest
from helpers.toy_law import VOCAB, choose
from hypothesis import strategies as st

from specc.manifest import ProgramSpec
from specc.runtime import Engine
from specc.runtime.cost import Trial

CONTEXT = 400
Prices = Callable[[ProgramSpec], float]
Pattern = Callable[[int], bool]


def linear(node: float = 0.1, level: float = 0.1, prefill: float = 0.05) -> Prices:
    """A plain step costs 1, every node and every level of a draft something more."""

    def price(spec: ProgramSpec) -> float:
        return 1 + node * (len(spec.tree_paths) - 1) + level * len(spec.tree_paths[-1]) if spec.rule else prefill

    return price


PRICES = st.builds(linear, st.floats(0.0, 0.5), st.floats(0.0, 0.6), st.floats(0.01, 2))


def priced(
    price: Prices | None = None, trial: float | None = 0.5, by_match: Any = None, **shape: Any
) -> tuple[Engine, FakePrograms]:
    """A fake engine with a cost table, whose trial at compile time had this rate of acceptance at every level."""
    shape = {"context": CONTEXT, **shape}
    manifest, price = toy_manifest(**shape), price or linear()
    cost: dict[str, Any] = {"tokens": [64], "seconds": {n: [price(s)] for n, s in manifest.programs.items()}}
    if trial is not None:
        cost["acceptance"] = {
            name: Trial(
                100, 100, tuple(round(100 * trial ** (i + 1)) for i in range(len(spec.tree_paths[-1])))
            )._asdict()
            for name, spec in manifest.programs.items()
            if spec.rule == "greedy" and len(spec.tree_paths) > 1
        }
    if by_match:
        cost["by_match"] = by_match
    return fake_engine(cost=cost, **shape)


def agree(patch: pytest.MonkeyPatch, pattern: Pattern) -> None:
    def draft(known: Sequence[int], law: Any, state: int = 0) -> int:
        token = choose(known, law, state)
        return token if pattern(len(known)) else (token + 7) % VOCAB  # a tree's other children are near

    patch.setattr(helpers.fake_engine, "draft", draft)


def spent(engine: Engine, programs: FakePrograms, prompt: int = 1) -> float:
    """Seconds of all calls by the table, but for the prompt's own: those of the target, and the drafter's first."""
    calls = list(programs.calls)
    first = next((i for i, name in enumerate(calls) if engine.manifest.programs[name].rule), len(calls))
    return sum(engine.manifest.cost["seconds"][name][0] for name in calls[first:])
